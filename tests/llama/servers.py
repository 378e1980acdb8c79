"""llama-servers and prefixd-llama as processes of their own, beside prefixd."""

from __future__ import annotations

import itertools
import json
import shutil
import sys
import tempfile
import unittest
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import make_gguf
from prefixd_process import BUILD, DEADLINE_S, Daemon, Process, open_url, wait_for

DATA = Path(__file__).resolve().parents[1] / "data"
_numbers = itertools.count(1)


def text(begin: int, count: int) -> str:
    """So many bytes of the corpus; one byte is one token."""
    with (DATA / "corpus" / "kjv_sample.txt").open("rb") as corpus:
        corpus.seek(begin)
        return corpus.read(count).decode("ascii")


@dataclass
class Answer:
    status: int
    text: str
    cached: int  # as the server itself says
    computed: int
    headers: dict[str, str] = field(default_factory=dict)
    body: dict[str, Any] = field(default_factory=dict)

    @property
    def request_id(self) -> str:
        return self.headers["X-Prefixd-Request-Id"]

    @property
    def promised(self) -> int:
        return int(self.headers["X-Prefixd-Cached-Tokens"])


class Http:
    """What answers HTTP at a port."""

    port: int

    def post(
        self,
        path: str,
        body: dict[str, Any],
        deadline_s: float = DEADLINE_S,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> Answer:
        asked = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            json.dumps(body).encode(),
            {"Content-Type": "application/json", **headers},
        )
        try:
            with open_url(asked, timeout=deadline_s) as reply:
                sent, status, answer = dict(reply.headers), reply.status, json.load(reply)
        except urllib.error.HTTPError as error:
            return Answer(error.code, error.read().decode(), 0, 0, dict(error.headers))
        if not isinstance(answer, dict):
            return Answer(status, "", 0, 0, sent, {"answers": answer})
        timings = answer.get("timings", {})
        choices = answer.get("choices", [{}])
        said = answer.get("content", choices[0].get("message", {}).get("content", ""))
        return Answer(
            status, said, timings.get("cache_n", 0), timings.get("prompt_n", 0), sent, answer
        )

    def get(self, path: str) -> str:
        with open_url(f"http://127.0.0.1:{self.port}{path}", timeout=DEADLINE_S) as reply:
            return reply.read().decode()

    def complete(self, prompt: str | list[int], count: int = 8, **more: Any) -> Answer:
        body = {"prompt": prompt, "n_predict": count, "temperature": 0, **more}
        return self.post("/completion", body)


class LlamaServer(Process, Http):
    def __init__(self, folder: Path, model: Path, slot_folder: Path, port: int = 0, **options: Any):
        command = [sys.executable, Path(__file__).with_name("plain_server.py"), model, slot_folder]
        command += [port, json.dumps(options)]
        super().__init__(command, folder / f"llama-{next(_numbers)}.log")
        self.port = int(self.wait_for_line(r"listening on http://[^:]+:(\d+)").group(1))
        wait_for("llama-server to serve", self._serves)

    def _serves(self) -> bool:
        if self.ended():
            raise AssertionError(f"llama-server ended:\n{self.log()}")
        try:
            return json.loads(self.get("/health"))["status"] == "ok"
        except OSError:
            return False


class Proxy(Process, Http):
    def __init__(
        self, folder: Path, servers: list[LlamaServer], slot_folder: Path, prefixd: str, *more: str
    ):
        command: list[Any] = [BUILD / "prefixd-llama", "--listen=127.0.0.1:0"]
        command += [f"--slot-folder={slot_folder}", f"--prefixd={prefixd}", *more]
        command += [f"--server=http://127.0.0.1:{server.port}" for server in servers]
        super().__init__(command, folder / f"proxy-{next(_numbers)}.log")
        self.port = int(self.wait_for_line(r"ready on port (\d+)").group(1))

    def count(self, name: str) -> int:
        for line in self.get("/metrics").splitlines():
            if line.startswith(f"prefixd_llama_{name}_total "):
                return int(line.split()[1])
        raise AssertionError(f"no count {name}")


class LlamaTest(unittest.TestCase):
    """A folder with a model, a daemon, and a tmpfs folder for states."""

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = Path(tempfile.mkdtemp(prefix="prefixd_llama_"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, True)
        cls.model = cls.folder / "bible.gguf"
        make_gguf.write(DATA / "model", cls.model)

    def setUp(self) -> None:
        self.home = Path(tempfile.mkdtemp(dir=self.folder))
        self.states = Path(tempfile.mkdtemp(prefix="prefixd_llama_", dir="/dev/shm"))
        self.addCleanup(shutil.rmtree, self.states, True)
        self.daemon = self.start_daemon()

    def start_daemon(self) -> Daemon:
        daemon = Daemon(self.home / "prefixd")
        self.addCleanup(daemon.lose_arena)
        self.addCleanup(daemon.stop)
        return daemon

    def start_server(self, port: int = 0, model: Path | None = None, **options: Any) -> LlamaServer:
        server = LlamaServer(self.home, model or self.model, self.states, port, **options)
        self.addCleanup(server.stop)
        return server

    def start_proxy(self, *servers: LlamaServer, more: tuple[str, ...] = ()) -> Proxy:
        proxy = Proxy(self.home, list(servers), self.states, self.daemon.address, *more)
        self.addCleanup(proxy.stop)
        return proxy

    def stored_tokens(self) -> int:
        return sum(space["stored_tokens"] for space in self.daemon.control("stats")["spaces"])

    def wait_until_stored(self, tokens: int) -> None:
        """A slot is saved after its answer, and stored in the background."""
        wait_for(f"{tokens} stored tokens", lambda: self.stored_tokens() >= tokens)
