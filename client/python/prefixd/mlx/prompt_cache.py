"""PromptCache: takes the place of mlx_lm.server's LRUPromptCache, on prefixd.

Only the engine's thread calls it, unless a method says otherwise. Nothing here raises into the
token path: what prefixd cannot hold or give goes to the engine's own cache, and the log says why.
"""

from __future__ import annotations

import logging
import time
from array import array
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

from mlx_lm.models.cache import LRUPromptCache, can_trim_prompt_cache, trim_prompt_cache

from ..engine.saver import Saver
from . import tokens as prompts
from .geometry import Unsupported
from .options import OptionError
from .part import Stored
from .shared import SharedCaches

log = logging.getLogger("prefixd.mlx")

Opener = Callable[[Any], SharedCaches | Callable[[], SharedCaches]]
"""Opens the shared caches of a model, given the key by which the engine knows it. May return a
function that does the rest, for a thread of its own. Either may raise Unsupported."""

_PROMPTS = 64  # prompts that may be in progress
_ANNOUNCED_TOKENS = 256  # fewer are computed before another worker could wait for them
_ANNOUNCED_S = 120.0  # ends announcements of abandoned requests
_SETTLE_S = 2.0


@dataclass
class _Announced:
    prompt: bytes
    plans: Sequence[Any]
    until: float


@dataclass
class _Opened:
    """The shared caches of a model, once they are known."""

    shared: Future[SharedCaches | None] = field(default_factory=Future)
    why_not: str = ""
    awaited: bool = False  # a request has waited for it


class PromptCache:
    """fetch_nearest_cache() and insert_cache() over prefixd.

    `open_shared` is called once for each model. `local` holds what prefixd does not: caches of
    models that it does not support or that are still being opened, and everything while no daemon
    is there. `in_background`: insert_cache() returns before the caches are saved, and a lookup
    waits for saves in progress. `tell` is called with the key of a model and why it is not shared.
    `name_of` returns what the log calls a model, from its key.
    """

    def __init__(
        self,
        open_shared: Opener,
        local: LRUPromptCache | None = None,
        *,
        in_background: bool = False,
        open_deadline_s: float = 0.0,
        tell: Callable[[Any, str], None] | None = None,
        name_of: Callable[[Any], str] = str,
    ):
        self._open_shared = open_shared
        self._local = LRUPromptCache() if local is None else local
        self._saver = Saver() if in_background else None
        self._open_deadline_s = open_deadline_s  # how long a model's first request waits for it
        self._tell = tell
        self._name_of = name_of
        self._opened: dict[Hashable, _Opened] = {}
        self._prompts: deque[bytes] = deque(maxlen=_PROMPTS)
        self._announced: deque[_Announced] = deque(maxlen=_PROMPTS)
        self._not_saved: deque[tuple[Hashable, list[int], list[Any], str]] = deque()
        self._said: set[str] = set()
        self._entries = 0
        self._stored_bytes = 0
        self.prefill_tokens_per_s = 0.0  # speed of this process; 0: not measured
        self.last_asked: Sequence[int] = ()  # tokens of the last lookup

    # --- what mlx_lm.server calls ---

    def fetch_nearest_cache(
        self, model: Hashable, tokens: Sequence[int]
    ) -> tuple[list[Any] | None, list[int]]:
        """Returns the caches of the longest prefix that is here, or None, and the tokens that are
        still to be computed: at least one, as the engine needs its logits."""
        self.last_asked = tokens = list(tokens)
        if self._saver is not None:
            self._saver.settle(_SETTLE_S)  # this may be the next turn of what is being saved
        self._keep_what_was_not_saved()
        caches, count = self._fetch_shared(model, tokens)
        local, rest = self._fetch_local(model, tokens)
        if local is not None and len(tokens) - len(rest) > count:
            caches, count = local, len(tokens) - len(rest)
        if count:
            log.info("cache_fetch HIT cached=%d remaining=%d", count, len(tokens) - count)
        else:
            log.info("cache_fetch MISS remaining=%d", len(tokens))
        return caches, tokens[count:]

    def insert_cache(
        self,
        model: Hashable,
        tokens: Sequence[int],
        prompt_cache: list[Any],
        *,
        cache_type: str = "assistant",
    ) -> None:
        """Saves the caches of `tokens`. prefixd ages all of them alike, whatever their type."""
        tokens = list(tokens)
        self._keep_what_was_not_saved()
        save = self._prepare_save(model, tokens, prompt_cache)

        def finish(stored: Stored) -> None:
            self._log_store(len(tokens), stored)
            if not stored.held:
                self._not_saved.append((model, tokens, prompt_cache, cache_type))

        self._run(save, finish)
        self._keep_what_was_not_saved()

    def use_local(self, local: LRUPromptCache) -> None:
        """Sets another cache of the engine's own. Requires: before the first lookup."""
        self._local = local

    def trim_to(self, *, n_sequences: int | None = None, n_bytes: int | None = None) -> None:
        """Trims the engine's own cache. The daemon keeps its budget by itself."""
        self._local.trim_to(n_sequences=n_sequences, n_bytes=n_bytes)

    def __len__(self) -> int:
        return len(self._local)

    @property
    def nbytes(self) -> int:
        """Bytes of the caches in this process. Pages are in the daemon."""
        return self._local.nbytes

    def stats_by_type(self) -> dict[str, dict[str, int]]:
        return self._local.stats_by_type()

    # --- what generation.py calls, and other generation loops may ---

    def save_interval(self, model: Hashable) -> int:
        """Returns the tokens after which save_early() must be called, so that no row is dropped
        before it is saved; 0 if the model's caches keep every row, or are not shared."""
        shared = self.shared(model)
        return 0 if shared is None else shared.save_interval

    def save_early(self, model: Hashable, tokens: Sequence[int], prompt_cache: list[Any]) -> None:
        """Saves the caches of a request that goes on. A failure costs a later miss."""
        tokens = list(tokens)
        self._run(
            self._prepare_save(model, tokens, prompt_cache),
            lambda stored: log.debug(
                "cache_store_early tokens=%d stored=%s", len(tokens), stored.held
            ),
        )

    def flush(self, deadline_s: float = 30.0) -> bool:
        """Waits until everything handed in is saved. Returns False if the deadline passes first."""
        return self._saver is None or self._saver.settle(deadline_s)

    # --- prefixd ---

    def shared(self, model: Hashable) -> SharedCaches | None:
        """Returns the shared caches of the model. None if they are left to the engine's own cache,
        for good or until the model is open. Call it as soon as the model is loaded, so that the
        model opens early."""
        opened = self._opening(model).shared
        return opened.result() if opened.done() else None

    def wait_shared(self, model: Hashable, deadline_s: float) -> SharedCaches | None:
        """Like shared(), but waits up to `deadline_s` until the answer is known."""
        try:
            return self._opening(model).shared.result(deadline_s)
        except FutureTimeout:
            return None

    def why_not(self, model: Hashable) -> str:
        """Returns why caches of the model are not shared now; "" if they are. On any thread."""
        opened = self._opened.get(model)
        if opened is None or not opened.shared.done():
            return "the model is being opened"
        shared = opened.shared.result()
        return opened.why_not if shared is None else shared.error

    def _opening(self, model: Hashable) -> _Opened:
        opened = self._opened.get(model)
        if opened is None:
            opened = self._opened[model] = _Opened()
            self._open(model, opened, lambda: self._open_shared(model))
        return opened

    def _open(self, model: Hashable, opened: _Opened, how: Callable[[], Any]) -> None:
        """Settles the shared caches of the model, or starts a thread that will. Does not raise."""
        shared = None
        try:
            shared = how()
            if callable(shared):
                Thread(target=self._open, args=(model, opened, shared), daemon=True).start()
                return
        except Exception as why:
            opened.why_not = str(why) or type(why).__name__
            log.warning(
                "prefixd does not hold caches of %s: %s; its requests use the engine's own cache",
                self._name_of(model),
                opened.why_not,
            )
            if not isinstance(why, (Unsupported, OptionError)):
                log.debug("how it came to that", exc_info=True)
            if self._tell is not None:
                self._tell(model, opened.why_not)
        else:
            log.info("prefixd holds caches of %s", self._name_of(model))
        opened.shared.set_result(shared)

    def _fetch_shared(self, model: Hashable, tokens: list[int]) -> tuple[list[Any] | None, int]:
        try:
            shared = self._shared_or_wait(model)
            if shared is None:
                return None, 0
            self._prompts.append(_as_bytes(tokens))
            prompt = prompts.from_server(tokens)
            caches, count = shared.fetch(prompt, self.prefill_tokens_per_s)
            if len(tokens) - count >= _ANNOUNCED_TOKENS:
                self._announce(shared, prompt, tokens)
            return caches, count
        except Exception:  # the request is computed in full instead
            self._say_once("cache_fetch failed")
            return None, 0

    def _shared_or_wait(self, model: Hashable) -> SharedCaches | None:
        """Like shared(), but waits for a model's first request, which is worth sharing too."""
        opened = self._opening(model)
        if not opened.shared.done() and not opened.awaited:
            opened.awaited = True
            return self.wait_shared(model, self._open_deadline_s)
        return self.shared(model)

    def _prepare_save(
        self, model: Hashable, tokens: list[int], caches: list[Any]
    ) -> Callable[[], Stored]:
        """Does the engine thread's part of a save. The returned function does the rest."""
        try:
            shared = self.shared(model)
            if shared is None:
                why = self.why_not(model)
                return lambda: Stored(held=False, why=why)
            prompt = prompts.from_server(tokens)
            save = shared.prepare_store(prompt, caches, self._turn_ends(tokens))
            announced = self._announcements_in(tokens)
            return lambda: _save_announced(save, announced)
        except Exception as error:  # costs a later miss
            why = self._why(error)
            return lambda: Stored(held=False, why=why)

    def _run(self, save: Callable[[], Stored], finish: Callable[[Stored], None]) -> None:
        def save_all() -> None:
            try:
                stored = save()
            except Exception as error:  # costs a later miss
                stored = Stored(held=False, why=self._why(error))
            finish(stored)

        if self._saver is None:
            save_all()
        elif not self._saver.submit(save_all):
            finish(Stored(held=False, why="earlier saves are not done yet"))

    def _log_store(self, tokens: int, stored: Stored) -> None:
        self._entries += stored.sequence_ends
        self._stored_bytes += stored.bytes
        log.info(
            "cache_store tokens=%d stored=%s cache_entries=%d cache_mem=%d%s",
            tokens,
            stored.held,
            self._entries,
            self._stored_bytes,
            f" why={stored.why!r}" if stored.why else "",
        )

    def _keep_what_was_not_saved(self) -> None:
        """Puts what was not saved into the engine's own cache, which only its thread may use."""
        while self._not_saved:
            model, tokens, caches, cache_type = self._not_saved.popleft()
            self._local.insert_cache(model, tokens, caches, cache_type=cache_type)

    def _announce(self, shared: SharedCaches, prompt: prompts.Prompt, tokens: list[int]) -> None:
        now = time.monotonic()
        while self._announced and self._announced[0].until < now:
            self._announced.popleft()
        plans = shared.announce(prompt.cut(prompt.outside_images(len(tokens) - 1)))
        self._announced.append(_Announced(_as_bytes(tokens[:-1]), plans, now + _ANNOUNCED_S))

    def _announcements_in(self, tokens: list[int]) -> list[_Announced]:
        """Removes and returns the announcements of prompts that these tokens begin with: they are
        being saved."""
        whole = _as_bytes(tokens)
        found = [one for one in self._announced if whole.startswith(one.prompt)]
        for one in found:
            self._announced.remove(one)
        return found

    def _fetch_local(
        self, model: Hashable, tokens: list[int]
    ) -> tuple[list[Any] | None, list[int]]:
        if not len(self._local):
            return None, tokens
        caches, rest = self._local.fetch_nearest_cache(model, tokens)
        if rest or caches is None:
            return caches, rest
        if not can_trim_prompt_cache(caches):
            return None, tokens
        trim_prompt_cache(caches, 1)  # the engine needs the logits of a token
        return caches, tokens[-1:]

    def _turn_ends(self, tokens: list[int]) -> list[int]:
        """Returns the end, less one token, of the prompt that these tokens began with: its repeat
        goes on from there."""
        whole = _as_bytes(tokens)
        for prompt in reversed(self._prompts):
            if _TOKEN_BYTES < len(prompt) < len(whole) and whole.startswith(prompt):
                return [len(prompt) // _TOKEN_BYTES - 1]
        return []

    def _why(self, error: Exception) -> str:
        if not isinstance(error, Unsupported):
            self._say_once(f"cache_store failed: {type(error).__name__}")
        return str(error) or type(error).__name__

    def _say_once(self, what: str) -> None:
        if what not in self._said:
            self._said.add(what)
            log.warning(what, exc_info=True)


def _save_announced(save: Callable[[], Stored], announced: Sequence[_Announced]) -> Stored:
    try:
        return save()
    finally:
        for one in announced:
            for plan in one.plans:
                plan.abandon()


_TOKEN_BYTES = 8  # mlx_lm.server uses numbers of 60 bits for images


def _as_bytes(tokens: list[int]) -> bytes:
    return array("q", tokens).tobytes()
