"""Lookups: asks prefixd on a thread of its own, so that the scheduler never waits for it long."""

from __future__ import annotations

import queue
import threading
import time
from array import array
from collections.abc import Callable, Sequence

import numpy as np

import prefixd

from .messages import Tokens

_FRESH_S = 0.5  # an answer older than that is asked for again


def tokens_of(ids: array[int], end: int | None = None) -> Tokens:
    """Returns a copy of the first `end` tokens."""
    return np.frombuffer(ids, np.uint32)[:end].copy()


class Answer:
    """What prefixd has of a request, once it is known."""

    def __init__(self, ids: Sequence[int], ask: Callable[[Answer], prefixd.Match | None]) -> None:
        self.ids = array("I")  # set on the thread
        self.tokens = 0  # that can be restored; valid once known
        self.on_ssd = False
        self.adapter = b""  # digest of the request's LoRA adapter
        self.failed = False
        self.asked_at = time.monotonic()
        self._given: Sequence[int] = ids
        self._ask = ask
        self._known = threading.Event()

    def wait(self, seconds: float) -> bool:
        return self._known.wait(seconds)

    @property
    def age_s(self) -> float:
        return time.monotonic() - self.asked_at

    @property
    def is_old(self) -> bool:
        return self._known.is_set() and self.age_s > _FRESH_S

    def find(self) -> None:
        """Asks. On the thread of lookups."""
        try:
            self.ids, self._given = array("I", self._given), ()  # no long list for gc to walk
            found = self._ask(self)
            if found is None or found.error:
                self.failed = True
            else:
                self.tokens, self.on_ssd = found.restorable_tokens, found.ssd_bytes > 0
        except Exception:
            self.failed = True
            raise
        finally:
            self._known.set()


class Lookups:
    """A queue of answers that are looked for, one after another."""

    def __init__(self, on_error: Callable[[Exception], None]) -> None:
        self._waiting: queue.SimpleQueue[Answer | None] = queue.SimpleQueue()
        self._on_error = on_error
        threading.Thread(target=self._run, name="prefixd-lookups", daemon=True).start()

    def ask(self, answer: Answer) -> Answer:
        self._waiting.put(answer)
        return answer

    def close(self) -> None:
        self._waiting.put(None)

    def _run(self) -> None:
        while (answer := self._waiting.get()) is not None:
            try:
                answer.find()
            except Exception as error:  # the request is computed
                self._on_error(error)
