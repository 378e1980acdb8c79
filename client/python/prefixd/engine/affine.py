"""MLX's affine quantization of torch tensors, on the device that they are on.

The codes, scales and biases are those of MLX's CPU code and of prefixd's own kernels, bit for bit;
so are the dequantized rows."""

from __future__ import annotations

import torch

_SMALLEST_SCALE = 1e-7

Planes = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Codes as bytes [..., dim * bits / 8], scales and biases [..., dim / group_size]."""


def quantize(rows: torch.Tensor, bits: int, group_size: int) -> Planes:
    """Returns the rows [..., dim] quantized. Requires: group_size divides dim. Scales and biases
    are of the type of the rows."""
    most = float(2**bits - 1)
    groups = rows.float().unflatten(-1, (-1, group_size))
    low, high = groups.amin(-1), groups.amax(-1)
    step = ((high - low) / most).clamp_min(_SMALLEST_SCALE)
    negative = low.abs() > high.abs()
    edge = torch.where(negative, low, high)
    scale = torch.where(negative, step, -step)
    zero_code = (edge / scale).round()
    none = zero_code == 0
    scale = torch.where(none, scale, edge / torch.where(none, 1.0, zero_code))
    bias = torch.where(none, 0.0, edge)
    codes = ((groups - bias[..., None]) / scale[..., None]).round()
    codes = codes.nan_to_num(0.0).clamp(0, most).to(torch.uint8).flatten(-2)
    return _packed(codes, bits), scale.to(rows.dtype), bias.to(rows.dtype)


def dequantize(planes: Planes, bits: int, group_size: int) -> torch.Tensor:
    """Returns the rows [..., dim], of the type of the scales."""
    codes, scales, biases = planes
    groups = _unpacked(codes, bits).unflatten(-1, (-1, group_size)).to(scales.dtype)
    return groups.mul_(scales[..., None]).add_(biases[..., None]).flatten(-2)  # it has a copy


def _packed(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Returns codes [..., dim], a byte each, as one stream of bits, the lowest ones first."""
    if bits == 8:
        return codes
    if bits in (4, 2):
        per = 8 // bits
        parts = codes.unflatten(-1, (-1, per))
        packed = parts[..., 0].clone()
        for at in range(1, per):
            packed |= parts[..., at] << (bits * at)
        return packed
    stream = (codes[..., None] >> _shifts(bits, codes)) & 1
    octets = stream.flatten(-2).unflatten(-1, (-1, 8))
    return (octets << _shifts(8, codes)).sum(-1, dtype=torch.uint8)


def _unpacked(codes: torch.Tensor, bits: int) -> torch.Tensor:
    if bits == 8:
        return codes
    if bits in (4, 2):
        apart = codes[..., None] >> (_shifts(8 // bits, codes) * bits)
        return (apart & (2**bits - 1)).flatten(-2)
    stream = (codes[..., None] >> _shifts(8, codes)) & 1
    apart = stream.flatten(-2).unflatten(-1, (-1, bits))
    return (apart << _shifts(bits, codes)).sum(-1, dtype=torch.uint8)


def _shifts(count: int, like: torch.Tensor) -> torch.Tensor:
    return torch.arange(count, dtype=torch.uint8, device=like.device)
