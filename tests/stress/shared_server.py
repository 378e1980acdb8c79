"""The Redis server that hosts share, and what befalls it in a story."""

from __future__ import annotations

import random
import shutil
import signal
from collections import Counter
from pathlib import Path

from servers import Server

# What prefixd counts of it, as the end of a run shows it.
TOLD = ("tokens_found", "pages_loaded", "blocks_written", "late", "down", "gone", "failed", "no_room")


class SharedServer:
    @staticmethod
    def possible() -> bool:
        return shutil.which("redis-server") is not None

    def __init__(self, folder: Path, maxmemory: str) -> None:
        self.key = folder / "remote.key"
        self.key.write_bytes(random.Random(str(folder)).randbytes(32))
        self.key.chmod(0o600)
        self._server = Server(folder / "redis", "--maxmemory", maxmemory, "--maxmemory-policy", "allkeys-lru")
        self._hangs = False
        self._told: Counter[str] = Counter()

    def options(self) -> list[str]:
        return [f"--remote={self._server.url}", f"--remote-key-file={self.key}", "--remote-write-rate=off"]

    def kill(self) -> None:
        self._hangs = False
        self._server.stop(signal.SIGKILL)

    def hang(self) -> None:
        if not self._server.ended() and not self._hangs:
            self._server.hang()
            self._hangs = True

    def start(self) -> None:
        """Whatever befell it before."""
        if self._server.ended():
            self._server.start()
        if self._hangs:
            self._server.go_on()
            self._hangs = False

    def empty(self) -> None:
        self.start()
        with self._server.connect() as redis:
            redis("FLUSHALL")

    def since(self, counters: dict[str, int]) -> dict[str, int]:
        """What was counted since the last call, by the daemons that lived meanwhile."""
        named = {f"remote.{name}" for name in TOLD} | {name for name in counters if name.startswith("remote.bad.")}
        now = Counter({name: counters.get(name, 0) for name in named})
        if any(now[name] < self._told[name] for name in named):  # another life
            self._told.clear()
        new = {name: now[name] - self._told[name] for name in named if now[name] > self._told[name]}
        self._told = now
        return new

    def end(self) -> None:
        self._server.stop()
