"""From an engine's tensors into a plan: quantized by prefixd's kernels, on the GPU or the CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace

import torch

from .. import _abi, _cuda
from .._errors import Error
from .._plan import Plan
from .._planes import Tensor
from ._gpu import Gpu, gpu
from ._tensors import Scales, Side, Target, check_room, sides_of

_ON_THE_GPU = ("mlx_affine", "q8_0", "q4_0")  # raw rows are copied as they are


def store(
    plan: Plan,
    layer: int,
    begin: int,
    end: int,
    rows: Target,
    *,
    table: Sequence[int] | None = None,
    origin: int = 0,
    scales: Scales = (1.0, 1.0),
) -> bool:
    """Stores tokens [begin, end) of `layer` out of an engine's tensors, where token i is found as
    load() puts it. `scales`: of K and V in tensors of float8_e4m3fn. A run of plan.missing at a time. Waits until the GPU has computed what the
    current stream was told so far. Returns Plan.write_rows()'s answer."""
    if not 0 <= layer < len(plan._layers) or not plan._layers[layer]:
        raise Error(f"store: layer {layer} has no rows of its own")
    if not 0 <= origin <= begin <= end <= plan._tokens:
        raise Error(f"store: tokens {begin} to {end}, the plan has {plan._tokens}")
    formats = plan._layers[layer]
    sides = sides_of("store", rows, formats[0], scales)
    check_room("store", sides, origin, end, table)
    if plan._held is None or plan.error:
        return False
    if begin == end:
        return True
    tensors = formats[min(plan._format_from(begin), len(formats) - 1)]
    device = sides[0].tensor.device
    if device.type == "cuda" and all(_can(side) for side in tensors if side.parts):
        structs = [side.struct(origin) for side in sides]
        return _quantize(gpu(device), plan, layer, begin, end, structs, tensors, table)
    on_host = [_host(side, begin - origin, end - origin, table).widened() for side in sides]
    return _write(plan, layer, begin, end, on_host)


def _can(side: Tensor) -> bool:
    fits = side.dim <= 256 or side.name == "key" and side.dim <= 576 and side.dim % 64 == 0
    return (
        side.format is not None
        and side.format.codec in _ON_THE_GPU
        and side.dim % 8 == 0
        and fits
    )


def _host(side: Side, begin: int, end: int, table: Sequence[int] | None) -> Side:
    """Returns tokens [begin, end) in host memory."""
    if side.is_paged:
        assert table is not None
        size = side.block_tokens
        which = torch.tensor(table[begin // size : -(-end // size)], device=side.tensor.device)
        first = begin - begin % size
        found = side.tensor[which].flatten(0, 1)[begin - first : end - first].transpose(0, 1)
    else:
        found = side.tensor[:, begin:end]
    return replace(side, tensor=found.detach().to("cpu"))


def _write(plan: Plan, layer: int, begin: int, end: int, sides: Sequence[Side]) -> bool:
    rows = [*(side.rows() for side in sides), _abi.Rows()][:2]
    assert plan._held is not None
    status = plan._lib.write_rows(
        plan._held.pointer,
        layer,
        begin,
        end - begin,
        *(ctypes.addressof(one) for one in rows),
    )
    return _answer(plan, status)


def _answer(plan: Plan, status: int) -> bool:
    if status == _abi.INVALID_ARGUMENT:
        raise Error(plan._lib.error())
    if status != _abi.OK:
        plan.error = plan._lib.error()
    return status == _abi.OK


def _quantize(
    on: Gpu,
    plan: Plan,
    layer: int,
    begin: int,
    end: int,
    sides: Sequence[_cuda.Tensor],
    tensors: tuple[Tensor, Tensor],
    table: Sequence[int] | None,
) -> bool:
    """Quantizes on the GPU into pinned memory, in rows, and gives the library the codes."""
    count, kept, planes = end - begin, [], []
    with torch.cuda.device(on.device):
        stream = torch.cuda.current_stream()
        for at, (side, tensor) in enumerate(zip(sides, tensors)):
            assert tensor.format is not None
            form = tensor.format.as_struct()
            unit = on.lib.unit_bytes(ctypes.byref(form), tensor.dim, count)
            units = torch.zeros(tensor.heads * unit + 128, dtype=torch.uint8, pin_memory=True)
            address = units.data_ptr() + -units.data_ptr() % 128
            page = (ctypes.c_void_p * 1)(address)
            options = _cuda.QuantizeOptions(
                rows=ctypes.pointer(side),
                format=form,
                value=at,
                kv_heads=tensor.heads,
                dim=tensor.dim,
                begin=begin,
                count=count,
                page_tokens=count,
                pages=page,
                page_count=1,
            )
            if table is not None:
                ids = (ctypes.c_int32 * len(table))(*table)
                options.table, options.table_count = ids, len(ids)
            if on.lib.quantize(on.pointer, ctypes.byref(options), stream.cuda_stream):
                raise Error(on.lib.error())
            one = _abi.Planes()
            if on.lib.planes(ctypes.byref(form), tensor.dim, count, address, ctypes.pointer(one)):
                raise Error(on.lib.error())
            planes.append(one)
            kept.append(units)
        stream.synchronize()
    given = [*planes, _abi.Planes()][:2]
    assert plan._held is not None
    status = plan._lib.write_packed(
        plan._held.pointer,
        layer,
        begin,
        count,
        *(ctypes.addressof(one) for one in given),
    )
    return _answer(plan, status)
