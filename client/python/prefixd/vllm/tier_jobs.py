"""Jobs: vLLM's transfers of chunks, done on threads and reported when they are finished."""

from __future__ import annotations

import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

log = logging.getLogger("vllm.prefixd")

Transfer = Callable[[bytes, int, float], bool]
"""Moves the chunk of a key to or from a place in memory, by a time of time.monotonic(). Returns
whether it did."""


@dataclass(frozen=True)
class Finished:
    job_id: int
    is_load: bool
    done: Sequence[bytes]  # keys, in the order of the job
    failed: Sequence[bytes]
    seconds: float


class _Job:
    """One job, on which several threads work. They take its keys in their order: if time runs out,
    what is there is the beginning of a prompt."""

    def __init__(
        self, job_id: int, is_load: bool, keys: Sequence[bytes], places: Sequence[int], until: float
    ) -> None:
        self.job_id, self.is_load, self.until = job_id, is_load, until
        self.keys, self.places = keys, places
        self.done = [False] * len(keys)
        self.next = itertools.count()
        self.working = 0
        self.began = 0.0


class Jobs:
    """submit(), finished() and drain() from one thread. A job ends by its deadline, well or not."""

    def __init__(self, load: Transfer, store: Transfer, threads: int) -> None:
        self._transfer = {True: load, False: store}
        self._pool = {
            is_load: ThreadPoolExecutor(threads, f"prefixd-{what}")
            for is_load, what in ((True, "loads"), (False, "stores"))
        }
        self._threads = threads
        self._finished: queue.SimpleQueue[Finished] = queue.SimpleQueue()
        self._idle = threading.Condition()
        self._unfinished = 0

    def submit(
        self,
        job_id: int,
        is_load: bool,
        keys: Sequence[bytes],
        places: Sequence[int],
        deadline_ms: int,
    ) -> None:
        until = time.monotonic() + deadline_ms / 1000
        job = _Job(job_id, is_load, keys, places, until)
        job.working = max(min(self._threads, len(keys)), 1)
        with self._idle:
            self._unfinished += 1
        for _ in range(job.working):
            self._pool[is_load].submit(self._work, job)

    def finished(self) -> list[Finished]:
        """Returns the jobs that ended since the last call."""
        ended = []
        while not self._finished.empty():
            ended.append(self._finished.get())
        return ended

    def drain(self) -> None:
        """Waits until every job has ended."""
        with self._idle:
            self._idle.wait_for(lambda: self._unfinished == 0)

    def end(self) -> None:
        """Waits until every job has ended, and its threads."""
        for pool in self._pool.values():
            pool.shutdown()

    def _work(self, job: _Job) -> None:
        job.began = job.began or time.monotonic()
        while (at := next(job.next)) < len(job.keys):
            job.done[at] = self._moved(job, at)
        with self._idle:
            job.working -= 1
            if job.working:
                return
            self._finished.put(_report(job))
            self._unfinished -= 1
            self._idle.notify_all()

    def _moved(self, job: _Job, at: int) -> bool:
        if time.monotonic() >= job.until:
            return False
        try:
            return self._transfer[job.is_load](job.keys[at], job.places[at], job.until)
        except Exception as error:  # vLLM computes the chunk, or offers it again
            log.warning("a chunk was not moved: %s: %s", type(error).__name__, error)
            return False


def _report(job: _Job) -> Finished:
    done = tuple(itertools.compress(job.keys, job.done))
    failed = tuple(key for key, moved in zip(job.keys, job.done, strict=True) if not moved)
    return Finished(job.job_id, job.is_load, done, failed, time.monotonic() - job.began)
