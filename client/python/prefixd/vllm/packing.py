"""The format in which rows of vLLM are stored: raw, or quantized by MLX's affine rule."""

from __future__ import annotations

from ..engine.formats import RAW, TensorFormat, quantized

_GROUP_SIZES = (64, 32)


def form_of(bits: tuple[int, int] | None, dim: int) -> TensorFormat:
    """Returns the format of rows of `dim` elements. `bits`: of K and of V; None: raw. Raises
    ValueError if no group divides a row."""
    if bits is None:
        return RAW
    for group_size in _GROUP_SIZES:
        if dim % group_size == 0:
            return quantized(bits[0], group_size, bits[1])
    raise ValueError(f"groups of 64 or 32 do not divide its rows of {dim}: format must be 'raw'")
