"""prefixctl top in a terminal of its own, and the daemon that it watches."""

from __future__ import annotations

import fcntl
import os
import pty
import shutil
import signal
import struct
import subprocess
import tempfile
import termios
import threading
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hosts import Host, Model, Worker
from prefixd_process import BUILD, DEADLINE_S, Process, wait_for
from terminal import Terminal

KEYS = {"enter": b"\r", "esc": b"\x1b", "down": b"\x1bOB", "up": b"\x1bOA", "interrupt": b"\x03"}
INTERVAL = "200ms"


class TopHost(Host):
    """A host with an SSD tier that keeps its arena and its socket's place when it is killed."""

    def __init__(self, folder: Path, *options: str, ram: str = "96MiB") -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.arena = Path("/dev/shm") / f"{folder.parent.name}-{folder.name}"
        self.address = f"unix://{folder / 'prefixd.sock'}"
        command: list[Any] = ["env", "-i", BUILD / "prefixd", f"--socket={folder / 'prefixd.sock'}"]
        command += [f"--arena={self.arena}", f"--ram={ram}", "--log-interval=0s"]
        command += ["--ssd=512MiB", f"--directory={folder / 'ssd'}", "--ssd-floor=0", "--direct-io=off"]
        Process.__init__(self, [*command, *options], folder / "prefixd.log")
        self.wait_for_line("listening on")

    def kill(self) -> None:
        Process.stop(self, signal.SIGKILL)

    def start(self) -> None:
        seen = self.log().count("listening on")
        Process.__init__(self, self.command, self.log_path)
        self.wait_for_line("listening on", seen + 1)


class Top:
    """prefixctl top. What it draws is on `terminal`."""

    def __init__(self, address: str, columns: int, rows: int, *options: str, locale: str = "C.UTF-8") -> None:
        self.terminal = Terminal(columns, rows)
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._ours, self._theirs = pty.openpty()
        self._set_size(columns, rows)
        self.before = termios.tcgetattr(self._theirs)
        environment = {"TERM": "xterm", "LC_ALL": locale}
        command = [BUILD / "prefixctl", f"--server={address}", "top", f"--interval={INTERVAL}", *options]
        self._child = subprocess.Popen(
            list(map(str, command)), stdin=self._theirs, stdout=self._theirs, stderr=self._theirs, env=environment,
            start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _set_size(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def _read(self) -> None:
        try:
            while data := os.read(self._ours, 65536):
                with self._lock:
                    self.terminal.feed(data)
        except OSError:
            pass  # closed
        except BaseException as error:
            self._error = error

    def resize(self, columns: int, rows: int) -> None:
        """As a window does: the kernel tells the program by SIGWINCH."""
        with self._lock:
            self.terminal.resize(columns, rows)
            self._set_size(columns, rows)

    def press(self, key: str) -> None:
        os.write(self._ours, KEYS.get(key, key.encode()))

    def lines(self) -> list[str]:
        if self._error is not None:
            raise self._error
        with self._lock:
            return self.terminal.lines()

    def see(self, what: str, look: Callable[[list[str]], Any]) -> Any:
        """Waits until look() finds it on the screen."""

        def once() -> Any:
            lines = self.lines()
            found = look(lines)
            if not found and self._child.poll() is not None:
                raise AssertionError(f"top ended with {self._child.returncode} without {what}:\n" + "\n".join(lines))
            return found

        try:
            return wait_for(what, once)
        except TimeoutError as error:
            raise AssertionError(f"{error}:\n" + "\n".join(self.lines())) from None

    def shows(self, text: str) -> list[str]:
        return self.see(repr(text), lambda lines: any(text in line for line in lines) and lines)

    def send(self, which: signal.Signals) -> None:
        self._child.send_signal(which)

    def wait(self) -> int:
        return self._child.wait(DEADLINE_S)

    def after(self) -> list[Any]:
        return termios.tcgetattr(self._theirs)

    def drained(self) -> None:
        """Until all that it wrote before it ended has been read."""
        os.write(self._theirs, b"\x1b[8;99H\x00~")
        wait_for("the end of the output", lambda: self.terminal._last == "~")

    def close(self) -> None:
        if self._child.poll() is None:
            self._child.kill()
            self._child.wait()
        os.close(self._theirs)
        self._reader.join(DEADLINE_S)  # reading ends with the last writer
        os.close(self._ours)


class TopTest(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="prefixd_top_"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def host(self, *options: str, **more: Any) -> TopHost:
        host = TopHost(self.folder / "host", *options, **more)
        self.addCleanup(host.stop)
        return host

    def worker(self, host: Host, name: str = "a model") -> Worker:
        worker = Worker(host, model=Model(name=name))
        self.addCleanup(worker.close)
        return worker

    def top(self, address: str, columns: int = 80, rows: int = 24, *options: str, **more: Any) -> Top:
        top = Top(address, columns, rows, *options, **more)
        self.addCleanup(top.close)
        return top
