"""Storing the tokens of a sequence that the cache lacks, from the engine's own tensors."""

from __future__ import annotations

import ctypes
from operator import index
from types import TracebackType
from typing import NamedTuple, Sequence

import numpy as np

from . import _abi, _planes, _rows
from ._errors import Error
from ._numbers import UINT32, _ms, _number
from ._planes import Array, Arrays, Tensor
from ._trace import follow


class Run(NamedTuple):
    """Tokens [begin, end)."""

    begin: int
    end: int


class CommitInfo(NamedTuple):
    stored_tokens: int
    duplicate_tokens: int
    error: str = ""  # why nothing was stored: costs a later miss, nothing else


class Plan:
    """A plan to store tokens: for each run of `missing` write every layer, then commit its end. One
    thread at a time.

    A context manager: leaving it, or abandon(), gives up what was not committed.
    """

    __slots__ = ("_lib", "_held", "_layers", "_format", "_tokens", "missing", "formats", "error")

    def __init__(
        self,
        lib: _abi.Library,
        pointer: int | None,
        error: str,
        layers: Sequence[tuple[tuple[Tensor, Tensor], ...]],
        write_format: int,
        tokens: int,
    ) -> None:
        self._lib = lib
        self._held: _abi.Handle | None = _abi.Handle(lib, pointer, "abandon")
        self._layers = layers
        self._format = write_format
        self._tokens = tokens
        count = lib.missing(pointer, None, 0)
        runs, formats = (_abi.Run * count)(), (ctypes.c_uint32 * count)()
        lib.missing(pointer, runs, count)
        lib.missing_formats(pointer, formats, count)
        # Runs of blocks that the cache lacks and no other worker is writing, in position order.
        self.missing: tuple[Run, ...] = tuple(Run(run.begin, run.end) for run in runs)
        # For each run, the index into the layers' formats that write_packed() must bring:
        # `writable` of reserve(), or one of its `coarser` formats if the daemon advises it.
        self.formats: tuple[int, ...] = tuple(formats)
        self.error: str = error  # why nothing can be stored; "" if it can

    def __repr__(self) -> str:
        if self._held is None:
            return "<prefixd.Plan abandoned>"
        runs = ", ".join(f"[{run.begin}, {run.end})" for run in self.missing) or "nothing"
        why = f", {self.error}" if self.error else ""
        return f"<prefixd.Plan of {self._tokens} tokens, missing {runs}{why}>"

    def __enter__(self) -> Plan:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.abandon()

    def write_packed(self, layer: int, begin: int = 0, *, key: Arrays, value: Arrays = ()) -> bool:
        """Stores tokens from `begin` on, as many as the arrays have, as they are. K and V are each
        codes, scales and biases [1, kv_heads, tokens, row], or one array if the format has no more.
        A layer with fewer formats than the run's index takes its last one. bfloat16 travels as
        uint16. Tokens of blocks that are not to be written are passed over. Returns False if there
        is no room: commit() says so, and the tokens are a later miss."""
        if not 0 <= layer < len(self._layers):
            raise Error(f"write_packed: layer {layer}, the space has {len(self._layers)}")
        held = self._held
        if held is None or self.error:
            return False
        formats = self._layers[layer]
        if not formats:
            raise Error(f"write_packed: layer {layer} keeps a state, put_state() takes it")
        last = len(formats) - 1  # it also stands for a run's index beyond it
        which = min(self._format_from(begin), last)
        tensors = formats[which]
        k = _planes.to_read("write_packed", tensors[0], key)
        v = (
            _planes.to_read("write_packed", tensors[1], value)
            if tensors[1].parts
            else _planes.none_of(k.tokens)
        )
        if k.tokens != v.tokens or begin < 0 or begin + k.tokens > self._tokens:
            raise Error(
                f"write_packed: {k.tokens} tokens of K and {v.tokens} of V from {begin} on, "
                f"the plan has {self._tokens}"
            )
        if any(
            min(format, last) != which and run.begin < begin + k.tokens and begin < run.end
            for run, format in zip(self.missing, self.formats)
        ):
            raise Error(f"write_packed: runs of several formats in {k.tokens} tokens from {begin} on")
        status = self._lib.write_packed(
            held.pointer,
            index(layer),
            index(begin),
            k.tokens,
            ctypes.addressof(k.planes),
            ctypes.addressof(v.planes),
        )
        if status == _abi.INVALID_ARGUMENT:
            raise Error(self._lib.error())
        if status != _abi.OK:
            self.error = self._lib.error()
        return status == _abi.OK

    def write_rows(
        self,
        layer: int,
        begin: int = 0,
        *,
        key: Array,
        value: Array = None,
        dtype: str | None = None,
    ) -> bool:
        """write_packed() for elements [1, kv_heads, tokens, dim], which prefixd's kernels quantize,
        each block in the format that `formats` tells. `dtype` as for Lease.gather_rows()."""
        if not 0 <= layer < len(self._layers):
            raise Error(f"write_rows: layer {layer}, the space has {len(self._layers)}")
        held = self._held
        if held is None or self.error:
            return False
        formats = self._layers[layer]
        if not formats:
            raise Error(f"write_rows: layer {layer} keeps a state, put_state() takes it")
        k = _rows.view("write_rows", formats[0][0], key, dtype, to_write=False)
        v = (
            _rows.view("write_rows", formats[0][1], value, dtype, to_write=False)
            if formats[0][1].parts
            else _rows.none_of(k.tokens)
        )
        if k.tokens != v.tokens or begin < 0 or begin + k.tokens > self._tokens:
            raise Error(
                f"write_rows: {k.tokens} tokens of K and {v.tokens} of V from {begin} on, "
                f"the plan has {self._tokens}"
            )
        status = self._lib.write_rows(
            held.pointer,
            index(layer),
            index(begin),
            k.tokens,
            ctypes.addressof(k.rows),
            ctypes.addressof(v.rows),
        )
        if status == _abi.INVALID_ARGUMENT:
            raise Error(self._lib.error())
        if status != _abi.OK:
            self.error = self._lib.error()
        return status == _abi.OK

    def _format_from(self, begin: int) -> int:
        """Returns the format that the first run ending behind `begin` wants."""
        for run, format in zip(self.missing, self.formats):
            if begin < run.end:
                return format
        return self._format

    @property
    def snapshots_wanted(self) -> tuple[int, ...]:
        """With state layers: the positions, ascending, at which the cache wants their states. The
        caller may give others too."""
        held = self._held
        pointer = None if held is None else held.pointer
        count = self._lib.snapshots_wanted(pointer, None, 0)
        positions = (ctypes.c_uint32 * count)()
        self._lib.snapshots_wanted(pointer, positions, count)
        return tuple(positions)

    def put_state(self, layer: int, tokens: int, state: Array) -> bool:
        """Copies the state of `layer` after exactly `tokens` tokens. `state` is anything that holds
        its bytes. The commit() that reaches so far stores it, if every state layer gave its own.
        Returns False if there is no room, or nothing is to be stored."""
        held = self._held
        if held is None or self.error:
            return False
        array = np.ascontiguousarray(
            np.frombuffer(state, np.uint8) if isinstance(state, (bytes, bytearray)) else state
        )
        status = self._lib.put_state(
            held.pointer,
            _number("put_state: layer", layer, 0, UINT32),
            _number("put_state: tokens", tokens, 0, UINT32),
            array.__array_interface__["data"][0],
            array.nbytes,
        )
        if status == _abi.INVALID_ARGUMENT:
            raise Error(self._lib.error())
        return status == _abi.OK

    def commit(
        self, tokens: int, sequence_end: bool = False, *, deadline_ms: int | None = None
    ) -> CommitInfo:
        """Publishes blocks up to `tokens`, a block border or the end of the sequence."""
        if not 0 <= tokens <= self._tokens:
            raise Error(f"commit: up to token {tokens}, the plan has {self._tokens}")
        held = self._held
        if held is None or self.error or tokens == 0:
            return CommitInfo(0, 0, self.error)
        deadline = _ms("commit: deadline_ms", deadline_ms)
        options = _abi.CommitOptions(sequence_end=sequence_end, deadline_ms=deadline)
        info = _abi.CommitInfo()
        follow(self._lib)
        status = self._lib.commit(
            held.pointer, index(tokens), ctypes.addressof(options), ctypes.addressof(info)
        )
        if status == _abi.OK:
            return CommitInfo(info.stored_tokens, info.duplicate_tokens)
        error = self._lib.error()
        if status == _abi.INVALID_ARGUMENT:
            raise Error(error)
        if status == _abi.DEADLINE:
            self.error = error  # the daemon may hang: writing more is useless
        return CommitInfo(0, 0, error)

    def abandon(self) -> None:
        """Gives up what was not committed. The plan then has nothing to write."""
        self._held = None
        self.missing = self.formats = ()
        self.error = self.error or "plan: abandoned"
