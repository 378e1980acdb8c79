"""A daemon, and models on disk, for all tests of a class."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

import models
import prefixd
import prefixd.transformers
import torch
from prefixd.transformers import Options, PrefixCache
from prefixd_process import DEADLINE_S, Daemon
from transformers.utils import logging as transformers_logging

torch.set_num_threads(1)  # two spin for each other on a busy machine
transformers_logging.disable_progress_bar()
LATE_MS = 30_000  # a deadline that a busy machine keeps


class Child:
    """A Python program that answers each line of its input by a line, both of JSON."""

    def __init__(self, program: Path | str, *arguments: Any) -> None:
        command = [sys.executable, "-W", "ignore", *map(str, (program, *arguments))]
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def tell(self, *call: Any) -> None:
        assert self._child.stdin
        self._child.stdin.write(json.dumps(call) + "\n")
        self._child.stdin.flush()

    def hear(self) -> Any:
        assert self._child.stdout
        line = self._child.stdout.readline()
        assert line, f"{self._child.args} ended with {self._child.wait()}"
        return json.loads(line)

    def ask(self, *call: Any) -> Any:
        self.tell(*call)
        return self.hear()

    def end(self) -> None:
        """Closes its input and waits until it has ended. May be called again."""
        if self._child.poll() is None:
            self._child.communicate(timeout=DEADLINE_S)


class TransformersTest(unittest.TestCase):
    device = "cpu"

    @classmethod
    def setUpClass(cls) -> None:
        temp = tempfile.TemporaryDirectory(prefix="prefixd-transformers-")
        cls.addClassCleanup(temp.cleanup)
        cls.folder = Path(temp.name)
        cls.start_daemon()
        cls.addClassCleanup(lambda: cls.daemon.lose_arena())
        cls.addClassCleanup(lambda: cls.daemon.stop())

    @classmethod
    def start_daemon(cls) -> None:
        cls.daemon = Daemon(cls.folder / "daemon")

    @classmethod
    def path(cls, name: str) -> Path:
        folder = cls.folder / name
        return folder if folder.exists() else models.write_model(folder, name)

    @classmethod
    def load(cls, name: str, dtype: torch.dtype = torch.float32, **more: Any) -> Any:
        return models.load(cls.path(name), dtype, **more).to(cls.device)

    def client(self) -> prefixd.Client:
        client = prefixd.connect(self.daemon.address)
        self.addCleanup(client.close)
        return client

    def shared(
        self,
        model: Any,
        client: prefixd.Client | None = None,
        tokenizer: Any = None,
        **more: Any,
    ) -> PrefixCache:
        """A PrefixCache as another process would have it: with a session of its own."""
        settings = {
            "deadline_ms": LATE_MS,
            "load_deadline_ms": LATE_MS,
            "store_deadline_ms": LATE_MS,
        }
        options = Options(**{**settings, **more})
        shared = PrefixCache(client or self.client(), model, tokenizer, options=options)
        self.assertEqual(shared.why_not, "")
        return shared

    def printed_by(self, *command: Any) -> str:
        """What a process of its own printed, which must end well."""
        done = subprocess.run(
            [*map(str, command)], capture_output=True, text=True, timeout=DEADLINE_S
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def ask(self, shared: PrefixCache, ids: list[int], count: int) -> tuple[list[int], int, int]:
        """The whole sequence, the cached tokens and the stored ones."""
        before = shared.cached_tokens, shared.stored_tokens
        out = models.generate(shared.model, ids, count, shared.fetch(ids))
        whole = out.sequences[0].tolist()
        shared.store(whole, out.past_key_values)
        return whole, shared.cached_tokens - before[0], shared.stored_tokens - before[1]

    def daemon_stored(self) -> int:
        """Tokens that the daemon has taken, from all workers."""
        return sum(one["stored_tokens"] for one in self.daemon.control("stats")["spaces"])


logging.getLogger("prefixd").addHandler(logging.NullHandler())
