"""Carries one cache object of a prompt cache between the engine's tensors and prefixd's pages, with
one copy each way: RowPages for K and V of every token, WindowPages for those of the last tokens,
StatePages for arrays that are valid at one position."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Union

import mlx.core as mx
import numpy as np
import prefixd
from mlx_lm.models.cache import ArraysCache

from . import convert, windows
from .convert import Held, Rows, Tensors, to_numpy
from .geometry import DTYPES, RowShape, Unfilled, Unsupported
from .options import RAW, TensorFormat
from .states import Arrays, StateShape

Range = tuple[int, int]
"""Tokens [begin, end)."""


class Shorter(Exception):
    """Raised if a lease no longer has what it had: the request is computed in full."""


@dataclass(frozen=True)
class RowPages:
    """A layer with a row for every token."""

    shape: RowShape
    ladder: tuple[TensorFormat, ...]  # finest first

    def layer(self) -> prefixd.Layer:
        return prefixd.FullLayer(**self._description())

    def bytes_per_token(self, form: TensorFormat) -> int:
        shape, item = self.shape, self.shape.dtype.size
        form = form if form in self.ladder else self.ladder[-1]
        key = form.row_bytes(shape.key_dim, item)
        return shape.kv_heads * (key + form.of_value.row_bytes(shape.value_dim, item))

    def take(self, cache: Any) -> Held | None:
        """Returns what the engine's object holds; None if it holds nothing."""
        if not convert.keeps_all_rows(cache):
            raise Unsupported(f"a layer keeps a {type(cache).__name__} now, a KVCache at first")
        return None if cache.keys is None else Held(0, convert.from_cache(cache))

    def needs(self, count: int) -> list[Range]:
        """Returns the tokens whose rows a cache after `count` tokens has, in order."""
        return [(0, count)] if count else []

    def wanted(self, begin: int, end: int, ends: Sequence[int]) -> Iterator[Range]:
        """Yields the whole blocks of tokens [begin, end) to write. `ends`: where sequences end."""
        yield begin, end

    def gather(self, lease: prefixd.Lease, layer: int, count: int) -> list[Rows]:
        """Returns the rows of needs(count), in runs of one format each, bit for bit as stored."""
        stored = lease.runs(layer)
        found = []
        for begin, end in self.needs(count):
            at = begin
            for run_begin, run_end, form in stored:
                if run_begin <= at < min(run_end, end):
                    behind = min(run_end, end)
                    found.append(self._run(lease, layer, at, behind, self.ladder[form]))
                    at = behind
            if at < end:
                raise Shorter(f"layer {layer} has no tokens {at} to {end} by now")
        return found

    def restore(self, runs: Sequence[Rows], count: int, form: TensorFormat) -> Any:
        """Returns the engine's object after `count` tokens. `form`: of rows that it quantizes."""
        return convert.to_cache(convert.join(runs, form if self.shape.quantizes else RAW))

    def write(self, plan: prefixd.Plan, layer: int, begin: int, rows: Rows) -> None:
        """Writes rows from token `begin` on. Requires: they are in the plan's format."""
        value = [to_numpy(tensor) for tensor in rows.value] if self.shape.value_dim else ()
        plan.write_packed(
            layer, begin, key=[to_numpy(tensor) for tensor in rows.key], value=value
        )

    def _description(self) -> dict[str, Any]:
        return {
            "kv_heads": self.shape.kv_heads,
            "key_dim": self.shape.key_dim,
            "value_dim": self.shape.value_dim,
            "formats": [self._format(form) for form in self.ladder],
            "values": "stored" if self.shape.value_dim else "none",
        }

    def _format(self, form: TensorFormat) -> prefixd.Format:
        dtype = DTYPES[self.shape.dtype]
        if form == RAW:
            return prefixd.raw(dtype)
        value_bits = form.value_bits if self.shape.value_dim else 0
        return prefixd.mlx_affine(
            form.bits, form.group_size, dtype, value_bits=value_bits or form.bits
        )

    def _run(
        self, lease: prefixd.Lease, layer: int, begin: int, end: int, form: TensorFormat
    ) -> Rows:
        sides = [
            self._room(self.shape.key_dim, end - begin, form),
            self._room(self.shape.value_dim, end - begin, form.of_value),
        ]
        key_out, value_out = ([np.array(t, copy=False) for t in side] for side in sides)
        out = (key_out, value_out if self.shape.value_dim else ())
        if lease.gather(layer, end - begin, begin=begin, out=out) is None:
            raise Shorter(f"layer {layer} cannot be copied: {lease.error}")
        key, value = (self._typed(side) for side in sides)
        return Rows(key, value, form)

    def _room(self, dim: int, tokens: int, form: TensorFormat) -> list[mx.array]:
        """Returns MLX's own memory to write into. Its contents mean nothing yet."""
        heads = (1, self.shape.kv_heads, tokens)
        element = mx.uint16 if self.shape.dtype == mx.bfloat16 else self.shape.dtype
        if form == RAW or not dim:
            room = [mx.zeros((*heads, dim), element)]
        else:
            groups = (*heads, dim // form.group_size)
            room = [mx.zeros((*heads, dim * form.bits // 32), mx.uint32)]
            room += [mx.zeros(groups, element), mx.zeros(groups, element)]
        mx.eval(room)
        return room

    def _typed(self, side: list[mx.array]) -> Tensors:
        """Returns the same bits in the model's data type."""
        dtype = self.shape.dtype
        return tuple(t if t.dtype in (mx.uint32, dtype) else t.view(dtype) for t in side)


@dataclass(frozen=True)
class WindowPages(RowPages):
    """A layer that keeps its last rows, and its first ones where it has sinks."""

    block_tokens: int

    @property
    def window(self) -> windows.Rotating | windows.Chunked:
        assert self.shape.window is not None
        return self.shape.window

    def layer(self) -> prefixd.Layer:
        return prefixd.SlidingLayer(
            **self._description(), window=self.window.window, sink_tokens=self.window.keep
        )

    def take(self, cache: Any) -> Held | None:
        found = windows.describe(cache)
        if found is None or found != self.window:
            text = type(cache).__name__ if found is None else found.text
            raise Unsupported(f"a layer keeps a {text} now, {self.window.text} at first")
        return None if cache.keys is None else found.held(cache)

    def needs(self, count: int) -> list[Range]:
        start = max(count - self.window.window, 0)
        sinks = min(self.window.keep, count)
        if start <= sinks:
            return [(0, count)] if count else []
        return [(0, sinks), (start, count)] if sinks else [(start, count)]

    def wanted(self, begin: int, end: int, ends: Sequence[int]) -> Iterator[Range]:
        """Yields the blocks that some end needs, one by one."""
        needs = [need for at in ends for need in self.needs(at)]
        for first in range(begin, end, self.block_tokens):
            behind = min(first + self.block_tokens, end)
            if any(need[0] < behind and first < need[1] for need in needs):
                yield first, behind

    def restore(self, runs: Sequence[Rows], count: int, form: TensorFormat) -> Any:
        return self.window.cache_of(convert.join(runs, RAW), count)


@dataclass(frozen=True)
class StatePages:
    """A layer whose arrays are valid at one exact number of tokens."""

    shape: StateShape

    def layer(self) -> prefixd.Layer:
        return prefixd.StateLayer(self.shape.nbytes)

    def take(self, cache: Any) -> Arrays | None:
        """Returns the arrays; None if their shapes are not the model's, as before the first
        tokens."""
        if type(cache) is not ArraysCache:
            raise Unsupported(f"a layer keeps a {type(cache).__name__} now, an ArraysCache at first")
        return tuple(cache.cache) if StateShape.of(cache) == self.shape else None

    def gather(self, lease: prefixd.Lease, layer: int, count: int) -> np.ndarray:
        state = lease.state(layer)
        if state is None:
            raise Shorter(f"layer {layer} has no state after {count} tokens by now")
        return state

    def restore(self, state: np.ndarray, count: int, form: TensorFormat) -> ArraysCache:
        return self.shape.cache_of(state)


@dataclass(frozen=True)
class EmptyPages:
    """A cache that the model never fills: prefixd has no layer for it."""

    unfilled: Unfilled

    def take(self, cache: Any) -> None:
        if not cache.empty():
            raise Unsupported(f"a {type(cache).__name__} that stayed empty at first is filled now")

    def restore(self, nothing: None, count: int, form: TensorFormat) -> Any:
        return copy.deepcopy(self.unfilled.cache)


def needs_anchor(pages: Iterable[Pages]) -> bool:
    return all(type(one) is not RowPages for one in pages)


Pages = Union[RowPages, WindowPages, StatePages, EmptyPages]
Taken = Union[Held, Arrays, None]
Gathered = Union[list[Rows], np.ndarray, None]


def arrays_of(taken: Iterable[Taken]) -> list[mx.array]:
    """Returns everything that must be computed before another thread may read it."""
    found: list[mx.array] = []
    for one in taken:
        if isinstance(one, Held):
            found += [*one.rows.key, *one.rows.value]
        elif one is not None:
            found += [array for array in one if array is not None]
    return found
