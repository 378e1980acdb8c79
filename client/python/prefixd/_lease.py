"""The result of a lookup, and the lease on what was found."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from operator import index
from types import TracebackType
from typing import Any, NamedTuple, Sequence

import numpy as np
from numpy.typing import NDArray

from . import _abi, _planes, _rows
from ._errors import Error
from ._numbers import UINT32, _ms, _number, _real
from ._planes import Arrays, Tensor

KINDS = ("none", "exact", "supersequence", "prefix", "lcp", "none")  # index: PREFIXD_EXACT ...
_UNIT_BYTES = 128  # the size of a unit is a multiple of it
_TILED_SLOTS = 16  # slots of a tiled page: its tokens, rounded up to a multiple of this

Planes = tuple[NDArray[Any], ...]


class Reason(NamedTuple):
    """One reason why a lookup gives fewer tokens ("evicted", "max_tokens" ...), and how many."""

    name: str
    tokens: int


@dataclass(frozen=True)
class Match:
    """The result of a lookup, for logs and usage fields."""

    kind: str = "none"  # "exact", "supersequence", "prefix", "lcp", "none"
    matched_tokens: int = 0
    restorable_tokens: int = 0
    pending_tokens: int = 0  # tokens beyond the restorable ones that another worker announced
    in_place: bool = False  # pages are read in the daemon's memory, nothing is sent
    ram_bytes: int = 0
    ssd_bytes: int = 0
    remote_bytes: int = 0  # of pages that other hosts stored, on their way from the shared store
    estimated_load_us: int = 0
    reasons: tuple[Reason, ...] = ()
    error: str = ""  # why the cache was not used; "" if it was


def _kind_of(info: _abi.MatchInfo) -> str:
    """Returns the name of the kind; "none" for one that only a newer library has."""
    return KINDS[info.kind] if info.kind < len(KINDS) else "none"


def match_of(info: _abi.MatchInfo, error: str) -> Match:
    return Match(
        _kind_of(info),
        info.matched_tokens,
        info.restorable_tokens,
        info.pending_tokens,
        bool(info.in_place),
        info.ram_bytes,
        info.ssd_bytes,
        info.remote_bytes,
        info.estimated_load_us,
        tuple(_reasons(info.why_shorter.decode(errors="replace"))),
        error,
    )


def _reasons(sentence: str) -> list[Reason]:
    pairs = (item.rpartition(" ") for item in sentence.split(", ") if item)
    return [Reason(name, int(count)) for name, _, count in pairs if count.isdigit()]


class _Held(_abi.Handle):
    """The handle of a lease. The lease refers to it, and so do the arrays over its pages."""

    __slots__ = ("used",)

    def __init__(self, lib: _abi.Library, pointer: int | None) -> None:
        super().__init__(lib, pointer, "release")
        self.used: _abi.Used | None = None

    def _last_words(self) -> tuple[int | None]:
        return (None if self.used is None else ctypes.addressof(self.used),)


class Block:
    """One layer of one KV block in place: read-only arrays over the leased page.

    Each array is [1, kv_heads, tokens, row]. In a tiled page K and V are one array of bytes each,
    [kv_heads, unit].

    The arrays keep the page leased: it goes back when the lease is released and the arrays are
    gone.
    """

    __slots__ = ("begin", "tokens", "format", "key", "value", "arena_offset")

    def __init__(
        self, begin: int, entry: _abi.Block, tensors: tuple[Tensor, Tensor], held: _Held
    ) -> None:
        self.begin: int = begin  # position of the block's first token
        self.tokens: int = entry.tokens
        self.format: int = entry.format  # index into the layer's formats
        self.arena_offset: int | None = (
            None if entry.arena_offset == 2**64 - 1 else entry.arena_offset
        )
        key, value = tensors
        key_bytes = key.heads * _unit_bytes(key, entry.page_tokens)
        whole = key_bytes + value.heads * _unit_bytes(value, entry.page_tokens)
        memory = (ctypes.c_ubyte * whole).from_address(entry.units)
        setattr(memory, "held", held)  # views of this memory keep the lease
        page = np.frombuffer(memoryview(memory).toreadonly(), np.uint8)
        self.key: Planes = _parts(page[:key_bytes], key, entry)
        self.value: Planes = _parts(page[key_bytes:], value, entry)


def _unit_bytes(tensor: Tensor, page_tokens: int) -> int:
    slots = -(-page_tokens // _TILED_SLOTS) * _TILED_SLOTS if tensor.tiled else page_tokens
    return -(-slots * tensor.row_bytes // _UNIT_BYTES) * _UNIT_BYTES


def _parts(units: NDArray[Any], tensor: Tensor, entry: _abi.Block) -> Planes:
    if not tensor.parts:
        return ()
    heads = units.reshape(tensor.heads, -1)
    if tensor.tiled:
        return (heads,)
    if tensor.transposed:  # each head is [dim, tokens]
        element, row = tensor.parts[0].dtype, tensor.parts[0].row_elements
        whole = heads[:, : entry.page_tokens * tensor.row_bytes].view(element)
        turned = whole.reshape(1, tensor.heads, row, entry.page_tokens).transpose(0, 1, 3, 2)
        return (turned[:, :, : entry.tokens],)
    parts, at = [], 0
    for part in tensor.parts:
        end = at + entry.page_tokens * part.row_bytes
        rows = heads[:, at:end].view(part.dtype)
        rows = rows.reshape(1, tensor.heads, entry.page_tokens, part.row_elements)
        parts.append(rows[:, :, : entry.tokens])
        at = end
    return tuple(parts)


class Lease:
    """The cached tokens of a request, to be copied out. One thread at a time.

    A context manager: leaving it, or release(), gives the pages back. Without a cache a lease has 0
    tokens.
    """

    __slots__ = ("_lib", "_held", "_info", "error", "_layers", "_states", "_windows", "_match")

    def __init__(
        self,
        lib: _abi.Library,
        pointer: int | None,
        info: _abi.MatchInfo,
        error: str,
        layers: Sequence[tuple[tuple[Tensor, Tensor], ...]],
        states: Sequence[int] = (),
        windows: Sequence[int] = (),
    ) -> None:
        self._lib = lib
        self._held: _Held | None = _Held(lib, pointer)
        self._info = info
        self.error = error  # why the cache was not used; "" if it was
        self._layers = layers
        self._states = states  # bytes of each layer's state; 0 for other layers
        self._windows = windows  # tokens of each sliding layer's window; 0 for other layers
        self._match: Match | None = None

    def __repr__(self) -> str:
        if self._held is None:
            return "<prefixd.Lease released>"
        why = f", {self.error}" if self.error else ""
        return f"<prefixd.Lease of {self.restorable_tokens} tokens, {self.match_kind}{why}>"

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    @property
    def match(self) -> Match:
        """The result of the lookup."""
        if self._match is None:
            self._match = match_of(self._info, self.error)
        return self._match

    @property
    def match_kind(self) -> str:
        return _kind_of(self._info)

    @property
    def reasons(self) -> tuple[Reason, ...]:
        return self.match.reasons

    @property
    def restorable_tokens(self) -> int:
        """Tokens that need not be computed. May shrink until wait_all() returns."""
        held = self._held
        return 0 if held is None else self._lib.restorable_tokens(held.pointer)

    def wait(self, layer: int, deadline_ms: int | None = None) -> int:
        """Waits until the pages of `layer` are here: at most `deadline_ms`, or if None as long as
        the load may take. Pages that are not here by then are not used. Returns the restorable
        tokens."""
        held = self._pages("wait")
        deadline = _ms("wait: deadline_ms", deadline_ms)
        return self._lib.wait(held.pointer, self._layer("wait", layer), deadline)

    def wait_all(self, deadline_ms: int | None = None) -> int:
        """Waits for every layer as wait() does. The returned number does not shrink any more."""
        held = self._pages("wait_all")
        return self._lib.wait_all(held.pointer, _ms("wait_all: deadline_ms", deadline_ms))

    def gather(
        self,
        layer: int,
        tokens: int | None = None,
        *,
        begin: int | None = None,
        out: tuple[Arrays, Arrays] | None = None,
    ) -> tuple[Planes, Planes] | None:
        """Copies tokens [begin, begin + tokens) of `layer`, bit for bit as they are stored. Returns
        K and V, each a tuple of codes, scales and biases, or of one array if the format has no
        more.

        By default copies all tokens of the lease, and of a sliding layer those of its window: the
        last `window` tokens, or all if the lease has fewer. The sinks are gather(layer,
        sink_tokens, begin=0).

        Copies once, into fresh arrays [1, kv_heads, tokens, row] or into the caller's `out`. Waits
        for the layer. Returns None if the lease has fewer tokens by now (never for the tokens that
        wait_all() returned), if the tokens are stored in several formats, or if tokens of a sliding
        layer are neither in its window nor among its sinks; `error` then says which, and runs()
        what can be gathered.
        """
        held = self._pages("gather")
        layer = self._layer("gather", layer)
        if self._states[layer]:
            raise Error(f"gather: layer {layer} keeps a state, state() gives it")
        formats = self._layers[layer]
        if begin is None:
            window = self._windows[layer] if tokens is None else 0
            begin = max(self.wait(layer) - window, 0) if window else 0
        begin = _number("gather: begin", begin, 0, UINT32)
        if tokens is None:
            tokens = max(self.wait(layer) - begin, 0)
        tokens = _number("gather: tokens", tokens, 0, UINT32)
        which = 0 if len(formats) == 1 else self._format_of(held, layer, begin, tokens)
        if which is None or not held.pointer and tokens:
            here = ", ".join(f"[{run[0]}, {run[1]})" for run in self.runs(layer)) or "none"
            self.error = (
                f"gather: tokens [{begin}, {begin + tokens}) of layer {layer} are not one run of "
                f"this lease; its runs are {here}"
            )
            return None
        key, value = formats[which]
        if out is None:
            arrays = (_planes.empty(key, tokens), _planes.empty(value, tokens))
            k = _planes.of_fresh(key, arrays[0], tokens)
            v = _planes.of_fresh(value, arrays[1], tokens)
        else:
            arrays = (_tuple(out[0]), _tuple(out[1]))
            k = _planes.to_write("gather", key, arrays[0])
            v = (
                _planes.to_write("gather", value, arrays[1])
                if value.parts
                else _planes.none_of(k.tokens)
            )
            if k.tokens != tokens or v.tokens != tokens:
                raise Error(f"gather: out has room for {k.tokens} and {v.tokens}, not for {tokens}")
        if tokens == 0:
            return arrays
        planes = ctypes.addressof(k.planes), ctypes.addressof(v.planes)
        status = self._lib.gather(held.pointer, layer, begin, tokens, *planes)
        if status == _abi.INVALID_ARGUMENT:
            raise Error(self._lib.error())
        if status != _abi.OK:
            self.error = self._lib.error()
        return arrays if status == _abi.OK else None

    def gather_rows(
        self,
        layer: int,
        out: tuple[Any, Any],
        *,
        begin: int = 0,
        dtype: str | None = None,
    ) -> bool:
        """gather() for engines that compute on elements: fills `out`, K and V [1, kv_heads, tokens,
        dim], with tokens from `begin` on, dequantized from whatever they are stored in.

        Rows are dense, heads and tokens may have any strides. `dtype` of the elements: "float32",
        "float16" or "bfloat16"; default: as NumPy says, where uint16 is bfloat16. The V of a layer
        that stores none is None. The tokens may be in several formats. Returns False, with `error`,
        where gather() returns None.
        """
        held = self._pages("gather_rows")
        layer = self._layer("gather_rows", layer)
        if self._states[layer]:
            raise Error(f"gather_rows: layer {layer} keeps a state, state() gives it")
        formats = self._layers[layer]
        if not formats:
            raise Error(f"gather_rows: layer {layer} shares another layer's rows, gather those")
        key, value = formats[0]
        k = _rows.view("gather_rows", key, out[0], dtype, to_write=True)
        v = (
            _rows.view("gather_rows", value, out[1], dtype, to_write=True)
            if value.parts
            else _rows.none_of(k.tokens)
        )
        if k.tokens != v.tokens:
            raise Error(f"gather_rows: out has room for {k.tokens} tokens of K, {v.tokens} of V")
        begin = _number("gather_rows: begin", begin, 0, UINT32)
        rows = ctypes.addressof(k.rows), ctypes.addressof(v.rows)
        status = self._lib.gather_rows(held.pointer, layer, begin, k.tokens, *rows)
        if status == _abi.INVALID_ARGUMENT:
            raise Error(self._lib.error())
        if status != _abi.OK:
            self.error = self._lib.error()
        return status == _abi.OK

    def state(self, layer: int, out: NDArray[Any] | None = None) -> NDArray[Any] | None:
        """Returns the bytes of a state layer's state after exactly restorable_tokens tokens, in a
        fresh array or in the caller's `out`. None if there are no such tokens. Waits for the
        layer."""
        held = self._pages("state")
        layer = self._layer("state", layer)
        wanted = self._states[layer]
        if not wanted:
            raise Error(f"state: layer {layer} keeps tokens, gather() gives them")
        array = np.empty(wanted, np.uint8) if out is None else out
        if not array.flags.c_contiguous or not array.flags.writeable or array.nbytes != wanted:
            raise Error(
                f"state: out has {array.nbytes} bytes, must be {wanted}, dense and writable"
            )
        status = self._lib.get_state(
            held.pointer, layer, array.__array_interface__["data"][0], wanted
        )
        if status == _abi.INVALID_ARGUMENT:
            raise Error(self._lib.error())
        return array if status == _abi.OK else None

    def blocks(self, layer: int) -> list[Block]:
        """Returns the pages of `layer` in place, up to the restorable tokens; copies nothing.
        Leaves out a sliding layer's blocks between its sinks and its window."""
        return [Block(*page) for page in self._leased("blocks", layer)]

    def _leased(
        self, call: str, layer: int
    ) -> Iterator[tuple[int, _abi.Block, tuple[Tensor, Tensor], _Held]]:
        """Yields each page of blocks(): its first token, its entry, its format, what holds it."""
        held = self._pages(call)
        layer = self._layer(call, layer)
        begin = 0
        for entry in self._table(held, layer):
            if entry.units:
                yield begin, entry, self._layers[layer][entry.format], held
            begin += entry.tokens

    def page_names(self, layer: int) -> list[bytes]:
        """Returns a name of 16 bytes for each block of blocks(), for caches of what is read there:
        where two names are equal, the bytes of the blocks are. A page that was stored again with
        other bytes has another name, and each layer its own. A name of zeros is none: pages that
        are copied through the socket have none."""
        held = self._pages("page_names")
        layer = self._layer("page_names", layer)
        entries = self._table(held, layer)
        names = (_abi.PageName * len(entries))()
        count = self._lib.page_names(held.pointer, layer, names, len(names))
        return [bytes(name) for name, entry in zip(names[:count], entries) if entry.units]

    def runs(self, layer: int) -> list[tuple[int, int, int]]:
        """Returns the restorable tokens of `layer` as the runs that gather() copies in one go:
        begin, end, and the index of their format in the layer's formats."""
        held = self._pages("runs")
        return [
            (run.begin, run.end, run.format) for run in self._runs(held, self._layer("runs", layer))
        ]

    def release(
        self,
        *,
        used_tokens: int | None = None,
        first_token_ms: float = 0.0,
        prefill_tokens_per_s: float = 0.0,
    ) -> None:
        """Ends the lease and tells the daemon what it was worth, for statistics and estimates.
        `used_tokens`: tokens that were not computed again; default: up to the furthest token that
        gather(), state() or blocks() gave. `prefill_tokens_per_s`: the speed at which they would
        have been computed; default: as told by the lookup, or before it by another release in this
        space. Pages whose blocks are still in use go back when those are gone."""
        held, self._held = self._held, None
        if held is None:
            return
        first_token = _real("release: first_token_ms", first_token_ms)
        held.used = _abi.Used(
            used_tokens=_used(used_tokens),
            first_token_us=int(min(first_token, UINT32) * 1000),
            prefill_tokens_per_s=_real("release: prefill_tokens_per_s", prefill_tokens_per_s),
        )

    def _pages(self, caller: str) -> _Held:
        held = self._held
        if held is None:
            raise Error(f"{caller}: the lease was released")
        return held

    def _layer(self, caller: str, layer: int) -> int:
        if not 0 <= layer < len(self._layers):
            raise Error(f"{caller}: layer {layer}, the space has {len(self._layers)}")
        return index(layer)

    def _table(self, held: _Held, layer: int) -> Sequence[_abi.Block]:
        entries = ctypes.POINTER(_abi.Block)()
        count = self._lib.table(held.pointer, layer, ctypes.byref(entries))
        return entries[:count] if count else ()

    def _block_table(self, layer: int) -> Any:
        """Returns a copy of the table that _abi's attend() takes. Its pages are leased as long as
        this lease is."""
        held = self._pages("block_table")
        entries = ctypes.POINTER(_abi.Block)()
        layer = self._layer("block_table", layer)
        count = self._lib.table(held.pointer, layer, ctypes.byref(entries))
        table = (_abi.Block * count)()
        if count:
            ctypes.memmove(table, entries, ctypes.sizeof(table))
        return table

    def stored_format(self, layer: int, tokens: int) -> tuple[Tensor, Tensor] | None:
        """Returns how K and V of the first `tokens` tokens of `layer` are stored; None if they are
        in several formats, or not here."""
        held = self._pages("stored_format")
        layer = self._layer("stored_format", layer)
        if not held.pointer or self.wait(layer) < tokens:
            return None
        which = self._format_of(held, layer, 0, tokens)
        return None if which is None else self._layers[layer][which]

    def _runs(self, held: _Held, layer: int) -> Sequence[_abi.StoredRun]:
        runs = (_abi.StoredRun * 8)()
        count = self._lib.stored_runs(held.pointer, layer, runs, len(runs))
        if count > len(runs):
            runs = (_abi.StoredRun * count)()
            count = min(count, self._lib.stored_runs(held.pointer, layer, runs, count))
        return runs[:count]

    def _format_of(self, held: _Held, layer: int, begin: int, tokens: int) -> int | None:
        """Returns the format of the tokens; None if they are in several formats, or not here."""
        if tokens == 0:
            return 0 if begin <= self.wait(layer) else None
        for run in self._runs(held, layer):
            if run.begin <= begin and begin + tokens <= run.end:
                return int(run.format)
        return None


def _used(tokens: int | None) -> int:
    """Returns the value for prefixd.h: None = 0, its default; 0 = NONE_USED."""
    if tokens is None:
        return 0
    return _number("release: used_tokens", tokens, 0, UINT32 - 1) or _abi.NONE_USED


def _tuple(arrays: Arrays) -> Planes:
    if isinstance(arrays, (tuple, list)):
        return tuple(arrays)
    return (np.asarray(arrays),)
