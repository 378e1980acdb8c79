"""Rows of a layer as tensors of the model's type and device, out of a lease and into a plan.

prefixd's kernels quantize and dequantize, straight between the pages and tensors in host memory,
and on a GPU where libprefixd_cuda.so is (prefixd.torch). Without it the codes travel to a GPU as
they are stored, through pinned memory, and PyTorch dequantizes there, bit for bit the same
(affine.py); from a GPU the rows travel: PyTorch takes twice as long to quantize them there, a kernel
for each step."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .. import Error, Lease, Plan
from ..torch import load, store, why_no_gpu
from . import affine
from .formats import RAW, TensorFormat
from .tensors import DTYPES, as_numpy, room, to_device, to_host

Planes = tuple[NDArray[Any], ...]
"""Codes, scales and biases [1, heads, tokens, row]."""
Sides = tuple[torch.Tensor, torch.Tensor]
"""K and V [1, heads, tokens, dim]."""


def gather(
    lease: Lease,
    layer: int,
    begin: int,
    end: int,
    *,
    heads: int,
    dims: tuple[int, int],
    ladder: tuple[TensorFormat, ...],
    dtype: torch.dtype,
    device: torch.device,
) -> Sides | None:
    """Returns tokens [begin, end) of a layer, whose formats are `ladder`, on the device; None if the
    lease does not have them all, lease.error says why."""
    if device.type == "cuda" and not why_no_gpu(device):
        there = [torch.empty((1, heads, end - begin, d), dtype=dtype, device=device) for d in dims]
        return (there[0], there[1]) if load_into(lease, layer, begin, end, there) else None
    if device.type == "cpu" or len(ladder) == 1 and ladder[0] == RAW:
        sides = [room((1, heads, end - begin, dim), dtype, device) for dim in dims]
        if not fill(lease, layer, begin, sides):
            return None
        key, value = (to_device(side, device) for side in sides)
        return key, value
    parts, at = [], begin
    for run_begin, run_end, index in lease.runs(layer):
        if run_begin <= at < min(run_end, end):
            behind = min(run_end, end)
            part = _part(lease, layer, at, behind, heads, dims, ladder[index], dtype, device)
            if part is None:
                return None
            parts.append(part)
            at = behind
    if at < end:
        return None
    if len(parts) == 1:
        return parts[0]
    return torch.cat([key for key, _ in parts], 2), torch.cat([value for _, value in parts], 2)


def load_into(
    lease: Lease,
    layer: int,
    begin: int,
    end: int,
    sides: list[torch.Tensor],
    *,
    table: list[int] | None = None,
) -> bool:
    """Fills K and V on a GPU with tokens [begin, end), behind what the current stream was told so
    far: dense tensors of these tokens, or an engine's blocks. Returns False if the lease does not
    have them all, or the GPU refuses; lease.error says why."""
    if lease.wait(layer) < end:
        return False
    origin = begin if table is None else 0
    try:
        under_way = load(
            lease, {layer: sides}, begin=begin, count=end - begin, table=table, origin=origin
        )
    except Error as error:
        lease.error = str(error)
        return False
    under_way.wait(layer)
    under_way.end()
    return True


def fill(lease: Lease, layer: int, begin: int, sides: Any) -> bool:
    """Fills K and V [1, heads, tokens, dim], tensors in host memory with dense rows, with tokens
    from `begin` on. Returns False if the lease does not have them."""
    out = (as_numpy(sides[0]), as_numpy(sides[1]))
    return lease.gather_rows(layer, out, begin=begin, dtype=DTYPES[sides[0].dtype])


def write(plan: Plan, layer: int, begin: int, sides: Sides) -> bool:
    """Stores K and V [1, heads, tokens, dim] from token `begin` on, in the plan's format. Returns
    Plan.write_rows()'s answer."""
    device = sides[0].device
    if device.type == "cuda" and not why_no_gpu(device):
        end = begin + sides[0].shape[2]
        return store(plan, layer, begin, end, [side.detach() for side in sides], origin=begin)
    key, value = (as_numpy(to_host(side.detach())) for side in sides)
    return plan.write_rows(layer, begin, key=key, value=value, dtype=DTYPES[sides[0].dtype])


def _part(
    lease: Lease,
    layer: int,
    begin: int,
    end: int,
    heads: int,
    dims: tuple[int, int],
    form: TensorFormat,
    dtype: torch.dtype,
    device: torch.device,
) -> Sides | None:
    """Returns tokens that are stored in one format, on a GPU."""
    forms = (form, form.of_value)
    if form == RAW:
        rooms = [(room((1, heads, end - begin, dim), dtype, device),) for dim in dims]
    else:
        rooms = [
            _room_of_planes((1, heads, end - begin), dim, one, dtype, device)
            for dim, one in zip(dims, forms, strict=True)
        ]
    key, value = (tuple(_stored(plane) for plane in one) for one in rooms)
    if lease.gather(layer, end - begin, begin=begin, out=(key, value)) is None:
        return None
    sides = []
    for planes, one in zip(rooms, forms, strict=True):
        there = [to_device(plane, device) for plane in planes]
        if one == RAW:
            sides.append(there[0])
        else:
            codes, scales, biases = there
            sides.append(affine.dequantize((codes, scales, biases), one.bits, one.group_size))
    return sides[0], sides[1]


def _room_of_planes(
    rows: tuple[int, ...],
    dim: int,
    form: TensorFormat,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[torch.Tensor, ...]:
    groups = dim // form.group_size
    return (
        room((*rows, dim * form.bits // 8), torch.uint8, device),
        room((*rows, groups), dtype, device),
        room((*rows, groups), dtype, device),
    )


def _stored(plane: torch.Tensor) -> NDArray[Any]:
    """Returns the plane as prefixd's arrays are: codes are words."""
    array = as_numpy(plane)
    return array.view(np.uint32) if array.dtype == np.uint8 else array
