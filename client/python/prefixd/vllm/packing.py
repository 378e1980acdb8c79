"""Rows of vLLM's data type as prefixd stores them: raw, or quantized by MLX's affine rule.

The codes, scales and biases are those of prefixd's own kernels and of MLX, see engine/affine.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..engine import affine
from ..engine.formats import RAW, TensorFormat, quantized

Rows = NDArray[Any]
"""K or V [heads, tokens, dim] on the host, integers that hold the bits of the elements."""
Planes = tuple[NDArray[Any], ...]
"""Codes, scales and biases [heads, tokens, row], or one array if raw."""

_GROUP_SIZES = (64, 32)
_PIECE = 32768  # elements that PyTorch computes on the calling thread, without waking others
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def form_of(bits: tuple[int, int] | None, dim: int) -> TensorFormat:
    """Returns the format of rows of `dim` elements. `bits`: of K and of V; None: raw. Raises
    ValueError if no group divides a row."""
    if bits is None:
        return RAW
    for group_size in _GROUP_SIZES:
        if dim % group_size == 0:
            return quantized(bits[0], group_size, bits[1])
    raise ValueError(f"groups of 64 or 32 do not divide its rows of {dim}: format must be 'raw'")


def pack(rows: Rows, dtype: torch.dtype, form: TensorFormat) -> Planes:
    """Returns the rows as they are stored in `form`, a format of K. Leaves PyTorch's other threads
    to the model, which computes meanwhile."""
    if form == RAW:
        return (rows,)
    heads, _, dim = rows.shape
    pieces = torch.from_numpy(rows).view(dtype).split(max(_PIECE // (heads * dim), 1), dim=1)
    planes = zip(*(affine.quantize(piece, form.bits, form.group_size) for piece in pieces))
    codes, scales, biases = (np.concatenate([*map(to_host, one)], axis=1) for one in planes)
    return codes.view(np.uint32), scales, biases


def unpack(
    planes: Planes, dtype: torch.dtype, form: TensorFormat, device: torch.device
) -> torch.Tensor:
    """Returns the rows [heads, tokens, dim]."""
    codes, *others = planes
    if form == RAW:
        return torch.from_numpy(codes).view(dtype).to(device)
    packed = torch.from_numpy(codes.view(np.uint8)).to(device)
    scales, biases = (torch.from_numpy(one).view(dtype).to(device) for one in others)
    return affine.dequantize((packed, scales, biases), form.bits, form.group_size)


def to_host(tensor: torch.Tensor) -> NDArray[Any]:
    """Returns the bits of a tensor's elements, in its order."""
    return tensor.contiguous().cpu().view(_BITS[tensor.element_size()]).numpy()
