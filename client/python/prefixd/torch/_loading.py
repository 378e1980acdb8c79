"""From leased pages into an engine's tensors, and into device memory as they are."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .. import _abi, _cuda
from .._errors import Error
from .._lease import Lease, _unit_bytes
from ._gpu import Gpu, gpu
from ._tensors import F8, Scales, Side, Target, check_room, formats_of, sides_of

_NOT_IN_THE_ARENA = 2**64 - 1


def load(
    lease: Lease,
    into: Mapping[int, Target],
    *,
    begin: int = 0,
    count: int | None = None,
    table: Sequence[int] | None = None,
    origin: int = 0,
    scales: Mapping[int, Scales] | None = None,
) -> Load:
    """Starts to fill an engine's tensors with tokens [begin, begin + count) of the lease, all of
    its tokens by default, dequantized from whatever they are stored in. `into`: K and V of each
    layer of the space that is wanted. Token i goes to slot i - origin of a tensor [heads, tokens,
    dim], and where tensors are in blocks to slot i % block_tokens of block table[i //
    block_tokens]. `scales`: of layers whose tensors are float8_e4m3fn; default: 1. Numbers beyond
    448 times the scale become that.

    Tensors on a GPU are written behind what the current stream was told so far. wait() orders what
    comes next behind a layer; end(), or the end of the Load, waits for all. Tensors on the CPU are
    filled when this returns. Raises Error if the lease has fewer tokens by now.
    """
    lease._pages("load")
    sides = {}
    for layer, target in into.items():
        formats = lease._layers[lease._layer("load", layer)]
        if not formats:
            raise Error(f"load: layer {layer} has no rows of its own")
        sides[layer] = sides_of("load", target, formats[0], (scales or {}).get(layer, (1.0, 1.0)))
    end = min((lease.wait(layer) for layer in into), default=0)
    if count is None:
        count = max(end - begin, 0)
    if not 0 <= origin <= begin or count < 0 or begin + count > end:
        raise Error(f"load: tokens {begin} to {begin + count}, the lease has {end}")
    for pair in sides.values():
        check_room("load", pair, origin, begin + count, table)
    devices = {side.tensor.device for pair in sides.values() for side in pair}
    if len(devices) > 1:
        raise Error("load: tensors are on several devices")
    if not count or not devices:
        return Load([])
    (device,) = devices
    if device.type == "cuda":
        options = _cuda.LoadOptions(begin=begin, count=count)
        return _load_on(gpu(device), lease, sides, options, origin, table)
    for layer, pair in sides.items():
        _fill(lease, layer, pair, begin, count, table, origin)
    return Load(list(sides))


class Load:
    """What load() began. One thread at a time. Keeps tensors, and pages leased, until it ends."""

    def __init__(self, layers: Sequence[int], gpu: Gpu | None = None) -> None:
        self._places = {layer: at for at, layer in enumerate(layers)}
        self._gpu = gpu
        self._pointer: int | None = None
        self._kept: list[Any] = []

    def begin(self, options: _cuda.LoadOptions, kept: list[Any]) -> None:
        """Starts it on the GPU, behind what the current stream was told so far."""
        assert self._gpu is not None
        with torch.cuda.device(self._gpu.device):
            after = torch.cuda.current_stream().record_event()
            options.after = after.cuda_event
            self._pointer = self._gpu.lib.load_begin(self._gpu.pointer, ctypes.byref(options))
        if not self._pointer:
            raise Error(self._gpu.lib.error())
        self._kept = kept

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.end()

    def wait(self, layer: int, stream: torch.cuda.Stream | None = None) -> None:
        """Lets a stream of the GPU, by default the current one, wait until `layer` is loaded. The
        CPU does not wait."""
        at = self._place(layer)
        if self._gpu is None or not self._pointer:
            return
        with torch.cuda.device(self._gpu.device):
            stream = stream or torch.cuda.current_stream()
            if self._gpu.lib.load_wait(self._pointer, at, stream.cuda_stream):
                raise Error(self._gpu.lib.error())

    def event(self, layer: int) -> torch.cuda.Event | None:
        """Returns an event that is reached when `layer` is loaded; None on the CPU, where it is."""
        if self._gpu is None or not self._pointer:
            self._place(layer)
            return None
        with torch.cuda.device(self._gpu.device):
            beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self.wait(layer, beside)
            event: torch.cuda.Event = beside.record_event()
            return event

    def ready(self, layer: int) -> bool:
        """True if `layer` is loaded."""
        at = self._place(layer)
        if self._gpu is None or not self._pointer:
            return True
        return bool(self._gpu.lib.load_ready(self._pointer, at))

    def keep(self) -> None:
        """Pages that Gpu.keep_pages() keeps stay until what the current stream was told so far is
        done, also after end()."""
        if self._gpu is not None and self._pointer:
            with torch.cuda.device(self._gpu.device):
                stream = torch.cuda.current_stream().cuda_stream
                if self._gpu.lib.load_keep(self._pointer, stream):
                    raise Error(self._gpu.lib.error())

    def end(self) -> dict[str, int]:
        """Waits for all layers. Returns the bytes that were read in place, copied by the CPU first,
        and found in device memory."""
        counts = _cuda.LoadCounts()
        pointer, self._pointer = self._pointer, None
        if self._gpu is not None and pointer:
            with torch.cuda.device(self._gpu.device):
                status = self._gpu.lib.load_end(pointer, ctypes.byref(counts))
            self._kept = []
            if status:
                raise Error(self._gpu.lib.error())
        return {field[0]: getattr(counts, field[0]) for field in counts._fields_[1:]}

    def _place(self, layer: int) -> int:
        if layer not in self._places:
            raise Error(f"load: layer {layer} is not among those that are loaded")
        return self._places[layer]


class DevicePages:
    """The pages of some layers of a lease in device memory, as they are stored: in that which
    Gpu.keep_pages() reserved, as far as it has room, else in tensors of their own. On the CPU they
    are where the lease has them. `tables` has each layer's blocks for attention.Table."""

    def __init__(self, lease: Lease, layers: Sequence[int], device: torch.device) -> None:
        self._loads: list[Load] = []
        self.device = device
        self._held = lease._pages("pages")
        self._memory: list[torch.Tensor] = []
        self.tables: dict[int, Any] = {layer: lease._block_table(layer) for layer in layers}
        if device.type == "cuda":
            self._bring(gpu(device), lease)

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.release()

    def wait(self, layer: int) -> None:
        """Lets the current stream wait until `layer` is there."""
        for one in self._loads:
            if layer in one._places:
                one.wait(layer)

    def release(self) -> None:
        """Lets the pages go once what the current stream was told so far is done."""
        for one in self._loads:
            one.keep()
            one.end()
        self._loads = []

    def _bring(self, on: Gpu, lease: Lease) -> None:
        missing = {layer: [one.units for one in table] for layer, table in self.tables.items()}
        if on.keeps_pages:
            found = self._load(on, lease, None)
            for layer, places in found.items():
                missing[layer] = [
                    units if units and not place else None
                    for units, place in zip(missing[layer], places)
                ]
        else:
            found = {}
        if any(any(units) for units in missing.values()):
            own = {
                layer: self._rooms(lease, layer, units, self.tables[layer])
                for layer, units in missing.items()
            }
            # Blocks that are there already are left out: they have no units here.
            tables = {layer: _only(self.tables[layer], units) for layer, units in missing.items()}
            self._load(on, lease, own, tables)
            for layer, places in own.items():
                before = found.get(layer, [None] * len(places))
                found[layer] = [one or other for one, other in zip(places, before)]
        for layer, table in self.tables.items():
            for entry, place in zip(table, found.get(layer, ())):
                entry.units, entry.arena_offset = place, _NOT_IN_THE_ARENA

    def _rooms(
        self, lease: Lease, layer: int, units: Sequence[int | None], table: Any
    ) -> list[int | None]:
        """Returns the address of room for each block that has units."""
        known: dict[tuple[int, int], int] = {}  # most blocks of a layer are alike

        def page_bytes(entry: Any) -> int:
            kind = entry.format, entry.page_tokens
            if kind not in known:
                sides = lease._layers[layer][entry.format]
                known[kind] = sum(one.heads * _unit_bytes(one, entry.page_tokens) for one in sides)
            return known[kind]

        sizes = [page_bytes(entry) if at else 0 for at, entry in zip(units, table)]
        memory = torch.empty(sum(sizes), dtype=torch.uint8, device=self.device)
        self._memory.append(memory)
        places, at = [], memory.data_ptr()
        for size in sizes:
            places.append(at if size else None)
            at += size
        return places

    def _load(
        self,
        on: Gpu,
        lease: Lease,
        own: Mapping[int, Sequence[int | None]] | None,
        tables: Mapping[int, Any] | None = None,
    ) -> dict[int, list[int | None]]:
        """Loads into `own`; None: into kept pages, whose addresses are returned."""
        tables = self.tables if tables is None else tables
        structs, resident = (_cuda.LoadLayer * len(tables))(), {}
        kept: list[Any] = []
        for struct, (layer, table) in zip(structs, tables.items()):
            places = (ctypes.c_void_p * len(table))(*(own[layer] if own else ()))
            _describe(struct, lease, layer, table, kept)
            struct.pages = places if own else None
            if not own:
                names = (_abi.PageName * len(table))()
                lease._lib.page_names(self._held.pointer, layer, names, len(names))
                struct.names, struct.resident = names, places
                kept.append(names)
            resident[layer] = places
            kept.append(places)
        options = _cuda.LoadOptions(layers=structs, layer_count=len(structs))
        load = Load(list(tables), on)
        load.begin(options, [*kept, self._held, *self._memory])
        self._loads.append(load)
        return {layer: list(places) for layer, places in resident.items()}


def _only(table: Any, units: Sequence[int | None]) -> Any:
    """Returns a copy of the table without the units that are not among `units`."""
    copy = type(table)()
    ctypes.memmove(copy, table, ctypes.sizeof(table))
    for entry, at in zip(copy, units):
        entry.units = at
    return copy


def _describe(
    struct: _cuda.LoadLayer, lease: Lease, layer: int, table: Any, kept: list[Any]
) -> None:
    formats = formats_of("load", lease._layers[layer])
    key, value = lease._layers[layer][0]
    struct.size = ctypes.sizeof(_cuda.LoadLayer)
    struct.blocks, struct.block_count = table, len(table)
    struct.formats, struct.format_count = formats, len(formats)
    struct.kv_heads, struct.key_dim, struct.value_dim = key.heads, key.dim, value.dim
    if not value.parts:
        struct.values = _cuda.VALUES_KEY_PREFIX
    kept += [formats, table]


def _load_on(
    on: Gpu,
    lease: Lease,
    sides: Mapping[int, Sequence[Side]],
    options: _cuda.LoadOptions,
    origin: int,
    table: Sequence[int] | None,
) -> Load:
    held = lease._pages("load")
    structs = (_cuda.LoadLayer * len(sides))()
    kept: list[Any] = [held, structs]
    for struct, (layer, given) in zip(structs, sides.items()):
        blocks = lease._block_table(layer)
        _check_there(layer, blocks, options.begin, options.begin + options.count)
        _describe(struct, lease, layer, blocks, kept)
        tensors = [side.struct(origin) for side in given]
        struct.key = ctypes.pointer(tensors[0])
        if len(tensors) == 2:
            struct.value = ctypes.pointer(tensors[1])
        if on.keeps_pages:
            names = (_abi.PageName * struct.block_count)()
            lease._lib.page_names(held.pointer, layer, names, len(names))
            struct.names = names
            kept.append(names)
        kept += [*tensors, *(side.tensor for side in given)]
    options.layers, options.layer_count = structs, len(structs)
    if table is not None:
        ids = (ctypes.c_int32 * len(table))(*table)
        options.table, options.table_count = ids, len(ids)
    load = Load(list(sides), on)
    load.begin(options, kept)
    return load


def _check_there(layer: int, blocks: Any, begin: int, end: int) -> None:
    """Raises Error if a sliding layer does not have all of the tokens."""
    at = 0
    for one in blocks:
        if not one.units and at < end and at + one.tokens > begin:
            end = at + one.tokens
            raise Error(f"load: layer {layer} has no tokens {at} to {end} in its window")
        at += one.tokens


def _fill(
    lease: Lease,
    layer: int,
    sides: Sequence[Side],
    begin: int,
    count: int,
    table: Sequence[int] | None,
    origin: int,
) -> None:
    """Fills tensors in host memory."""
    size = sides[0].block_tokens
    at, end = begin, begin + count
    while at < end:
        stop = min(end, (at // size + 1) * size) if size else end
        if size:
            assert table is not None
            blocks = [side.block(table[at // size]) for side in sides]
            cut = [block.cut(at % size, at % size + stop - at) for block in blocks]
        else:
            cut = [side.cut(at - origin, stop - origin) for side in sides]
        # Numbers of 8 bits are made of floats, which the library gives.
        floats = [
            Side(torch.empty(side.tensor.shape)) if side.tensor.dtype == F8 else side
            for side in cut
        ]
        rows = [*(side.rows() for side in floats), _abi.Rows()][:2]
        status = lease._lib.gather_rows(
            lease._pages("load").pointer,
            layer,
            at,
            stop - at,
            *(ctypes.addressof(one) for one in rows),
        )
        if status:
            raise Error(lease._lib.error())
        for side, numbers in zip(cut, floats):
            if numbers is not side:
                side.take(numbers.tensor)
        at = stop
