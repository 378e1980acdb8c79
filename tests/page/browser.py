"""Headless Chromium, driven by the DevTools protocol over two pipes: no driver, no port."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any

from prefixd_process import DEADLINE_S, wait_for

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def program() -> str | None:
    named = os.environ.get("PREFIXD_TEST_BROWSER")
    return next(filter(None, map(shutil.which, [named] if named else PROGRAMS)), None)


class Browser:
    """One tab. `requests` are the addresses that it asked for, `complaints` what its console said."""

    def __init__(self) -> None:
        self._profile = Path(tempfile.mkdtemp(prefix="prefixd_browser_"))
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._answers: dict[int, Any] = {}
        self._arrived = threading.Condition()
        self._last = self._loads = 0
        self._session: str | None = None
        to_them, self._to = os.pipe()
        self._from, from_them = os.pipe()
        command = [
            program(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
            "--no-first-run", "--disable-extensions", "--disable-background-networking", "--disable-component-update",
            "--remote-debugging-pipe", f"--user-data-dir={self._profile}", "about:blank",
        ]
        environment = {**os.environ, "HOME": str(self._profile)}

        def as_three_and_four() -> None:
            ours = os.dup(from_them)
            os.dup2(os.dup(to_them), 3)
            os.dup2(ours, 4)

        self._child = subprocess.Popen(
            list(map(str, command)), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env=environment, close_fds=False, preexec_fn=as_three_and_four,
        )
        os.close(to_them)
        os.close(from_them)
        threading.Thread(target=self._read, daemon=True).start()
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in "Page", "Network", "Runtime", "Log":
            self.call(f"{domain}.enable")

    def _read(self) -> None:
        left = b""
        while data := os.read(self._from, 1 << 20):
            *messages, left = (left + data).split(b"\0")
            for message in messages:
                self._take(json.loads(message))
        with self._arrived:
            self._answers[-1] = "ended"
            self._arrived.notify_all()

    def _take(self, message: dict[str, Any]) -> None:
        with self._arrived:
            if "id" in message:
                self._answers[message["id"]] = message
                self._arrived.notify_all()
            if message.get("method") == "Page.loadEventFired":
                self._loads += 1
                self._arrived.notify_all()
        method, details = message.get("method"), message.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(details["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(details["exceptionDetails"])[:500])
        elif method == "Runtime.consoleAPICalled" and details["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(details["args"])[:500])
        elif method == "Log.entryAdded" and details["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"{details['entry']['text']} {details['entry'].get('url', '')}")

    def call(self, method: str, **arguments: Any) -> Any:
        self._last += 1
        number = self._last
        message: dict[str, Any] = {"id": number, "method": method, "params": arguments}
        if self._session is not None:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data) :]
        with self._arrived:
            self._arrived.wait_for(lambda: number in self._answers or -1 in self._answers, DEADLINE_S)
            answer = self._answers.pop(number, None)
        if answer is None or "error" in answer:
            raise AssertionError(f"the browser says to {method}: {answer}")
        return answer["result"]

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page; of a promise, what it brings."""
        done = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True, userGesture=True)
        if "exceptionDetails" in done:
            raise AssertionError(f"{script[:200]}: {json.dumps(done['exceptionDetails'])[:600]}")
        return done["result"].get("value")

    def wait(self, script: str) -> Any:
        return wait_for(script, lambda: self.evaluate(script) or None)

    def size(self, width: int, height: int = 900) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def prefer(self, **features: str) -> None:
        """prefer(prefers_color_scheme="dark")"""
        given = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", features=given)

    def go(self, url: str) -> None:
        """Until the document and its scripts are loaded."""
        with self._arrived:
            before = self._loads
        if "loaderId" not in self.call("Page.navigate", url=url):
            return  # the same document
        with self._arrived:
            if not self._arrived.wait_for(lambda: self._loads > before, DEADLINE_S):
                raise AssertionError(f"{url} does not load")

    def press(self, key: str) -> None:
        code = {"Tab": 9, "Enter": 13}[key]
        text = {"Enter": "\r"}.get(key)
        for kind in "keyDown", "keyUp":
            more = {"text": text} if text and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **more)

    def screenshot(self, path: Path, whole: bool = True) -> None:
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"] if whole else 900, "scale": 1}
        image = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(image["data"]))

    def close(self) -> None:
        self._child.kill()
        self._child.wait()
        os.close(self._to)
        shutil.rmtree(self._profile, ignore_errors=True)
