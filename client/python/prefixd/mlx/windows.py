"""Caches that keep only the last rows: mlx-lm's RotatingKVCache and ChunkedKVCache.

Converts them to Held, rows in the order of their tokens, and back to caches that go on after such
rows. A rotating cache also keeps its first `keep` rows. Once it has dropped rows behind those, only
its last ones are Held.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ChunkedKVCache, RotatingKVCache

from .convert import Held, Rows
from .options import RAW


@dataclass(frozen=True)
class Rotating:
    """Describes a RotatingKVCache: the last `max_size` tokens, the first `keep` among them."""

    max_size: int
    keep: int

    @property
    def window(self) -> int:
        return self.max_size - self.keep

    @property
    def text(self) -> str:
        return f"RotatingKVCache(max_size={self.max_size}, keep={self.keep})"

    def held(self, cache: RotatingKVCache) -> Held:
        key, value = (_in_order(tensor, cache) for tensor in (cache.keys, cache.values))
        rows = Rows((key,), (value,), RAW)
        if cache.offset > rows.tokens:
            rows = rows.cut(self.keep, rows.tokens)
        return Held(cache.offset - rows.tokens, rows)

    def cache_of(self, rows: Rows, tokens: int) -> RotatingKVCache:
        """Returns a cache that goes on after `rows`: the sinks, then the window before `tokens`, as
        the engine's own batch hands them back, in the order of their tokens."""
        cache = RotatingKVCache(self.max_size, self.keep)
        (cache.keys,), (cache.values,) = rows.key, rows.value
        cache.offset, cache._idx = tokens, rows.tokens
        return cache


@dataclass(frozen=True)
class Chunked:
    """Describes a ChunkedKVCache: the last `chunk_size` tokens before each prefill step."""

    chunk_size: int
    keep: int = 0

    @property
    def window(self) -> int:
        return self.chunk_size

    @property
    def text(self) -> str:
        return f"ChunkedKVCache({self.chunk_size})"

    def held(self, cache: ChunkedKVCache) -> Held:
        rows = Rows((cache.keys,), (cache.values,), RAW)
        return Held(cache.start_position, rows.cut(0, cache.offset - cache.start_position))

    def cache_of(self, rows: Rows, tokens: int) -> ChunkedKVCache:
        cache = ChunkedKVCache(self.chunk_size)
        (cache.keys,), (cache.values,) = rows.key, rows.value
        cache.offset, cache.start_position = tokens, tokens - rows.tokens
        return cache


def describe(cache: Any) -> Rotating | Chunked | None:
    """Returns the kind of window that a cache object keeps; None for other objects and for
    subclasses."""
    if type(cache) is RotatingKVCache:
        return Rotating(cache.max_size, cache.keep)
    if type(cache) is ChunkedKVCache:
        return Chunked(cache.chunk_size)
    return None


def _in_order(tensor: mx.array, cache: RotatingKVCache) -> mx.array:
    """Returns the rows in the order of their tokens. Behind the first `keep` rows is a ring, which
    is written at `_idx` next."""
    index, keep = cache._idx, cache.keep
    if index == tensor.shape[2]:
        return tensor
    if index >= cache.offset:
        return tensor[..., :index, :]
    pieces = [tensor[..., :keep, :], tensor[..., index:, :], tensor[..., keep:index, :]]
    return mx.concatenate(pieces, axis=2)
