"""Engines of vLLM in processes of their own, beside prefixd."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import tempfile
import unittest
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import engine
from prefixd_process import Daemon, wait_for

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "tests/data/model"
TEXT = (ROOT / "tests/data/corpus/kjv_sample.txt").read_bytes()
PAGE = 128  # tokens of vLLM's pages on the CPU

# Engines are forked from a process that has imported vLLM, which takes most of their start.
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["engine"])


def prompt(begin: int, count: int) -> list[int]:
    """A piece of the text; a token is a byte."""
    return list(TEXT[begin : begin + count])


def most(tokens: int) -> int:
    """Tokens of a prompt that can come from a cache: whole pages, but not the last token."""
    return (tokens - 1) // PAGE * PAGE


class DaemonTest(unittest.TestCase):
    """A folder and a prefixd in it, for all tests of a class."""

    @classmethod
    def setUpClass(cls) -> None:
        scratch = tempfile.TemporaryDirectory(prefix="vllm-")
        cls.addClassCleanup(scratch.cleanup)
        cls.folder = Path(scratch.name)
        cls.start_daemon()
        cls.addClassCleanup(lambda: cls.daemon.lose_arena())
        cls.addClassCleanup(lambda: cls.daemon.stop(signal.SIGKILL))

    @classmethod
    def start_daemon(cls) -> None:
        cls.daemon = Daemon(cls.folder / "d")


@dataclass(frozen=True)
class Answer:
    tokens: list[list[int]]
    logprobs: list[list[float]]
    reasons: list[str]
    cached: int


class Counts(NamedTuple):
    """Of an engine, since it began."""

    hits: int = 0
    preemptions: int = 0


@dataclass(frozen=True)
class Answers:
    each: list[Answer]
    seconds: float
    external_hits: int
    preemptions: int

    def __getitem__(self, index: int) -> Answer:
        return self.each[index]


class Engine:
    """A vLLM engine of its own process: with prefixd, or alone (address None)."""

    def __init__(
        self,
        folder: Path,
        name: str,
        address: str | None,
        *,
        module: str = "prefixd.vllm",
        extra: dict[str, Any] | None = None,
        environment: dict[str, str] | None = None,
        one_process: bool = False,
        **settings: Any,
    ):
        """`one_process`: its scheduler and its worker are not processes of their own, as they are
        by default; it starts in half the time."""
        said: dict[str, Any] = {"model": str(MODEL), "dtype": "float32", "max_model_len": 4096}
        if address is not None:
            said["kv_transfer_config"] = {
                "kv_connector": "PrefixdConnector",
                "kv_connector_module_path": module,
                "kv_role": "kv_both",
                "kv_load_failure_policy": "recompute",
                "kv_connector_extra_config": {"address": address, "name": name, **(extra or {})},
            }
        self.log_path = folder / f"{name}.log"
        self._shares = address is not None
        self._counts = Counts()
        several = {"VLLM_ENABLE_V1_MULTIPROCESSING": str(int(not one_process))}
        self._line, its_end = _PROCESSES.Pipe()
        arguments = ({**said, **settings}, {**(environment or {}), **several}, self.log_path, its_end)
        self._child = _PROCESSES.Process(target=engine.run, args=arguments)
        self._child.start()
        its_end.close()

    @property
    def pid(self) -> int:
        """Of its first process; all of them have a session of their own."""
        assert self._child.pid is not None
        return self._child.pid

    def wait_until_shared(self) -> None:
        """Until it runs, and both its sides have opened the space."""
        self._read()
        if self._shares:
            wait_for("both sides to share", lambda: self.log().count("prefixd holds caches") > 1)

    def ask(self, *prompts: list[int], max_tokens: int = 8, **more: Any) -> Answers:
        self._line.send({"prompts": prompts, "max_tokens": max_tokens, **more})
        said = self._read()
        each = [Answer(**answer) for answer in said.pop("answers")]
        now = Counts(said.pop("external_hits"), said.pop("preemptions"))
        before, self._counts = self._counts, now
        hits, preemptions = now.hits - before.hits, now.preemptions - before.preemptions
        return Answers(each, external_hits=hits, preemptions=preemptions, **said)

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def end(self) -> None:
        """As at the end of a program. Processes that are killed leave shared memory behind."""
        self._line.close()
        self._child.join(30)
        self.kill()

    def kill(self) -> None:
        """All of its processes at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._child.kill()  # it may have had no session of its own yet
        self._child.join()
        self._line.close()

    def _read(self) -> dict[str, Any]:
        try:
            return self._line.recv()
        except (EOFError, ConnectionError):
            raise AssertionError(f"the engine ended:\n{self.log()[-4000:]}") from None


def off_where_parted(answer: Answer, expected: Answer) -> float:
    """How much the log probability of the first token that is another differs from that of the
    token expected there; 0 where all are the same."""
    off_by = 0.0
    for tokens, logprobs in zip(answer.tokens, answer.logprobs, strict=True):
        for at, (one, other) in enumerate(zip(tokens, expected.tokens[0], strict=False)):
            if one != other:
                off_by = max(off_by, abs(logprobs[at] - expected.logprobs[0][at]))
                break
    return off_by


def assert_as_alone(
    test: unittest.TestCase, answer: Answer, expected: Answer, off_by: float = 1e-3
) -> None:
    """Tokens are those of an engine alone. vLLM's own numbers depend a little on what is computed
    together, so answers may part where two tokens are nearly as likely."""
    test.assertLessEqual(off_where_parted(answer, expected), off_by)


def wait_for_tokens(daemon: Daemon, count: int) -> None:
    """Engines answer before they save: until prefixd has so many tokens."""
    wait_for(f"{count} tokens", lambda: stored_tokens(daemon) >= count)


def stored_tokens(daemon: Daemon) -> int:
    """Those that prefixd has now, in all spaces."""
    stats = daemon.control("stats")
    assert stats is not None
    return sum(space["stored_tokens"] for space in stats["spaces"])
