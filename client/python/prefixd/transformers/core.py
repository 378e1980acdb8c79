"""Core: the space of one model, and its caches between the model's tensors and prefixd."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicSlidingWindowLayer

from .. import Client, Error, Lease, rope_of
from ..engine.formats import fitting
from ..engine.pinning import Pinning
from ..engine.spaces import ANCHOR, DEFAULT_BLOCK_TOKENS, Unsupported, block_tokens_for
from ..engine.tensors import computed
from ..torch import DevicePages, Table, why_no_gpu
from . import attention, geometry, identity
from .options import Options
from .paged_layers import PagedLayer, PagedWindowLayer
from .pages import Pages, Piece, RowPages, StatePages
from .rows import Packed, Rows, Shorter
from .saving import Save, Taken
from .windows import WindowLayer

log = logging.getLogger("prefixd.transformers")

_MEDIA = re.compile(r"(image|video|audio|vision|speech).*token_(id|index)$")


class Origin:
    """What fetch() notes on the cache that it gives."""

    def __init__(self, columns: int) -> None:
        self.columns = columns  # of the prompt
        self.packed: dict[int, list[Packed | None]] = {}  # by layer of the space and sequence

    @staticmethod
    def of(cache: Any) -> Origin:
        return getattr(cache, "prefixd_origin", None) or Origin(0)


class Core:
    """Raises Unsupported, with the reason, if the model's caches cannot be shared."""

    def __init__(
        self, client: Client, model: Any, tokenizer: Any, weights: bytes | None, options: Options
    ) -> None:
        self.model = model
        self.options = options
        self._device = model.device  # where its caches are made
        self._pinning = Pinning(model.device, log) if options.pin else None
        shape = geometry.look_at(model)
        files = identity.files_of(model)
        self.adapters = identity.Adapters(model)
        self.media_tokens = _media_tokens(model.config)
        self.has_states = shape.has_states
        self.most_tokens = geometry.most_tokens(model)
        rows = shape.rows
        ladder = fitting(options.ladder, [dim for r in rows for dim in (r.key_dim, r.value_dim)])
        if options.written not in ladder:
            raise Unsupported(f"groups of {options.group_size} do not divide its rows")
        block_tokens = block_tokens_for([one.window for one in rows if one.window])
        self.block_tokens = block_tokens or DEFAULT_BLOCK_TOKENS
        self._layers = [at for at, _ in shape.all]  # of the cache, for each layer of the space
        self.pages: list[Pages] = [
            StatePages(one)
            if isinstance(one, geometry.StateShape)
            else RowPages(one, ladder, self.block_tokens)
            for _, one in shape.all
        ]
        self._anchored = all(one.window for one in rows)
        self._ladder = ladder
        # What is there of a prefix is there of every shorter one.
        self.cuts_anywhere = not self.has_states and not any(one.window for one in rows)
        layers = [pages.layer() for pages in self.pages]
        name = files.directory.name if files else type(model).__name__
        self.space = client.open_space(
            model=options.model_name or name,
            weights=identity.weights_of(model, files, weights),
            adapter=self.adapters.digest(),
            tokenizer=identity.tokenizer_of(tokenizer, files),
            rope=rope_of(identity.config_of(model, files), rows[0].key_dim),
            layers=[*layers, ANCHOR] if self._anchored else layers,
            salt=options.salt,
            block_tokens=block_tokens,
        )

    def new_cache(self, columns: int) -> DynamicCache:
        """Returns an empty cache that keeps what saving needs, for a prompt of so many columns."""
        cache = geometry.new_cache(self.model)
        for at, layer in enumerate(cache.layers):
            if type(layer) is DynamicSlidingWindowLayer:
                cache.layers[at] = WindowLayer(layer.sliding_window, self.block_tokens)
        vars(cache)["prefixd_origin"] = Origin(columns)
        return cache

    def acquire(self, tokens: Sequence[int], most: int) -> Lease:
        options = self.options
        lease = self.space.acquire(
            tokens,
            max_cached_tokens=most,
            readable=[at for at, form in enumerate(self._ladder) if form in options.readable],
            deadline_ms=options.deadline_ms,
            load_deadline_ms=options.load_deadline_ms,
            wait_pending_ms=options.wait_pending_ms,
        )
        if self._pinning is not None:
            self._pinning.pin(lease)
        return lease

    def gather(self, lease: Lease, count: int) -> list[Piece]:
        """Returns what prefixd has of each layer after `count` tokens; nothing if some of it is
        gone by now."""
        try:
            return [
                pages.gather(lease, layer, count)
                if isinstance(pages, RowPages)
                else pages.gather(lease, layer)
                for layer, pages in enumerate(self.pages)
            ]
        except Shorter as error:
            log.warning("%d tokens are computed again: %s", count, error)
            return []

    def fill(self, cache: DynamicCache, sequences: Sequence[Sequence[Piece]], width: int) -> None:
        """Puts what gather() gave for each sequence into the cache, at the right end of `width`
        columns."""
        origin = Origin.of(cache)
        own: Any
        layer: Any
        for index, own in enumerate(zip(*sequences, strict=True)):
            layer, pages = cache.layers[self._layers[index]], self.pages[index]
            if isinstance(pages, StatePages):
                pages.restore(layer, [torch.cat(parts) for parts in zip(*own, strict=True)])
                continue
            window = pages.shape.window
            keys, values = _padded(own, min(width, window) if window else width)
            if isinstance(layer, WindowLayer):
                layer.restore(width - keys.shape[2], keys, values)
            else:
                layer.lazy_initialization(keys, values)
                layer.keys, layer.values = keys, values
            origin.packed[index] = [rows.packed for rows in own]

    def fill_in_place(self, cache: DynamicCache, lease: Lease, count: int) -> bool:
        """Puts the leased pages themselves into the cache, and copies the states of linear
        attention. The cache keeps the lease. Returns False if some of it is gone by now."""
        origin = Origin.of(cache)
        try:
            there = None
            if self._device.type == "cuda":
                rows = [at for at, one in enumerate(self.pages) if isinstance(one, RowPages)]
                there = DevicePages(lease, rows, self._device)
            for index, pages in enumerate(self.pages):
                at = self._layers[index]
                if isinstance(pages, StatePages):
                    pages.restore(cache.layers[at], pages.gather(lease, index))
                    continue
                begin = count - count % self.block_tokens
                tail = pages.gather_rows(lease, index, begin, count) if begin < count else Rows([])
                window = pages.shape.window
                layer = PagedWindowLayer(window, self.block_tokens) if window else PagedLayer()
                copy = functools.partial(pages.gather, lease, index, count)
                dtype = pages.shape.dtype
                table = Table(lease, index, count, pages=there, dtype=dtype, window=window)
                layer.hold(table, tail, copy, dtype)
                cache.layers[at] = layer
                origin.packed[index] = [tail.packed]
        except (Shorter, Error) as error:
            log.warning("%d tokens are computed again: %s", count, error)
            return False
        return True

    @property
    def reads_in_place(self) -> bool:
        """True if attention is prefixd's own: attn_implementation="prefixd", on the CPU or on a GPU
        that libprefixd_cuda.so knows."""
        config = self.model.config.get_text_config(decoder=True)
        rows = [pages for pages in self.pages if isinstance(pages, RowPages)]
        return (
            config._attn_implementation == attention.NAME
            and len(set(self._layers)) == len(self._layers)  # no layer has rows and states
            and all(pages.shape.device == self._device for pages in rows)
            and (self._device.type == "cpu" or not why_no_gpu(self._device))
        )

    @property
    def why_not_now(self) -> str:
        """Why the model's caches are not those that were looked at; "" if they are."""
        if self.model.device != self._device:
            return f"its model moved to {self.model.device}: make another PrefixCache for it"
        if not self.adapters.unchanged:
            return "its weights or adapters changed: make another PrefixCache for them"
        return ""

    def no_pieces(self) -> list[Piece]:
        """Returns what gather() would give after 0 tokens."""
        return [
            Rows([])
            if isinstance(pages, RowPages)
            else [torch.zeros(t.shape, dtype=t.dtype, device=t.device) for t in pages.shape.tensors]
            for pages in self.pages
        ]

    def take(
        self, tokens: Sequence[int], cache: Any, row: int = 0, pad: int = 0, sequences: int = 1
    ) -> Taken:
        """Returns what a cache of so many sequences holds of number `row`, which begins behind
        `pad` columns. Raises Unsupported if it cannot be stored."""
        if not isinstance(cache, DynamicCache) or len(cache.layers) <= max(self._layers):
            raise Unsupported(f"a {type(cache).__name__}, must be a DynamicCache of this model")
        origin, pieces = Origin.of(cache), []
        piece: Any
        for index, pages in enumerate(self.pages):
            layer = cache.layers[self._layers[index]]
            if isinstance(pages, StatePages):
                piece = pages.take(layer, row)
            else:
                rows = pages.take(layer, row, pad, sequences)
                tails = origin.packed.get(index, [])
                piece = Rows(rows.runs, tails[row] if row < len(tails) else None)
            pieces.append(piece)
        held = cache.get_seq_length() - pad
        count = min(len(tokens), held)
        if count < 1:
            raise Unsupported("it is empty")
        if self.most_tokens is not None and held > self.most_tokens:
            raise Unsupported(f"beyond {self.most_tokens} tokens its keys depend on their number")
        if count < held and self.has_states:
            raise Unsupported(f"its states are those after {held} tokens, not after {count}")
        end = origin.columns - pad
        return Taken(
            list(tokens[:count]),
            pieces,
            [end] if 0 < end < count else [],
            computed(self.model.device),
        )

    def save(self, taken: Taken, turn_ends: Sequence[int] = ()) -> Save:
        return Save(
            self.space, self.pages, self._anchored, self._ladder, self.options, taken, turn_ends
        )


def _media_tokens(config: Any) -> set[int]:
    """Returns the tokens that stand for images and sound, whose rows their ids do not tell."""
    return {
        value
        for name, value in config.to_dict().items()
        if _MEDIA.search(name) and isinstance(value, int)
    }


def _padded(own: Sequence[Rows], width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns keys and values of sequences at the right end of `width` columns of zeros."""
    if len(own) == 1 and own[0].runs[0][1].shape[2] == width:
        return own[0].runs[0][1:]
    sides = []
    for side in (0, 1):
        like: Any = next(one.runs[0][1 + side] for one in own if one.runs)
        out = like.new_zeros((len(own), like.shape[1], width, like.shape[3]))
        for at, one in enumerate(own):
            for _, *rows in one.runs:
                found = rows[side]
                out[at, :, width - found.shape[2] :] = found[0]
        sides.append(out)
    return sides[0], sides[1]
