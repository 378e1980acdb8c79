"""prefixd and other servers as processes of their own, in a folder of their own. No sleeps:
whatever is waited for is asked for, until a deadline that a busy machine keeps."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

DEADLINE_S = float(os.environ.get("PREFIXD_TEST_DEADLINE_S", "120"))
T = TypeVar("T")
# No proxy between processes of one machine.
open_url = urllib.request.build_opener(urllib.request.ProxyHandler({})).open

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

    @property
    def pid(self) -> int:
        return self._child.pid

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

    def __init__(
        self, folder: Path, ram: str = "256MiB", ssd: str = "512MiB", flags: Sequence[str] = ()
    ):
        folder.mkdir(parents=True, exist_ok=True)
        socket = folder / "prefixd.sock"
        self.arena = Path("/dev/shm") / f"{folder.parent.name}-{folder.name}"
        self.address = f"unix://{socket}"
        command = [
            BUILD / "prefixd",
            f"--socket={socket}",
            f"--directory={folder / 'ssd'}",
            f"--arena={self.arena}",
            f"--ram={ram}",
            f"--ssd={ssd}",
            "--ssd-floor=0",
            "--direct-io=off",
            "--log-interval=0s",
            *flags,
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
