"""prefixd and mlx_lm servers as processes of their own, in a folder of their own. No sleeps:
whatever is waited for is asked for, until a deadline that a busy machine keeps."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tiny_model import tokens as tokens_of
from tiny_model import words

DEADLINE_S = float(os.environ.get("PREFIXD_TEST_DEADLINE_S", "120"))
T = TypeVar("T")
# No proxy between processes of one machine.
_open_url = urllib.request.build_opener(urllib.request.ProxyHandler({})).open

BUILD = Path(os.environ.get("PREFIXD_BUILD", Path(__file__).resolve().parents[2] / "build"))


def wait_for(
    what: str, look: Callable[[], T | None], deadline_s: float = DEADLINE_S, tick_s: float = 0.02
) -> T:
    """The first answer of look() that is not None or False."""
    tick = threading.Event()
    end = time.monotonic() + deadline_s
    while True:
        found = look()
        if found is not None and found is not False:
            return found
        if time.monotonic() > end:
            raise TimeoutError(f"waited {deadline_s} s for {what}")
        tick.wait(tick_s)


class Process:
    """A child whose output goes to a file, and who never outlives the test."""

    def __init__(self, command: Sequence[Any], log: Path):
        self.log_path = log
        self.command = list(map(str, command))
        with log.open("ab") as out:
            self._child = subprocess.Popen(
                self.command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
            )

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def wait_for_line(self, pattern: str, seen: int = 1) -> re.Match[str]:
        """The `seen`-th match of the pattern in the log."""

        def look() -> re.Match[str] | None:
            matches = list(re.finditer(pattern, self.log()))
            if len(matches) >= seen:
                return matches[seen - 1]
            if self.ended():
                raise AssertionError(f"{self.command} ended:\n{self.log()}")
            return None

        return wait_for(f"{pattern!r} in {self.log_path}", look)

    def ended(self) -> bool:
        return self._child.poll() is not None

    def send(self, which: signal.Signals) -> None:
        self._child.send_signal(which)

    def hang(self) -> None:
        """Stops it where it is; until it gets SIGCONT it answers nothing."""
        self.send(signal.SIGSTOP)
        os.waitpid(self._child.pid, os.WUNTRACED)  # until it stands still

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self._child.poll() is None:
            self._child.send_signal(how)
            try:
                self._child.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait()


class Daemon(Process):
    """prefixd with its SSD tier in `folder`, its RAM on the tmpfs. One folder, one daemon after
    another."""

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        socket = folder / "prefixd.sock"
        self.arena = Path("/dev/shm") / f"{folder.parent.name}-{folder.name}"
        self.address = f"unix://{socket}"
        command = [
            BUILD / "prefixd",
            f"--socket={socket}",
            f"--directory={folder / 'ssd'}",
            f"--arena={self.arena}",
            "--ram=256MiB",
            "--ssd=512MiB",
            "--ssd-floor=0",
            "--direct-io=off",
            "--log-interval=0s",
        ]
        super().__init__(command, folder / "prefixd.log")
        wait_for("prefixd to serve", self._serves)

    def _serves(self) -> bool:
        if self.ended():
            raise AssertionError(f"prefixd ended:\n{self.log()}")
        return self.control("status") is not None

    def control(self, *arguments: str) -> Any | None:
        """What prefixctl answers; None where prefixd does not."""
        command = [str(BUILD / "prefixctl"), f"--server={self.address}", "--json", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def lose_arena(self) -> None:
        """As after a reboot: what it held is on the SSD alone. Not while it runs."""
        self.arena.unlink(missing_ok=True)
        self.arena.with_name(self.arena.name + ".key").unlink(missing_ok=True)
        shutil.rmtree(self.arena.with_name(self.arena.name + ".locks"), ignore_errors=True)

    def wait_for_sessions(self, count: int) -> None:
        """Workers come back by themselves, in their own time."""
        wait_for(f"{count} sessions", lambda: self.control("stats")["sessions"] == count)


@dataclass(frozen=True)
class Answer:
    tokens: list[int]
    prompt_tokens: int
    cached_tokens: int


_SMALLEST = {"prompt": words([0]), "max_tokens": 1}


class Server(Process):
    """An mlx_lm server of its own process: with prefixd, or the engine alone (daemon None).

    One that starts without a model loads whichever a request names (load())."""

    def __init__(
        self,
        folder: Path,
        name: str,
        model: Path | None,
        flags: Sequence[str] = (),
        daemon_address: str | None = None,
    ):
        command = [sys.executable]
        if daemon_address is None:
            command += [str(Path(__file__).with_name("plain_server.py"))]
        else:
            command += ["-m", "prefixd.mlx.server", f"--prefixd={daemon_address}"]
            command += [f"--prefixd-name={name}", "--prefixd-deadline-ms=30000"]
        command += ["--port=0", *flags]
        if model is not None:
            command.append(f"--model={model}")
        super().__init__(command, folder / f"{name}.log")
        self._model: dict[str, str] = {}  # what a request says of it
        self._with_prefixd = daemon_address is not None

    def load(self, model: Path) -> None:
        """Every request from now on is for this model. Returns once prefixd has it open, too."""
        self._model = {"model": str(model)}
        self._ask("/v1/completions", _SMALLEST)
        if self._with_prefixd:
            self._wait_until_open()

    def wait_until_shared(self) -> None:
        """A server goes on by itself once prefixd is back, and its answers say so."""
        wait_for(f"{self.log_path.stem} to share", self._shares)

    def _shares(self) -> bool:
        with self._reply("/v1/completions", _SMALLEST) as reply:
            return reply.headers["X-Prefixd"] == "shared"

    def complete(
        self, prompt: list[int], max_tokens: int, settle: bool = True, opened: bool = True
    ) -> Answer:
        """Greedy, once the model is `opened`, and until what is saved of it is saved."""
        body = {"prompt": words(prompt), "max_tokens": max_tokens}
        answer = self._post("/v1/completions", body, settle, opened)
        return self._read(answer, answer["choices"][0]["text"])

    def chat(self, messages: list[dict[str, str]], max_tokens: int) -> Answer:
        answer = self._post(
            "/v1/chat/completions", {"messages": messages, "max_tokens": max_tokens}
        )
        return self._read(answer, answer["choices"][0]["message"]["content"])

    def stores(self) -> int:
        return len(re.findall(r"cache_store tokens=", self.log()))

    def wait_for_store(self, tokens: int, after: int) -> None:
        """A server answers before it saves: until it saved that many, `after` that many saves."""
        wait_for(
            f"{self.log_path.stem} to save {tokens} tokens",
            lambda: any(
                int(found) == tokens
                for found in re.findall(r"cache_store tokens=(\d+)", self.log())[after:]
            ),
        )

    def url(self) -> str:
        return self.wait_for_line(r"listening on (http://\S+)").group(1)

    def _post(
        self, path: str, body: dict[str, Any], settle: bool = True, opened: bool = True
    ) -> dict[str, Any]:
        if self._with_prefixd and opened:
            self._wait_until_open()
        before = self.stores()
        answer = self._ask(path, body)
        if self._with_prefixd and settle:
            self.wait_for_store(answer["usage"]["total_tokens"], before)
        return answer

    def _ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        with self._reply(path, body) as reply:
            return json.loads(reply.read())

    def _reply(self, path: str, body: dict[str, Any]) -> Any:
        asked = json.dumps({**body, **self._model}).encode()
        request = urllib.request.Request(self.url() + path, asked)
        return _open_url(request, timeout=DEADLINE_S)

    def _wait_until_open(self) -> None:
        opened = r"prefixd (holds|does not hold) caches of "
        if self._model:  # else it is the one that the server began with
            opened += re.escape(Path(self._model["model"]).name) + r"(?![\w-])"
        self.wait_for_line(opened)

    @staticmethod
    def _read(answer: dict[str, Any], text: str) -> Answer:
        usage = answer["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return Answer(tokens_of(text), usage["prompt_tokens"], cached)
