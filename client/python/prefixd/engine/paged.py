"""PageTable: one layer of a sequence as prefixd's attention kernels read it: leased pages in place,
and behind them pages of this process for what it computes."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _abi
from .._formats import Format
from .._lease import Lease

_UNIT_BYTES = 128  # a page begins at a multiple of it, and each head's unit is one
_NOT_IN_THE_ARENA = 2**64 - 1
_MOST_PAGE_TOKENS, _LEAST_PAGE_TOKENS = 4096, 64


@dataclass(frozen=True)
class Heads:
    """The shape of a layer. `formats`: those of its space, of which the first is raw elements of
    type `element` (uint16 for bfloat16)."""

    kv_heads: int
    key_dim: int
    value_dim: int
    element: np.dtype[Any]
    formats: tuple[Format, ...]
    window: int = 0


class PageTable:
    """From one thread at a time. Keeps its lease until it is gone."""

    def __init__(self, lease: Lease, layer: int, tokens: int, heads: Heads) -> None:
        """`tokens`: those of the lease."""
        self._lease = lease
        self._heads = heads
        leased = lease._block_table(layer)
        self._blocks = len(leased)
        self._table = _grown(leased, self._blocks)
        self._formats = (_abi.Format * len(heads.formats))(
            *(_abi.Format(f.key.as_struct(), f.value.as_struct()) for f in heads.formats)
        )
        self._own: list[_Page] = []
        self.error = ""  # why attend() could not
        self.leased_tokens = tokens
        self.tokens = tokens

    def append(self, key: NDArray[Any], value: NDArray[Any]) -> None:
        """Copies rows [kv_heads, n, dim] behind the last ones."""
        done, count = 0, key.shape[1]
        while done < count:
            if not self._own or self._own[-1].full:
                self._add_page(count - done)
            page = self._own[-1]
            take = min(page.capacity - page.tokens, count - done)
            page.put(key[:, done : done + take], value[:, done : done + take])
            self._table[self._blocks - 1].tokens = page.tokens
            done += take
        self.tokens += count

    def own_rows(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Returns a copy of the rows behind the leased ones: K and V [kv_heads, n, dim]."""
        heads = self._heads
        key = [np.empty((heads.kv_heads, 0, heads.key_dim), heads.element)]
        value = [np.empty((heads.kv_heads, 0, heads.value_dim), heads.element)]
        key += [page.key[:, : page.tokens] for page in self._own]
        value += [page.value[:, : page.tokens] for page in self._own]
        return np.concatenate(key, axis=1), np.concatenate(value, axis=1)

    def attend(
        self, query: NDArray[np.float32], scale: float, threads: int
    ) -> NDArray[np.float32] | None:
        """Returns the attention [rows, heads, value_dim] of the last rows of the sequence: query
        [heads, rows, key_dim], dense. None if the library cannot; `error` says why."""
        query_heads, rows, _ = query.shape
        heads = self._heads
        out = np.empty((rows, query_heads, heads.value_dim), np.float32)
        options = _abi.AttendOptions(
            query_rows=rows,
            query_heads=query_heads,
            kv_heads=heads.kv_heads,
            key_dim=heads.key_dim,
            value_dim=heads.value_dim,
            first_position=self.tokens - rows,
            scale=scale,
            threads=threads,
            query_row_stride=heads.key_dim,
            query_head_stride=rows * heads.key_dim,
            window=heads.window,
        )
        lib = self._lease._lib
        status = lib.attend(
            ctypes.addressof(self._table),
            self._blocks,
            ctypes.addressof(self._formats),
            len(self._formats),
            _address(query),
            _address(out),
            ctypes.addressof(options),
        )
        self.error = "" if status == _abi.OK else lib.error()
        return None if self.error else out

    def _add_page(self, tokens: int) -> None:
        rounded = -(-tokens // _LEAST_PAGE_TOKENS) * _LEAST_PAGE_TOKENS
        page = _Page(self._heads, min(max(rounded, 4 * _LEAST_PAGE_TOKENS), _MOST_PAGE_TOKENS))
        self._own.append(page)
        if self._blocks == len(self._table):
            self._table = _grown(self._table, self._blocks)
        entry = self._table[self._blocks]
        entry.units, entry.arena_offset = page.address, _NOT_IN_THE_ARENA
        entry.page_tokens, entry.tokens, entry.format = page.capacity, 0, 0
        self._blocks += 1


class _Page:
    """A page of raw rows: a unit for each head of K, then one for each of V."""

    def __init__(self, heads: Heads, capacity: int) -> None:
        item = heads.element.itemsize
        dims = (heads.key_dim, heads.value_dim)
        units = [-(-capacity * dim * item // _UNIT_BYTES) * _UNIT_BYTES for dim in dims]
        memory = np.empty(heads.kv_heads * sum(units) + _UNIT_BYTES, np.uint8)
        skip = -_address(memory) % _UNIT_BYTES
        self.address = _address(memory) + skip
        self.capacity, self.tokens = capacity, 0
        sides, at = [], skip
        for dim, unit in zip(dims, units, strict=True):
            whole = memory[at : at + heads.kv_heads * unit].reshape(heads.kv_heads, unit)
            rows = whole[:, : capacity * dim * item].view(heads.element)
            sides.append(rows.reshape(heads.kv_heads, capacity, dim))
            at += heads.kv_heads * unit
        self.key, self.value = sides

    @property
    def full(self) -> bool:
        return self.tokens == self.capacity

    def put(self, key: NDArray[Any], value: NDArray[Any]) -> None:
        end = self.tokens + key.shape[1]
        self.key[:, self.tokens : end], self.value[:, self.tokens : end] = key, value
        self.tokens = end


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _grown(table: Any, used: int) -> Any:
    """Returns a copy with room for more entries."""
    larger = (_abi.Block * (2 * used + 8))()
    ctypes.memmove(larger, table, used * ctypes.sizeof(_abi.Block))
    return larger
