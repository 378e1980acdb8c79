"""One llama-server each, alone, behind hearth and behind prefixd-llama, asked the same conversations."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import signal
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefixd_process import Daemon, Process, wait_for
from servers import Http, LlamaServer, Proxy

CONTEXT = 8192
Messages = list[dict[str, str]]


@dataclass
class Said:
    ms: float  # from the request to the end of the answer
    text: str
    cached: int  # as the server says
    computed: int


class System:
    """A server with one slot, and what stands before it. The folder is on a disk."""

    name = "llama-server alone"

    def __init__(self, folder: Path, model: Path, **kind: str):
        self.folder = folder / self.name.replace(" ", "-")
        self.folder.mkdir(parents=True)
        self.model, self.kind = model, kind
        self.processes: list[Process] = []
        self.front: Http | None = None
        self.start()

    @property
    def slot_folder(self) -> Path:
        return self.folder

    def start_server(self) -> LlamaServer:
        server = LlamaServer(self.folder, self.model, self.slot_folder, context=CONTEXT, **self.kind)
        self.processes.append(server)
        return server

    def start(self) -> None:
        """Or start again, with what was stored."""
        self.start_front()

    def start_front(self) -> None:
        self.front = self.start_server()

    def another(self) -> System:
        """Another server, with what this one has stored."""
        other = copy.copy(self)
        other.processes = []
        other.start_front()
        self.processes += other.processes
        return other

    def remove(self) -> None:
        self.kill()

    def kill(self) -> None:
        for process in reversed(self.processes):
            process.stop(signal.SIGKILL)
        self.processes.clear()

    def ask(self, messages: Messages, tokens: int) -> Said:
        body = {"messages": messages, "max_tokens": tokens, "temperature": 0}
        begin = time.perf_counter()
        answer = self.front.post("/v1/chat/completions", body)
        ms = (time.perf_counter() - begin) * 1000
        if answer.status != 200:
            raise AssertionError(f"{self.name}: {answer.status} {answer.text}")
        return Said(ms, answer.text, answer.cached, answer.computed)

    def settle(self) -> None:
        """Waits for what goes on after answers."""

    def bytes_on_disk(self) -> int:
        return 0


class Hearth(System):
    name = "hearth"

    def __init__(self, folder: Path, model: Path, **kind: str):
        self.conversations: set[str] = set()  # each with its answer has a snapshot
        super().__init__(folder, model, **kind)

    @property
    def slot_folder(self) -> Path:
        return self.folder / "cache"

    def start_front(self) -> None:
        self.slot_folder.mkdir(exist_ok=True)
        server = self.start_server()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command: list[Any] = [sys.executable, "-m", "hearth", "serve", f"--port={port}"]
        command += [f"--upstream=http://127.0.0.1:{server.port}", f"--cache-dir={self.slot_folder}"]
        self.processes.append(Process(command, self.folder / f"hearth-{port}.log"))
        self.front = Http()
        self.front.port = port
        wait_for("hearth to serve", self._serves)

    def _serves(self) -> bool:
        try:
            return "requests" in json.loads(self.front.get("/hearth/stats"))
        except OSError:
            return False

    def ask(self, messages: Messages, tokens: int) -> Said:
        said = super().ask(messages, tokens)
        self.conversations.add(json.dumps([messages, said.text]))
        return said

    def settle(self) -> None:
        def saved() -> bool:
            stats = json.loads(self.front.get("/hearth/stats"))
            return stats["snapshots"] == len(self.conversations)

        wait_for("hearth to save its snapshots", saved)

    def bytes_on_disk(self) -> int:
        return sum(file.stat().st_size for file in self.slot_folder.glob("*.kv"))


class Prefixd(System):
    name = "prefixd"

    def __init__(self, folder: Path, model: Path, **kind: str):
        self.states = Path(f"/dev/shm/prefixd-bench-llama-{os.getpid()}")
        self.states.mkdir()
        super().__init__(folder, model, **kind)

    @property
    def slot_folder(self) -> Path:
        return self.states

    def start(self) -> None:
        self.daemon = Daemon(self.folder / "daemon")
        self.processes.append(self.daemon)
        self.start_front()

    def start_front(self) -> None:
        server = self.start_server()
        self.front = Proxy(self.folder, [server], self.states, self.daemon.address)
        self.processes.append(self.front)

    def remove(self) -> None:
        super().remove()
        self.daemon.lose_arena()
        shutil.rmtree(self.states, ignore_errors=True)

    def settle(self) -> None:
        wait_for("the slot to be saved", self._idle)
        self.daemon.control("flush")

    def _idle(self) -> bool:
        return 'slots{state="busy"} 0' in self.front.get("/metrics")

    def bytes_on_disk(self) -> int:
        self.settle()
        folder = self.folder / "daemon" / "ssd"
        return sum(file.stat().st_blocks * 512 for file in folder.rglob("*") if file.is_file())

    def log_ends_here(self) -> None:
        self.seen = len(self.front.log())

    def restores(self) -> list[float]:
        """How long each restore since then took, from the lookup to the loaded slot, in ms."""
        parts = r"looked up in ([\d.]+) ms, written in ([\d.]+), loaded by the server in ([\d.]+)"
        found = re.findall(parts, self.front.log()[self.seen :])
        return [sum(map(float, each)) for each in found]

    def load_own_file(self) -> float:
        """How long the server takes to load what it saves of its slot, in ms."""
        server = next(each for each in self.processes if isinstance(each, LlamaServer))
        name = {"filename": "own.bin"}
        if server.post("/slots/0?action=save", name).status != 200:
            raise AssertionError("the server saved nothing")
        begin = time.perf_counter()
        if server.post("/slots/0?action=restore", name).status != 200:
            raise AssertionError("the server restored nothing")
        return (time.perf_counter() - begin) * 1000
