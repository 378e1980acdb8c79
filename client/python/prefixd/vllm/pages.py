"""vLLM's pages as rows of tokens, and back.

A backend lays a page out as its kernels read it: keys turned by dimension, in tiles, beside the
values. How, is learned from the backend itself: numbered rows are given to its own writer, and what
it wrote says where each element went. If that is a mere reordering, rows are stored, raw or
quantized, which any engine reads. If not, whole pages are stored as they are, in a space of that
layout alone.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import prefixd

from ..engine import rows
from ..engine.formats import RAW, TensorFormat, as_format
from ..engine.tensors import (
    DTYPES,
    as_numpy,
    bits_of,
    index_on,
    room,
    to_device,
    to_host_behind,
)
from ..torch import why_no_gpu
from .packing import form_of

Rows = NDArray[Any]
"""K or V [heads, tokens, dim] on the host, integers that hold the bits of the elements."""

_DIGIT = 128  # numbers below are exact in every data type


@dataclass(frozen=True)
class Place:
    """Where the elements [heads, tokens, dim] of K or V stand in a page."""

    shape: tuple[int, int, int]
    offset: int
    strides: tuple[int, int, int] | None  # None: in no regular order, `index` says where
    index: torch.Tensor | None = None

    @staticmethod
    def of(index: torch.Tensor) -> Place:
        heads, tokens, dim = index.shape
        first = int(index[0, 0, 0])
        strides = tuple(
            int(index.select(axis, 1)[0, 0]) - first if size > 1 else 0
            for axis, size in enumerate(index.shape)
        )
        steps = [torch.arange(size).mul(stride) for size, stride in zip(index.shape, strides)]
        regular = first + steps[0][:, None, None] + steps[1][None, :, None] + steps[2]
        if min(strides) >= 0 and torch.equal(regular, index):
            return Place((heads, tokens, dim), first, (strides[0], strides[1], strides[2]))
        return Place((heads, tokens, dim), first, None, index.reshape(-1))

    def rows(self, pages: torch.Tensor) -> torch.Tensor:
        """Returns the rows [heads, pages * tokens, dim] of the pages, dense."""
        heads, tokens, dim = self.shape
        found = self._elements(pages).permute(1, 0, 2, 3)
        return found.reshape(heads, pages.shape[0] * tokens, dim).contiguous()

    def put(self, pages: torch.Tensor, which: torch.Tensor, rows: torch.Tensor) -> None:
        """Puts rows [heads, which * tokens, dim] into the pages `which` of all."""
        heads, tokens, dim = self.shape
        given = rows.reshape(heads, len(which), tokens, dim).permute(1, 0, 2, 3)
        if self.strides is None:
            pages[which[:, None], self._index(pages)] = given.reshape(len(which), -1)
        else:
            self._elements(pages).index_copy_(0, which, given)

    def of_cache(self, cache: torch.Tensor) -> torch.Tensor | None:
        """Returns the elements [pages, tokens, heads, dim] of a cache [pages, ...] in place; None
        if those of a row are not side by side, or others are in no regular order."""
        if self.strides is None:
            return None
        shape = cache.shape[1:]
        reach = first = _unravel(self.offset, shape)
        places = []
        for size, stride in zip(self.shape, self.strides):
            step = _unravel(stride, shape)
            reach = [at + (size - 1) * one for at, one in zip(reach, step)]
            places.append(_dot(step, cache.stride()[1:]))
        if any(at >= size for at, size in zip(reach, shape)) or self.shape[2] > 1 != places[2]:
            return None
        heads, tokens, dim = self.shape
        return cache.as_strided(
            (cache.shape[0], tokens, heads, dim),
            (cache.stride(0), places[1], places[0], 1),
            cache.storage_offset() + _dot(first, cache.stride()[1:]),
        )

    def _elements(self, pages: torch.Tensor) -> torch.Tensor:
        shape = (pages.shape[0], *self.shape)
        if self.strides is None:
            return pages[:, self._index(pages)].reshape(shape)
        offset = pages.storage_offset() + self.offset
        return pages.as_strided(shape, (pages.stride(0), *self.strides), offset)

    def _index(self, pages: torch.Tensor) -> torch.Tensor:
        assert self.index is not None
        return index_on(pages.device, self.index)


@dataclass(frozen=True)
class RowPages:
    """The pages of a layer, stored as rows."""

    cache: torch.Tensor  # [pages, ...], vLLM's own
    key: Place
    value: Place
    form: TensorFormat = RAW
    window: int = 0  # tokens that are needed before a token; 0: all

    @property
    def dims(self) -> tuple[int, int]:
        return self.key.shape[2], self.value.shape[2]

    def layer(self, formats: Sequence[TensorFormat] = ()) -> prefixd.Layer:
        """`formats`: what its space can hold, of which this layer uses the first; default: that
        one alone."""
        dtype = DTYPES[self.cache.dtype]
        ladder = [as_format(form, dtype) for form in formats or [self.form]]
        return _layer(self.key.shape[0], *self.dims, ladder, self.window)

    def take(self, pages: torch.Tensor) -> tuple[Rows, ...]:
        """Returns K and V of the pages, with memory of their own. Of a GPU's pages they are there
        once engine.tensors.copied() says so; whoever writes the pages later changes nothing."""
        found = self.cache.index_select(0, index_on(self.cache.device, pages)).reshape(
            len(pages), -1
        )
        sides = (place.rows(found) for place in (self.key, self.value))
        key, value = (bits_of(to_host_behind(side)) for side in sides)
        return key, value

    def write(self, plan: prefixd.Plan, layer: int, begin: int, taken: tuple[Rows, ...]) -> None:
        """Stores rows that take() gave, or a cut of them, from token `begin` on."""
        key, value = taken
        dtype = DTYPES[self.cache.dtype]
        plan.write_rows(layer, begin, key=key, value=value, dtype=dtype)

    def fill(
        self, lease: prefixd.Lease, layer: int, begin: int, end: int, pages: torch.Tensor
    ) -> bool:
        """Fills the pages with tokens [begin, end) of the lease, behind what the current stream was
        told so far. Returns False, with nothing written, if the lease does not have them."""
        cache = self.cache
        sides = self._on_a_gpu
        if sides is not None:
            # Entries for the tokens before `begin` are not read.
            table = [0] * (begin // self.key.shape[1]) + pages.tolist()
            return rows.load_into(lease, layer, begin, end, sides, table=table)
        found = rows.gather(
            lease,
            layer,
            begin,
            end,
            heads=self.key.shape[0],
            dims=self.dims,
            ladder=(self.form,),
            dtype=cache.dtype,
            device=cache.device,
        )
        if found is not None:
            self.put(pages, found)
        return found is not None

    @functools.cached_property
    def _on_a_gpu(self) -> list[torch.Tensor] | None:
        """K and V [pages, tokens, heads, dim] in place, if prefixd's kernels can fill them."""
        if self.cache.device.type != "cuda" or why_no_gpu(self.cache.device):
            return None
        found = [place.of_cache(self.cache) for place in (self.key, self.value)]
        sides = [side for side in found if side is not None]
        return sides if len(sides) == 2 else None

    def put(self, pages: torch.Tensor, sides: rows.Sides) -> None:
        """Writes K and V [1, heads, tokens, dim], on the device of the pages, into them."""
        cache = self.cache
        there = index_on(cache.device, pages)
        is_dense = cache[0].is_contiguous()  # then rows go to the pages themselves, in one pass
        target = cache.flatten(1) if is_dense else cache.new_empty((len(pages), cache[0].numel()))
        which = there if is_dense else torch.arange(len(pages), device=cache.device)
        for place, side in zip((self.key, self.value), sides, strict=True):
            place.put(target, which, side[0])
        if not is_dense:
            cache.index_copy_(0, there, target.view(-1, *cache.shape[1:]))


@dataclass(frozen=True)
class WholePages:
    """The pages of a layer [pages, heads, tokens, bytes], stored as they are. Only whole pages mean
    something."""

    cache: torch.Tensor  # [pages, heads, tokens, row]
    window: int = 0

    def layer(self) -> prefixd.Layer:
        """Returns a layer of keys whose elements stand for two bytes each, whatever they are."""
        heads, _, row = self.cache.shape[1:]
        width = row * self.cache.element_size()
        return _layer(heads, width // 2, 0, [prefixd.raw("float16")], self.window, "none")

    def take(self, pages: torch.Tensor) -> tuple[Rows, ...]:
        found = self.cache.index_select(0, index_on(self.cache.device, pages)).permute(1, 0, 2, 3)
        heads, count, tokens, row = found.shape
        dense = found.reshape(heads, count * tokens, row).contiguous()
        return (bits_of(to_host_behind(dense)).view(np.uint16),)

    def write(self, plan: prefixd.Plan, layer: int, begin: int, taken: tuple[Rows, ...]) -> None:
        plan.write_packed(layer, begin, key=taken)

    def fill(
        self, lease: prefixd.Lease, layer: int, begin: int, end: int, pages: torch.Tensor
    ) -> bool:
        cache = self.cache
        heads, tokens, row = cache.shape[1:]
        host = room((1, heads, end - begin, row), cache.dtype, cache.device)
        out = ((bits_of(host).view(np.uint16),), ())
        if lease.gather(layer, end - begin, begin=begin, out=out) is None:
            return False
        given = to_device(host, cache.device).reshape(heads, len(pages), tokens, row)
        cache.index_copy_(0, index_on(cache.device, pages), given.permute(1, 0, 2, 3).contiguous())
        return True


@dataclass(frozen=True)
class StatePages:
    """The states of a layer without rows, a page each, stored as they are: vLLM's own bytes."""

    cache: torch.Tensor  # [pages, ...]

    def layer(self) -> prefixd.Layer:
        return prefixd.StateLayer(self.cache[0].nbytes)

    def take(self, page: int) -> Rows:
        """Returns the bytes of a state, with memory of their own."""
        index = index_on(self.cache.device, torch.tensor([page]))
        found = self.cache.index_select(0, index).flatten().view(torch.uint8)
        return bits_of(to_host_behind(found))

    def fill(self, lease: prefixd.Lease, layer: int, page: int) -> bool:
        """Fills the page with the state at the end of the lease. Returns False, with nothing
        written, if the lease does not have it."""
        cache = self.cache
        host = room((cache[0].nbytes,), torch.uint8, cache.device)
        if lease.state(layer, as_numpy(host)) is None:
            return False
        given = to_device(host, cache.device).view(cache.dtype).view(1, *cache.shape[1:])
        cache.index_copy_(0, index_on(cache.device, torch.tensor([page])), given)
        return True


LayerPages = RowPages | WholePages


def _unravel(place: int, shape: Sequence[int]) -> list[int]:
    """Returns the index of the element that is number `place` in order."""
    index = []
    for size in reversed(shape):
        place, at = divmod(place, size)
        index.append(at)
    return index[::-1]


def _dot(index: Sequence[int], strides: Sequence[int]) -> int:
    return sum(at * stride for at, stride in zip(index, strides))


def _layer(
    heads: int,
    key_dim: int,
    value_dim: int,
    formats: Sequence[prefixd.Format],
    window: int,
    values: str = "stored",
) -> prefixd.Layer:
    if window:
        return prefixd.SlidingLayer(
            heads, key_dim, value_dim, formats, window=window, values=values
        )
    return prefixd.FullLayer(heads, key_dim, value_dim, formats, values=values)


def pages_of(
    module: Any,
    cache: torch.Tensor,
    heads: int,
    dim: int,
    rows: bool,
    bits: tuple[int, int] | None,
    window: int = 0,
) -> LayerPages:
    """Returns the pages of the attention layer `module`. `rows`: as rows if that can be. `bits`: of
    K and V where they are stored quantized. Raises ValueError for caches that are no pages of
    tokens, and for those that cannot be quantized."""
    if cache.ndim != 4 or cache.shape[3] * cache.element_size() % 2:
        raise ValueError(f"pages of shape {list(cache.shape[1:])} of {cache.dtype}")
    places = learn(module, cache, heads, dim) if rows else None
    if places is not None:
        return RowPages(cache, *places, form_of(bits, dim), window)
    if bits is not None:
        backend = type(module.impl).__name__
        raise ValueError(f"no rows are found in pages of {backend}: format must be 'raw'")
    return WholePages(cache, window)


def learn(module: Any, cache: torch.Tensor, heads: int, dim: int) -> tuple[Place, Place] | None:
    """Returns where a page has K and V, as the layer's own writer shows. None if its writer does
    more than to reorder elements, or cannot be called alone."""
    tokens, elements = cache.shape[2], cache[0].numel()
    if cache.dtype not in DTYPES or elements != 2 * heads * tokens * dim:
        return None
    try:
        found = torch.zeros(elements, dtype=torch.int64)
        for digit in range(3):
            written = _write_numbers(module, cache, heads, dim, digit)
            found += written.reshape(-1).to("cpu", torch.int64) * _DIGIT**digit
    except Exception:  # whatever a backend raises that has no such writer
        return None
    if not torch.equal(found.sort().values, torch.arange(elements)):
        return None
    index = torch.empty(elements, dtype=torch.int64)
    index[found] = torch.arange(elements)
    key, value = index.reshape(2, tokens, heads, dim).permute(0, 2, 1, 3)
    return Place.of(key), Place.of(value)


def _write_numbers(
    module: Any, cache: torch.Tensor, heads: int, dim: int, digit: int
) -> torch.Tensor:
    """Returns a page into which the layer wrote a digit of each element's number."""
    tokens = cache.shape[2]
    page = torch.empty_strided((1, *cache.shape[1:]), cache.stride(), dtype=cache.dtype)
    page = page.to(cache.device).zero_()
    numbers = torch.arange(cache[0].numel()) // _DIGIT**digit % _DIGIT
    given = numbers.reshape(2, tokens, heads, dim).to(cache.device, cache.dtype)
    slots = torch.arange(tokens, device=cache.device)
    module.impl.do_kv_cache_update(module, given[0], given[1], page, slots)
    return page
