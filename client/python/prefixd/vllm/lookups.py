"""Lookups: asks prefixd on a thread of its own, so that the scheduler never waits for it long."""

from __future__ import annotations

import queue
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

import prefixd

from .messages import Tokens

_FRESH_S = 0.5  # an answer older than that is asked for again
_MOST_ROUNDS = 8  # of a search for a length that is whole pages


def tokens_of(ids: array[int], end: int | None = None) -> Tokens:
    """Returns a copy of the first `end` tokens."""
    return np.frombuffer(ids, np.uint32)[:end].copy()


@dataclass(frozen=True)
class Question:
    """How much of a request is there, of at most `most` tokens. `cuts_anywhere`: what is there of a
    prefix is there of every shorter one; else the answer is a multiple of `page`."""

    tokens: Tokens
    content: Sequence[prefixd.Content]
    most: int
    page: int
    cuts_anywhere: bool
    deadline_ms: int

    def ask(
        self, spaces: Sequence[prefixd.Space], heard: Callable[[str], None]
    ) -> prefixd.Match | None:
        """Returns what all the spaces have; restorable_tokens is at most what each has of it.
        `heard` is told how each call ended. None: no such length was found in time."""
        if self.cuts_anywhere:
            found = None
            for space in spaces:
                match = self._match(space, self.most, heard)
                if match.error or not match.restorable_tokens:
                    return match
                if found is None or match.restorable_tokens < found.restorable_tokens:
                    found = match
            return found
        most = self.most // self.page * self.page
        for _ in range(_MOST_ROUNDS):
            before = most
            for space in spaces:
                match = self._match(space, most, heard)
                if match.error or not match.restorable_tokens:
                    return match
                most = match.restorable_tokens // self.page * self.page
            if most == match.restorable_tokens and (most == before or len(spaces) == 1):
                return match
        return None

    def _match(
        self, space: prefixd.Space, most: int, heard: Callable[[str], None]
    ) -> prefixd.Match:
        match = space.match(
            self.tokens,
            content=self.content,
            max_cached_tokens=most,
            readable=0,
            deadline_ms=self.deadline_ms,
        )
        heard("" if space.error else match.error)
        return match


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
