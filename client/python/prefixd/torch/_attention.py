"""prefixd::attend: attention over pages as they are stored, as an operation that PyTorch knows, and
Table, which says where the pages of one layer of a sequence are.

On the CPU prefixd_attend() computes it, on a GPU prefixd_cuda_attend(). torch.compile traces over
it: its result depends on the query and on the pages it is given, and on nothing else that changes.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Sequence
from typing import Any

import torch

from .. import _abi, _cuda
from .._errors import Error
from .._lease import Lease, _Held
from ._gpu import Gpu, gpu
from ._loading import DevicePages
from ._tensors import DTYPES, formats_of

_NOT_IN_THE_ARENA = 2**64 - 1
_WORDS = ctypes.sizeof(_abi.Block) // 8  # of a block in a tensor of int64
_DECODE_ROWS = 8  # that each kernel of the GPU's takes in one call
_UNIT_BYTES = 128  # a page begins at a multiple of it, and each head's unit is one
_MOST_PAGE_TOKENS, _LEAST_PAGE_TOKENS = 1024, 64
_GPUS_ALONE = "values that are part of the keys (MLA) are attended on by GPUs alone"
_SHAPES = 64  # of attentions that a process keeps ready on GPUs


@torch.library.custom_op("prefixd::attend", mutates_args=(), device_types="cpu")
def attend(
    query: torch.Tensor,
    blocks: torch.Tensor,
    pages: Sequence[torch.Tensor],
    formats: Sequence[int],
    kv_heads: int,
    value_dim: int,
    first_position: int,
    scale: float,
    window: int,
    sink_tokens: int,
    values_in_keys: bool = False,
) -> torch.Tensor:
    """Returns the attention [rows, heads, value_dim] of a query [rows, heads, key_dim], in its
    type; row i sees positions up to first_position + i. `blocks`: prefixd_block structs, int64 in
    host memory, whose units the device can read. `pages`: tensors that hold units which change
    between calls. `formats`: K's and V's prefixd_tensor_format of each format, as int64.
    `values_in_keys`: V is the first value_dim elements of K, which pages hold alone (MLA); on GPUs.
    """
    if values_in_keys:
        raise Error(f"attend: {_GPUS_ALONE}")
    lib = _abi.library()
    rows, heads, key_dim = query.shape
    floats = query.detach().to(torch.float32).contiguous()
    out = torch.empty(rows, heads, value_dim)
    options = _abi.AttendOptions(
        query_rows=rows,
        query_heads=heads,
        kv_heads=kv_heads,
        key_dim=key_dim,
        value_dim=value_dim,
        first_position=first_position,
        scale=scale,
        threads=torch.get_num_threads(),
        window=window,
        sink_tokens=sink_tokens,
    )
    words = (ctypes.c_int64 * len(formats))(*formats)
    status = lib.attend(
        blocks.data_ptr(),
        len(blocks),
        ctypes.addressof(words),
        len(formats) // 2,
        floats.data_ptr(),
        out.data_ptr(),
        ctypes.addressof(options),
    )
    if status:
        raise Error(lib.error())
    return out.to(query.dtype)


@attend.register_fake
def _(
    query: torch.Tensor,
    blocks: torch.Tensor,
    pages: Sequence[torch.Tensor],
    formats: Sequence[int],
    kv_heads: int,
    value_dim: int,
    *rest: Any,
) -> torch.Tensor:
    return query.new_empty(query.shape[0], query.shape[1], value_dim)


@attend.register_kernel("cuda")
def _(
    query: torch.Tensor,
    blocks: torch.Tensor,
    pages: Sequence[torch.Tensor],
    formats: Sequence[int],
    kv_heads: int,
    value_dim: int,
    first_position: int,
    scale: float,
    window: int,
    sink_tokens: int,
    values_in_keys: bool = False,
) -> torch.Tensor:
    on = gpu(query.device)
    rows, heads, key_dim = query.shape
    given = query.detach().contiguous()
    out = torch.empty(rows, heads, value_dim, dtype=query.dtype, device=query.device)
    entries = ctypes.cast(blocks.data_ptr(), ctypes.POINTER(_abi.Block))
    with torch.cuda.device(on.device):
        stream = torch.cuda.current_stream().cuda_stream
        shape = (heads, kv_heads, key_dim, value_dim, scale, window, sink_tokens, values_in_keys)
        at_once = _rows_at_once(on, tuple(formats), shape)
        for begin in range(0, rows, at_once):
            end = min(begin + at_once, rows)
            attention = _attention(on, stream, tuple(formats), end - begin, shape)
            attention(
                _cuda.Sequence(
                    blocks=entries, block_count=len(blocks), first_position=first_position + begin
                ),
                given[begin:end],
                out[begin:end],
            )
    return out


def _options(
    formats: tuple[int, ...], rows: int, shape: tuple[Any, ...]
) -> _cuda.AttentionOptions:
    heads, kv_heads, key_dim, value_dim, scale, window, sink_tokens, values_in_keys = shape
    words = (ctypes.c_int64 * len(formats))(*formats)
    return _cuda.AttentionOptions(
        formats=ctypes.cast(words, ctypes.POINTER(_abi.Format)),
        format_count=len(formats) // 2,
        query_rows=rows,
        query_heads=heads,
        kv_heads=kv_heads,
        key_dim=key_dim,
        value_dim=value_dim,
        scale=scale,
        window=window,
        sink_tokens=sink_tokens,
        values=_cuda.VALUES_KEY_PREFIX if values_in_keys else 0,
    )


@functools.lru_cache(maxsize=_SHAPES)
def _rows_at_once(on: Gpu, formats: tuple[int, ...], shape: tuple[Any, ...]) -> int:
    """Returns how many rows one call attends on at full speed."""
    rows = on.lib.attention_rows(on.pointer, ctypes.byref(_options(formats, 1, shape)))
    if not rows:
        raise Error(on.lib.error())
    return rows


class _Attention:
    """One shape of attention on one stream of a GPU."""

    def __init__(
        self, on: Gpu, stream: int, formats: tuple[int, ...], rows: int, shape: tuple[Any, ...]
    ) -> None:
        self._on, self._stream = on, stream
        self._lock = threading.Lock()
        options = _options(formats, rows, shape)
        self._pointer = on.lib.attention_new(on.pointer, ctypes.byref(options))
        if not self._pointer:
            raise Error(on.lib.error())

    def __del__(self) -> None:
        if getattr(self, "_pointer", None):
            self._on.lib.attention_free(self._pointer)

    def __call__(self, sequence: _cuda.Sequence, query: torch.Tensor, out: torch.Tensor) -> None:
        lib = self._on.lib
        heads = [_cuda.Heads(data=one.data_ptr(), dtype=DTYPES[one.dtype]) for one in (query, out)]
        with self._lock:
            status = lib.attention_set(self._pointer, ctypes.byref(sequence), 1, self._stream)
            if not status:
                status = lib.attend(
                    self._pointer, 0, *map(ctypes.pointer, heads), None, self._stream
                )
            if status:
                raise Error(lib.error())


@functools.lru_cache(maxsize=_SHAPES)
def _attention(
    on: Gpu, stream: int, formats: tuple[int, ...], rows: int, shape: tuple[Any, ...]
) -> _Attention:
    return _Attention(on, stream, formats, rows, shape)


class Table:
    """One layer of a sequence as attention reads it: leased pages, on the CPU in place and on a GPU
    in device memory, and behind them pages of this process for what the engine computes. From one
    thread at a time. Keeps its lease until it is gone."""

    def __init__(
        self,
        lease: Lease,
        layer: int,
        tokens: int,
        *,
        pages: DevicePages | None = None,
        dtype: torch.dtype | None = None,
        window: int = 0,
        sink_tokens: int = 0,
    ) -> None:
        """`tokens`: those of the lease. `pages`: that bring the layer to a GPU; None: on the CPU.
        `dtype`: of the rows that append() takes; one format of the layer must be raw, of that type,
        in rows; None: append() is not called."""
        self._held: _Held = lease._pages("table")
        self.device = torch.device("cpu") if pages is None else pages.device
        self._pages = pages
        self._layer = lease._layer("table", layer)
        formats = lease._layers[self._layer]
        structs = formats_of("table", formats)
        self._formats = list((ctypes.c_int64 * (2 * len(structs))).from_buffer_copy(structs))
        self._key, self._value = formats[0]
        self._in_keys = not self._value.parts
        if self._in_keys and not self._value.dim:
            raise Error(f"table: layer {layer} has no values")
        if self._in_keys and self.device.type == "cpu":
            raise Error(f"table: {_GPUS_ALONE}")
        leased = lease._block_table(layer) if pages is None else pages.tables[layer]
        self._blocks = len(leased)
        self._table = torch.zeros(2 * len(leased) + 8, _WORDS, dtype=torch.int64)
        ctypes.memmove(self._table.data_ptr(), leased, ctypes.sizeof(leased))
        self._dtype, self._raw = dtype, _raw_format(formats, dtype)
        self._window, self._sinks = window, sink_tokens
        self._own: list[_Page] = []
        self.leased_tokens = tokens
        self.tokens = tokens

    def append(self, key: torch.Tensor, value: torch.Tensor | None = None) -> None:
        """Copies rows [kv_heads, n, dim] behind the last ones. `value`: None where V is part of K."""
        if (value is None) != self._in_keys:
            raise Error(f"append: the layer stores {'K alone' if self._in_keys else 'K and V'}")
        if self._raw is None:
            raise Error(f"append: no format of the layer is raw {self._dtype} in rows")
        done, count = 0, key.shape[1]
        while done < count:
            if not self._own or self._own[-1].is_full:
                self._add_page(count - done)
            page = self._own[-1]
            take = min(page.capacity - page.tokens, count - done)
            page.put(*(one[:, done : done + take] for one in (key, value) if one is not None))
            self._entry(self._blocks - 1).tokens = page.tokens
            done += take
        self.tokens += count

    def own_rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns a copy of the rows behind the leased ones: K and V [kv_heads, n, dim]."""
        sides = []
        for at, side in enumerate((self._key,) if self._in_keys else (self._key, self._value)):
            empty = torch.empty(side.heads, 0, side.dim, dtype=self._dtype, device=self.device)
            found = [page.sides[at][:, : page.tokens] for page in self._own]
            sides.append(torch.cat([empty, *found], dim=1))
        return sides[0], sides[0][..., : self._value.dim] if self._in_keys else sides[1]

    def is_quick(self, query: torch.Tensor, scale: float) -> bool:
        """Returns whether attend() is the fastest way for this query: always on the CPU; on a GPU up
        to 8 rows, and any number where it has the kernel for many rows. Raises Error if the
        kernels cannot attend."""
        if self._pages is None:
            return True
        rows, heads, dim = query.shape
        sides = (heads, self._key.heads, dim, self._value.dim)
        shape = (*sides, scale, self._window, self._sinks, self._in_keys)
        most = _rows_at_once(gpu(self.device), tuple(self._formats), shape)
        return rows <= _DECODE_ROWS or most > _DECODE_ROWS

    def attend(self, query: torch.Tensor, scale: float) -> torch.Tensor:
        """Returns the attention [rows, heads, value_dim] of the last rows of the sequence, of a
        query [rows, heads, key_dim]. Raises Error if the kernels cannot."""
        if self._pages is not None:
            self._pages.wait(self._layer)
        found: torch.Tensor = torch.ops.prefixd.attend(
            query,
            self._table[: self._blocks],
            [page.memory for page in self._own],
            self._formats,
            self._key.heads,
            self._value.dim,
            self.tokens - query.shape[0],
            scale,
            self._window,
            self._sinks,
            self._in_keys,
        )
        return found

    def _entry(self, at: int) -> _abi.Block:
        return _abi.Block.from_address(self._table[at].data_ptr())

    def _add_page(self, tokens: int) -> None:
        assert self._dtype is not None and self._raw is not None
        rounded = -(-tokens // _LEAST_PAGE_TOKENS) * _LEAST_PAGE_TOKENS
        capacity = min(max(rounded, 4 * _LEAST_PAGE_TOKENS), _MOST_PAGE_TOKENS)
        dims = (self._key.dim,) if self._in_keys else (self._key.dim, self._value.dim)
        page = _Page(self._key.heads, dims, capacity, self._dtype, self.device)
        self._own.append(page)
        if self._blocks == len(self._table):
            self._table = torch.cat([self._table, torch.zeros_like(self._table)])
        entry = self._entry(self._blocks)
        entry.units, entry.arena_offset = page.address, _NOT_IN_THE_ARENA
        entry.page_tokens, entry.tokens, entry.format = capacity, 0, self._raw
        self._blocks += 1


def _raw_format(formats: Sequence[Any], dtype: torch.dtype | None) -> int | None:
    """Returns the index of the format that is raw elements of the type, in rows."""
    wanted = str(dtype).removeprefix("torch.")
    for at, pair in enumerate(formats):
        if all(
            one.format is None
            or (one.format.codec, one.format.dtype) == ("raw", wanted)
            and not one.transposed
            for one in pair
        ):
            return at
    return None


class _Page:
    """A page of raw rows: a unit for each head of K, then one for each of V."""

    def __init__(
        self,
        heads: int,
        dims: tuple[int, ...],
        capacity: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        item = dtype.itemsize
        units = [-(-capacity * dim * item // _UNIT_BYTES) * _UNIT_BYTES for dim in dims]
        size = heads * sum(units)
        self.memory = torch.zeros(size + _UNIT_BYTES, dtype=torch.uint8, device=device)
        skip = -self.memory.data_ptr() % _UNIT_BYTES
        self.address = self.memory.data_ptr() + skip
        self.capacity, self.tokens = capacity, 0
        self.sides, at = [], skip
        for dim, unit in zip(dims, units, strict=True):
            whole = self.memory[at : at + heads * unit].view(heads, unit)
            rows = whole[:, : capacity * dim * item].view(dtype)
            self.sides.append(rows.view(heads, capacity, dim))
            at += heads * unit

    @property
    def is_full(self) -> bool:
        return self.tokens == self.capacity

    def put(self, *rows: torch.Tensor) -> None:
        end = self.tokens + rows[0].shape[1]
        for side, given in zip(self.sides, rows, strict=True):
            side[:, self.tokens : end] = given
        self.tokens = end
