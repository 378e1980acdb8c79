"""Converts mlx-lm's cache objects of rows to plain rows, and back.

The number of tokens of a cache is its `offset`. `len()` and `size()` are 0 for a QuantizedKVCache,
and the tensors are longer than the cache: they grow by 256 tokens at a time. Caches that keep only
the last rows are in windows.py, those without rows in states.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import ConcatenateKVCache, KVCache, QuantizedKVCache

from .options import RAW, TensorFormat

Tensors = tuple[Any, ...]
"""K or V, as MLX has it or as_numpy(). Raw: (rows [1, H, n, D],). Quantized: (codes [1, H, n, W],
scales and biases [1, H, n, D / group_size])."""


@dataclass(frozen=True)
class Rows:
    """K and V of one layer, n tokens, in one format, exactly as the engine holds them. If the layer
    stores no values, V is an empty tuple or has width 0."""

    key: Tensors
    value: Tensors
    format: TensorFormat

    @property
    def tokens(self) -> int:
        return self.key[0].shape[2]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in (*self.key, *self.value))

    def cut(self, begin: int, end: int) -> Rows:
        """Returns rows [begin, end). Groups run along head_dim, so a cut at any token is exact."""
        key, value = (tuple(t[..., begin:end, :] for t in side) for side in (self.key, self.value))
        return Rows(key, value, self.format)

    def as_numpy(self) -> Rows:
        """Returns the same rows as NumPy arrays, to be cut often: MLX would compute every cut."""
        key, value = (tuple(map(to_numpy, side)) for side in (self.key, self.value))
        return Rows(key, value, self.format)

    def copy(self) -> Rows:
        """Returns a copy with memory of its own."""
        key, value = (
            tuple(from_numpy(to_numpy(t).copy(), t.dtype) for t in s)
            for s in (self.key, self.value)
        )
        return Rows(key, value, self.format)


@dataclass(frozen=True)
class Held:
    """The rows of tokens [begin, end) of a layer, those that a cache object has in order."""

    begin: int
    rows: Rows

    @property
    def end(self) -> int:
        return self.begin + self.rows.tokens

    def cut(self, begin: int, end: int) -> Rows:
        """Returns the rows of tokens [begin, end). Requires: it has them."""
        return self.rows.cut(begin - self.begin, end - self.begin)


def keeps_all_rows(cache: Any) -> bool:
    """True for an object with a row for every token, none of them moved or dropped.

    Subclasses may hold rows in another way, so they do not count.
    """
    return type(cache) in (KVCache, QuantizedKVCache, ConcatenateKVCache)


def meta_state(cache: KVCache | QuantizedKVCache) -> tuple[str, str, str]:
    """Returns (offset, group_size, bits) as mlx-lm writes them; raw: group_size and bits are 0."""
    form = format_of(cache)
    return str(cache.offset), str(form.group_size), str(form.bits)


def format_of(cache: KVCache | QuantizedKVCache) -> TensorFormat:
    if type(cache) is QuantizedKVCache:
        return TensorFormat(cache.bits, cache.group_size)
    return RAW


def from_cache(cache: KVCache | QuantizedKVCache) -> Rows:
    """Returns the rows in use. Requires: keeps_all_rows(cache), and something in it."""
    key: Any = cache.keys
    value: Any = cache.values
    if type(cache) is not QuantizedKVCache:
        key, value = (key,), (value,)
    return Rows(tuple(key), tuple(value), format_of(cache)).cut(0, cache.offset)


def to_cache(rows: Rows) -> KVCache | QuantizedKVCache:
    """Returns a cache that goes on after the rows."""
    cache: Any
    if rows.format == RAW:
        cache = KVCache()
        cache.keys, cache.values = rows.key[0], rows.value[0]
    else:
        cache = QuantizedKVCache(group_size=rows.format.group_size, bits=rows.format.bits)
        cache.keys, cache.values = rows.key, rows.value
    cache.offset = rows.tokens
    return cache


def from_state(
    key: Tensors | mx.array, value: Tensors | mx.array, meta: Sequence[str]
) -> KVCache | QuantizedKVCache:
    """Returns a cache from tensors, over-allocated or not, and what meta_state() said of them."""
    if len(meta) != 3:
        raise ValueError(f"meta_state: {len(meta)} fields, must be 3: offset, group_size, bits")
    offset, group_size, bits = (int(text) for text in meta)
    key, value = ((s,) if isinstance(s, mx.array) else tuple(s) for s in (key, value))
    held = min(side[0].shape[2] for side in (key, value))
    if not 0 <= offset <= held:
        raise ValueError(f"meta_state: offset {offset}, the tensors hold {held} tokens")
    return to_cache(Rows(key, value, TensorFormat(bits, group_size)).cut(0, offset))


def quantize(rows: Rows, form: TensorFormat) -> Rows:
    """Returns raw rows quantized as the engine's own to_quantized() does it."""

    def packed(side: Tensors, form: TensorFormat) -> Tensors:
        if not side or not side[0].shape[-1]:
            return side
        return tuple(mx.quantize(side[0], group_size=form.group_size, bits=form.bits))

    return Rows(packed(rows.key, form), packed(rows.value, form.of_value), form)


def dequantize(rows: Rows) -> Rows:
    """Returns raw rows, in the data type of the scales."""

    def raw(side: Tensors, form: TensorFormat) -> Tensors:
        if len(side) < 3:
            return side
        codes, scales, biases = side
        return (mx.dequantize(codes, scales, biases, form.group_size, form.bits),)

    return Rows(raw(rows.key, rows.format), raw(rows.value, rows.format.of_value), RAW)


def convert(rows: Rows, form: TensorFormat) -> Rows:
    """Returns the rows in `form`, unchanged if they have it. Raises ValueError rather than convert
    one quantized format to another."""
    if rows.format == form:
        return rows
    if form == RAW:
        return dequantize(rows)
    if rows.format != RAW:
        raise ValueError(f"convert: {rows.format} to {form}, one of them must be raw")
    return quantize(rows, form)


def join(parts: Sequence[Rows], form: TensorFormat) -> Rows:
    """Joins consecutive runs of one layer, all converted to `form`."""
    parts = [convert(part, form) for part in parts]
    if len(parts) == 1:
        return parts[0]

    def glued(sides: Sequence[Tensors]) -> Tensors:
        return tuple(mx.concatenate(list(tensors), axis=2) for tensors in zip(*sides))

    return Rows(glued([p.key for p in parts]), glued([p.value for p in parts]), form)


def to_numpy(tensor: Any) -> np.ndarray:
    """Returns a view. bfloat16, which NumPy lacks, travels as uint16: the format says what it
    is."""
    if isinstance(tensor, np.ndarray):
        return tensor
    return np.asarray(tensor.view(mx.uint16) if tensor.dtype == mx.bfloat16 else tensor)


def from_numpy(array: np.ndarray, dtype: mx.Dtype) -> mx.array:
    """Returns a copy of `array`, whose bits are of `dtype`."""
    tensor = mx.array(array)
    return tensor if tensor.dtype == dtype else tensor.view(dtype)
