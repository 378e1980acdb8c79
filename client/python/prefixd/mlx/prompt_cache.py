"""PromptCache: prefixd in the place of mlx_lm.server's LRUPromptCache.

One thread at a time, the engine's. Nothing here raises into the token path: what prefixd cannot
hold or give goes to the engine's own cache, and the log says why, once.
"""

from __future__ import annotations

import logging
from array import array
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from threading import Thread
from typing import Any

from mlx_lm.models.cache import LRUPromptCache, can_trim_prompt_cache, trim_prompt_cache

from . import tokens as prompts
from .geometry import Unsupported
from .options import OptionError
from .shared import SharedCaches

log = logging.getLogger("prefixd.mlx")

Opener = Callable[[Any], SharedCaches | Callable[[], SharedCaches]]
"""Opens what is shared of a model, by the key that the engine knows it by, or returns what is left
to do of it, for a thread of its own. Either may raise Unsupported."""

_PROMPTS = 64  # that may be under way


class PromptCache:
    """fetch_nearest_cache() and insert_cache() over prefixd.

    `open_shared` is called once for each model. `local` holds what prefixd does not: caches of
    models that it does not support or that are still being opened, and everything while no daemon
    is there.
    """

    def __init__(self, open_shared: Opener, local: LRUPromptCache | None = None):
        self._open_shared = open_shared
        self._local = LRUPromptCache() if local is None else local
        self._shared: dict[Hashable, Future[SharedCaches | None]] = {}
        self._prompts: deque[bytes] = deque(maxlen=_PROMPTS)
        self._said: set[str] = set()
        self._entries = 0
        self._stored_bytes = 0

    # --- what mlx_lm.server calls ---

    def fetch_nearest_cache(
        self, model: Hashable, tokens: Sequence[int]
    ) -> tuple[list[Any] | None, list[int]]:
        """The caches of the longest prefix that is here, or None, and the tokens that are still to
        be computed: at least one, as the engine needs its logits."""
        tokens = list(tokens)
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
        stored = self._store_shared(model, tokens, prompt_cache)
        log.info(
            "cache_store tokens=%d stored=%s cache_entries=%d cache_mem=%d",
            len(tokens),
            stored,
            self._entries,
            self._stored_bytes,
        )
        if not stored:
            self._local.insert_cache(model, tokens, prompt_cache, cache_type=cache_type)

    def trim_to(self, *, n_sequences: int | None = None, n_bytes: int | None = None) -> None:
        """Of the engine's own cache: the daemon keeps its budget by itself."""
        self._local.trim_to(n_sequences=n_sequences, n_bytes=n_bytes)

    def __len__(self) -> int:
        return len(self._local)

    @property
    def nbytes(self) -> int:
        """Of this process. Pages are the daemon's."""
        return self._local.nbytes

    def stats_by_type(self) -> dict[str, dict[str, int]]:
        return self._local.stats_by_type()

    # --- prefixd ---

    def shared(self, model: Hashable) -> SharedCaches | None:
        """None: this model's caches are left to the engine's own, for good or until it is open.
        Called as soon as the model is loaded, it is open all the earlier."""
        if model not in self._shared:
            self._shared[model] = Future()
            self._open(model, lambda: self._open_shared(model))
        opened = self._shared[model]
        return opened.result() if opened.done() else None

    def _open(self, model: Hashable, how: Callable[[], Any]) -> None:
        """Settles what is shared of the model, or starts a thread that will. Does not raise."""
        try:
            shared = how()
            if callable(shared):
                Thread(target=self._open, args=(model, shared), daemon=True).start()
                return
        except Exception as why:
            expected = isinstance(why, (Unsupported, OptionError))
            log.warning(
                "prefixd does not hold caches of %s: %s", model, why, exc_info=not expected
            )
            shared = None
        else:
            log.info("prefixd holds caches of %s", model)
        self._shared[model].set_result(shared)

    def _fetch_shared(self, model: Hashable, tokens: list[int]) -> tuple[list[Any] | None, int]:
        try:
            shared = self.shared(model)
            if shared is None:
                return None, 0
            self._prompts.append(_as_bytes(tokens))
            return shared.fetch(prompts.from_server(tokens))
        except Exception:  # the request is computed in full instead
            self._say_once("cache_fetch failed")
            return None, 0

    def _store_shared(self, model: Hashable, tokens: list[int], caches: list[Any]) -> bool:
        try:
            shared = self.shared(model)
            if shared is None:
                return False
            stored = shared.store(prompts.from_server(tokens), caches, self._turn_ends(tokens))
        except Exception:  # costs a later miss
            self._say_once("cache_store failed")
            return False
        self._entries += stored.sequence_ends
        self._stored_bytes += stored.bytes
        return stored.held

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
        """Where the prompt ended that these tokens began with: other requests may end there too."""
        whole = _as_bytes(tokens)
        for prompt in reversed(self._prompts):
            if len(prompt) < len(whole) and whole.startswith(prompt):
                return [len(prompt) // _TOKEN_BYTES]
        return []

    def _say_once(self, what: str) -> None:
        if what not in self._said:
            self._said.add(what)
            log.warning(what, exc_info=True)


_TOKEN_BYTES = 8  # mlx_lm.server has numbers of 60 bits for images


def _as_bytes(tokens: list[int]) -> bytes:
    return array("q", tokens).tobytes()
