"""PrefixCache: the shared caches of one transformers model."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicSlidingWindowLayer

from .. import Client, Lease, rope_of
from ..engine.formats import fitting
from ..engine.saver import Saver
from ..engine.spaces import ANCHOR, DEFAULT_BLOCK_TOKENS, Unsupported, block_tokens_for
from . import geometry, identity
from .options import Options
from .pages import Packed, Pages, Piece, RowPages, Rows, Shorter, StatePages
from .saving import Save, Taken
from .windows import WindowLayer

log = logging.getLogger("prefixd.transformers")

_MEDIA = re.compile(r"(image|video|audio|vision|speech).*token_(id|index)$")
_ORIGIN = "prefixd_origin"  # of a cache that fetch() gave


class PrefixCache:
    """The caches of `model`, shared with every process that has the same model.

    tokenizer: transformers' tokenizer or its folder; default: beside the model's weights. weights:
    a digest of 32 bytes for a model that was made in memory.

    Runs a few tokens through the model, and reads the files of its weights once. Never raises for a
    model whose caches cannot be shared, nor for a daemon that is absent, late or dying: fetch()
    then gives an empty cache, and `why_not` and the log (`prefixd.transformers`) say why. Use one
    PrefixCache for each model, from one thread at a time.
    """

    def __init__(
        self,
        client: Client,
        model: Any,
        tokenizer: Any = None,
        *,
        weights: bytes | None = None,
        options: Options | None = None,
    ) -> None:
        self.model = model
        self.options = options or Options()
        self.cached_tokens = 0  # that fetch() gave, in all
        self.stored_tokens = 0
        self._client = client
        self._saver = Saver() if self.options.write_behind else None
        self._pages: list[tuple[int, Pages]] = []  # the layer of the cache, and its pages
        self._said: set[str] = set()
        self._down = False  # prefixd did not answer the last call
        self._why = ""
        self._block_tokens = DEFAULT_BLOCK_TOKENS
        self._media = _media_tokens(model.config)
        try:
            self._open(tokenizer, weights)
        except Unsupported as error:
            self._why = str(error)
            name = self.options.model_name or type(model).__name__
            log.warning("caches of %s are not shared: %s", name, self._why)
            client.not_shared(name, self._why)

    @property
    def why_not(self) -> str:
        """Why nothing is shared, for good; "" while a daemon may serve this model."""
        return self._why or self._space.error

    def fetch(self, ids: Sequence[int] | torch.Tensor) -> DynamicCache:
        """Returns a cache for generate() with the longest prefix of `ids` that prefixd has, never
        the last token; an empty one if it has nothing. The cache is this process's own copy."""
        tokens = _listed(ids)
        cache, count = self.new_cache(len(tokens)), 0
        if self._may_share(tokens) and len(tokens) > 1:
            with self._space.acquire(
                tokens, max_cached_tokens=len(tokens) - 1, **self._asked
            ) as lease:
                self._note(lease.error)
                count = lease.wait_all()
                pieces = self._gather(lease, count)
                count = count if pieces else 0
                lease.release(used_tokens=count)
            if pieces:
                self._fill(cache, [[piece] for piece in pieces], [count], count)
        self.cached_tokens += count
        log.info("cached %d of %d tokens", count, len(tokens))
        return cache

    def store(
        self, ids: Sequence[int] | torch.Tensor, cache: Any, turn_ends: Sequence[int] = ()
    ) -> int:
        """Saves what prefixd lacks of the cache, which holds the rows of `ids` or of its beginning:
        generate() leaves the last token out. Returns the stored tokens; with write_behind 0, at
        once. `turn_ends`: further places in `ids` at which a later prompt may go on, for models
        with sliding windows; the end of the prompt is known."""
        tokens = _listed(ids)
        if not self._may_share(tokens):
            return 0
        try:
            taken = self._take(tokens, cache, 0, 0)
        except Unsupported as error:
            self._say_once(f"a cache is not stored: {error}")
            return 0
        return self._save(taken, turn_ends)

    def settle(self, deadline_s: float = 10.0) -> bool:
        """Waits up to `deadline_s` until everything is stored. Returns whether it is."""
        return self._saver is None or self._saver.settle(deadline_s)

    def new_cache(self, prompt_tokens: int = 0) -> DynamicCache:
        """Returns an empty cache that keeps what store() needs."""
        cache = geometry.new_cache(self.model)
        for at, layer in enumerate(cache.layers):
            if type(layer) is DynamicSlidingWindowLayer:
                cache.layers[at] = WindowLayer(layer.sliding_window, self._block_tokens)
        setattr(cache, _ORIGIN, (prompt_tokens, {}))
        return cache

    def _open(self, tokenizer: Any, weights: bytes | None) -> None:
        model, options = self.model, self.options
        shape = geometry.look_at(model)
        files = identity.files_of(model)
        self._adapters = identity.Adapters(model)
        rows = shape.rows
        ladder = fitting(options.ladder, [dim for r in rows for dim in (r.key_dim, r.value_dim)])
        if options.written not in ladder:
            raise Unsupported(f"groups of {options.group_size} do not divide its rows")
        block_tokens = block_tokens_for([one.window for one in rows if one.window])
        self._block_tokens = block_tokens or DEFAULT_BLOCK_TOKENS
        self._pages = [
            (at, StatePages(one))
            if isinstance(one, geometry.StateShape)
            else (at, RowPages(one, ladder, self._block_tokens))
            for at, one in shape.all
        ]
        layers = [pages.layer() for _, pages in self._pages]
        self._anchored = all(one.window for one in rows)
        self._has_states = shape.has_states
        self._ladder = ladder
        self._asked = {
            "readable": [at for at, form in enumerate(ladder) if form in options.readable],
            "deadline_ms": options.deadline_ms,
            "load_deadline_ms": options.load_deadline_ms,
            "wait_pending_ms": options.wait_pending_ms,
        }
        name = files.directory.name if files else type(model).__name__
        self._space = self._client.open_space(
            model=options.model_name or name,
            weights=identity.weights_of(model, files, weights),
            adapter=self._adapters.digest(),
            tokenizer=identity.tokenizer_of(tokenizer, files),
            rope=rope_of(identity.config_of(model, files), rows[0].key_dim),
            layers=[*layers, ANCHOR] if self._anchored else layers,
            salt=options.salt,
            block_tokens=block_tokens,
        )

    def _may_share(self, tokens: Sequence[int]) -> bool:
        if self.why_not:
            return False
        if not self._adapters.unchanged:
            self._say_once("its weights or adapters changed: make another PrefixCache for them")
            return False
        if self._media and not self._media.isdisjoint(tokens):
            self._say_once("prompts with images or sound are computed without prefixd")
            return False
        return True

    def _gather(self, lease: Lease, count: int) -> list[Piece]:
        """Returns what prefixd has of each layer after `count` tokens; nothing if some of it is
        gone by now."""
        if not count:
            return []
        pieces: list[Piece] = []
        try:
            for layer, (_, pages) in enumerate(self._pages):
                if isinstance(pages, RowPages):
                    pieces.append(pages.gather(lease, layer, count))
                else:
                    pieces.append(pages.gather(lease, layer))
        except Shorter as error:
            log.warning("%d tokens are computed again: %s", count, error)
            return []
        return pieces

    def _fill(
        self,
        cache: DynamicCache,
        pieces: Sequence[Sequence[Any]],
        counts: Sequence[int],
        width: int,
    ) -> None:
        """Puts into the cache, for each layer, what its sequences have: `counts` tokens each, at
        the right end of `width` columns."""
        _, packed = getattr(cache, _ORIGIN)
        for index, ((at, pages), own) in enumerate(zip(self._pages, pieces, strict=True)):
            if isinstance(pages, StatePages):
                states = [torch.cat(parts) for parts in zip(*own, strict=True)]
                pages.restore(cache.layers[at], states)
                continue
            begin, keys, values = _padded(own, counts, width)
            layer = cache.layers[at]
            if isinstance(layer, WindowLayer):
                layer.restore(begin, keys, values)
            else:
                layer.lazy_initialization(keys, values)
                layer.keys, layer.values = keys, values
            packed[index] = [rows.packed for rows in own]

    def _take(self, tokens: Sequence[int], cache: Any, row: int, pad: int) -> Taken:
        """Returns what the cache holds of sequence `row`, which begins behind `pad` columns."""
        layers = getattr(cache, "layers", None)
        if not isinstance(cache, DynamicCache) or len(layers) <= max(at for at, _ in self._pages):
            raise Unsupported(f"a {type(cache).__name__}, must be a DynamicCache")
        prompt_tokens, packed = getattr(cache, _ORIGIN, (0, {}))
        pieces: list[Any] = []
        for index, (at, pages) in enumerate(self._pages):
            if isinstance(pages, StatePages):
                pieces.append(pages.take(layers[at], row))
                continue
            if layers[at].is_initialized and layers[at].keys.shape[0] != 1 and not pad and not row:
                self._check_one(layers[at].keys.shape[0], cache)
            tails: list[Packed | None] = packed.get(index) or [None]
            rows = pages.take(layers[at], row, pad)
            pieces.append(Rows(rows.runs, tails[row] if row < len(tails) else None))
        held = cache.get_seq_length() - pad
        count = min(len(tokens), held)
        if count < held and self._has_states:
            raise Unsupported(f"its states are those after {held} tokens, not after {count}")
        if count < 1:
            raise Unsupported("it is empty")
        ends = [prompt_tokens - pad] if 0 < prompt_tokens - pad < count else []
        fence = _fence(self.model.device)
        return Taken(list(tokens[:count]), pieces, ends, fence)

    def _check_one(self, rows: int, cache: Any) -> None:
        if not getattr(cache, "prefixd_batch", False):
            raise Unsupported(f"a batch of {rows} sequences: store_batch() takes it")

    def _save(self, taken: Taken, turn_ends: Sequence[int]) -> int:
        save = Save(
            self._space, [pages for _, pages in self._pages], self._anchored, self._ladder,
            self.options, taken, turn_ends,
        )  # fmt: skip

        def run() -> int:
            stored = save.run()
            self._note(stored.error)
            if stored.gap:
                self._say_once(stored.gap)
            self.stored_tokens += stored.tokens
            log.info("stored %d of %d tokens", stored.tokens, len(taken.tokens))
            return stored.tokens

        if self._saver is None:
            return run()
        if not self._saver.submit(lambda: run() and None):
            self._say_once("a cache is not stored: too many wait for prefixd")
        return 0

    def _note(self, error: str) -> None:
        """Notes how a call to prefixd ended. Says so if the one before ended in another way."""
        if error and not self._down:
            log.warning("prompts are computed without prefixd: %s", error)
        elif self._down and not error:
            log.info("prefixd is back")
        self._down = bool(error)

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            log.warning("%s", text)


def _listed(ids: Sequence[int] | torch.Tensor) -> list[int]:
    if isinstance(ids, torch.Tensor):
        if ids.ndim == 2 and ids.shape[0] == 1:
            ids = ids[0]
        if ids.ndim != 1:
            raise ValueError(f"ids: {list(ids.shape)}, must be those of one sequence")
        return ids.tolist()
    return list(ids)


def _media_tokens(config: Any) -> set[int]:
    """Returns the tokens that stand for images and sound, whose rows their ids do not tell."""
    return {
        value
        for name, value in config.to_dict().items()
        if _MEDIA.search(name) and isinstance(value, int)
    }


def _padded(
    own: Sequence[Rows], counts: Sequence[int], width: int
) -> tuple[int, torch.Tensor, torch.Tensor]:
    """Returns the first column, keys and values of sequences at the right end of the columns."""
    if len(own) == 1:
        begin, keys, values = own[0].runs[0]
        return begin + width - counts[0], keys, values
    rows = [max((run[1].shape[2] for run in one.runs), default=0) for one in own]
    widest = max(rows)
    sides = []
    for side in (1, 2):
        like = next(one.runs[0][side] for one in own if one.runs)
        out = like.new_zeros((len(own), like.shape[1], widest, like.shape[3]))
        for at, one in enumerate(own):
            for run in one.runs:
                out[at, :, widest - run[side].shape[2] :] = run[side][0]
        sides.append(out)
    return width - widest, sides[0], sides[1]


def _fence(device: torch.device) -> Callable[[], None]:
    """Returns a function that waits, on any thread, for what the device was told so far."""
    if device.type != "cuda":
        return lambda: None
    event = torch.cuda.current_stream(device).record_event()
    return event.synchronize
