"""Watching: looks sequences up again that prefixd had, beside the requests, to find out which of
their blocks are gone."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from .messages import Prompt

log = logging.getLogger("vllm.prefixd")

ROUND_S = 10.0  # in which each sequence is looked up once
_MOST_A_SECOND = 50  # look-ups: with more sequences than in ROUND_S, a round takes longer
_MOST_TOKENS = 4 << 20  # of all sequences that are watched: 16 MiB


@dataclass(frozen=True)
class Watched:
    """What prefixd had of a sequence, and vLLM's hashes of its blocks."""

    prompt: Prompt
    hashes: tuple[Any, ...]
    at: float = field(default_factory=time.monotonic)  # when it was known to be there


class Sequences:
    """The sequences that are watched. add() and take_gone() come from the scheduler's thread and
    take no time in proportion to a sequence; due() and still() come from another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._added: list[Watched] = []
        self._gone: list[list[Any]] = []
        # Only the other thread uses these:
        self._by_end: OrderedDict[Any, Watched] = OrderedDict()  # least lately known first
        self._uses: Counter[Any] = Counter()  # sequences that have a block
        self._tokens = 0

    def add(self, one: Watched) -> None:
        """A sequence replaces those that it goes on from. The oldest ones are forgotten if they are
        too many; their blocks are not looked at any more."""
        with self._lock:
            self._added.append(one)

    def due(self, before: float) -> Watched | None:
        """Returns the sequence that was known to be there longest ago, if that was earlier."""
        with self._lock:
            added, self._added = self._added, []
        for new in added:
            self._watch(new)
        one = next(iter(self._by_end.values()), None)
        return one if one is not None and one.at < before else None

    def still(self, one: Watched, blocks: int) -> None:
        """Notes that so many first blocks of a sequence are there, and no more of it."""
        self._drop(one.hashes[-1])
        with self._lock:
            added = {block for new in self._added for block in new.hashes}
            gone = [
                block
                for block in one.hashes[blocks:]
                if not self._uses[block] and block not in added
            ]
            if gone:
                self._gone.append(gone)
        kept = one.hashes[:blocks]
        if kept and kept[-1] not in self._by_end:
            tokens = len(one.prompt.tokens) * blocks // len(one.hashes)
            self._watch(Watched(one.prompt.cut(tokens), kept))

    def take_gone(self) -> Iterable[list[Any]]:
        """Returns hashes of blocks that no sequence has any more."""
        with self._lock:
            gone, self._gone = self._gone, []
            return gone

    def _watch(self, one: Watched) -> None:
        if not one.hashes:
            return
        for block in one.hashes:
            self._drop(block)
        self._by_end[one.hashes[-1]] = one
        self._uses.update(one.hashes)
        self._tokens += len(one.prompt.tokens)
        while self._tokens > _MOST_TOKENS and len(self._by_end) > 1:
            self._drop(next(iter(self._by_end)))

    def _drop(self, end: Any) -> None:
        one = self._by_end.pop(end, None)
        if one is not None:
            self._uses.subtract(one.hashes)
            for block in one.hashes:
                if self._uses[block] <= 0:
                    del self._uses[block]
            self._tokens -= len(one.prompt.tokens)


class Watch:
    """A thread that looks each sequence up once a round. `ask`: how many tokens of a prompt prefixd
    has; None: it does not answer now."""

    def __init__(
        self, sequences: Sequences, ask: Callable[[Prompt], int | None], round_s: float = ROUND_S
    ) -> None:
        self._sequences, self._ask, self._round_s = sequences, ask, round_s
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="prefixd-watch", daemon=True).start()

    def close(self) -> None:
        self._ended.set()

    def look(self) -> bool:
        """Looks one sequence up whose turn it is. Returns False if there is none, or no answer."""
        one = self._sequences.due(time.monotonic() - self._round_s)
        if one is None:
            return False
        tokens = self._ask(one.prompt)
        if tokens is None:
            return False
        self._sequences.still(one, tokens * len(one.hashes) // len(one.prompt.tokens))
        return True

    def _run(self) -> None:
        busy = False
        while not self._ended.wait(1 / _MOST_A_SECOND if busy else min(1.0, self._round_s / 4)):
            try:
                busy = self.look()
            except Exception as error:
                busy = False
                log.warning("watching blocks: %s: %s", type(error).__name__, error)
