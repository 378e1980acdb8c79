"""Tensors of an engine as the structs of both libraries."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Union

import torch

from .. import _abi, _cuda
from .._errors import Error
from .._planes import Tensor

DTYPES = {torch.float32: 1, torch.float16: 2, torch.bfloat16: 3}
F8 = torch.float8_e4m3fn
_F8_MOST = 448.0

Target = Union[torch.Tensor, Sequence[torch.Tensor]]
"""K and V of a layer: two tensors, or one whose first dimension is 2. Each is [heads, tokens, dim],
or in an engine's blocks [blocks, block_tokens, heads, dim], as vLLM has them. Elements of a row lie
side by side; other dimensions may have any strides. Of a layer that stores keys alone (MLA): the one
tensor of K."""
Scales = tuple[float, float]
"""Of K and V in tensors of float8_e4m3fn: an element stands for itself times the scale."""


@dataclass(frozen=True)
class Side:
    """K or V of a layer in a tensor of an engine."""

    tensor: torch.Tensor
    scale: float = 1.0  # of float8_e4m3fn

    @property
    def is_paged(self) -> bool:
        return self.tensor.ndim == 4

    @property
    def block_tokens(self) -> int:
        return self.tensor.shape[1] if self.is_paged else 0

    @property
    def heads(self) -> int:
        return self.tensor.shape[2 if self.is_paged else 0]

    def block(self, number: int) -> Side:
        """Returns a block as [heads, tokens, dim]."""
        return replace(self, tensor=self.tensor[number].transpose(0, 1))

    def cut(self, begin: int, end: int) -> Side:
        return replace(self, tensor=self.tensor[:, begin:end])

    def widened(self) -> Side:
        """Returns its numbers in a type that the library for CPUs has."""
        if self.tensor.dtype != F8:
            return self
        return Side(self.tensor.to(torch.float32) * self.scale)

    def take(self, numbers: torch.Tensor) -> None:
        """Writes numbers into a tensor of float8_e4m3fn, rounded as the GPU rounds them."""
        self.tensor.copy_((numbers / self.scale).clamp(-_F8_MOST, _F8_MOST))

    def rows(self) -> _abi.Rows:
        """Requires: not is_paged, and not float8_e4m3fn."""
        tensor, size = self.tensor, self.tensor.element_size()
        heads, tokens, _ = tensor.shape
        return _abi.Rows(
            data=tensor.data_ptr(),
            dtype=DTYPES[tensor.dtype],
            head_stride=tensor.stride(0) * size if heads > 1 else 0,
            token_stride=tensor.stride(1) * size if tokens > 1 else 0,
        )

    def struct(self, origin: int = 0) -> _cuda.Tensor:
        """`origin`: the token whose slot is the first one."""
        tensor = self.tensor
        block, token, head = (
            (tensor.stride(0), tensor.stride(1), tensor.stride(2))
            if self.is_paged
            else (0, tensor.stride(1), tensor.stride(0))
        )
        return _cuda.Tensor(
            data=tensor.data_ptr() - origin * token * tensor.element_size(),
            dtype=_cuda.F8 if tensor.dtype == F8 else DTYPES[tensor.dtype],
            scale=self.scale,
            block_tokens=self.block_tokens,
            block_stride=block,
            token_stride=token,
            head_stride=head,
        )


def sides_of(
    caller: str, target: Target, layer: tuple[Tensor, Tensor], scales: Scales = (1.0, 1.0)
) -> tuple[Side, ...]:
    """Returns K and V of a target, or K where the layer stores nothing else. Raises Error unless they
    fit the layer's heads and dims."""
    stored = [side for side in layer if side.parts]
    if isinstance(target, torch.Tensor):
        given = list(target.unbind(0)) if len(stored) == 2 else [target]
    else:
        given = list(target)
    if len(given) != len(stored):
        what = "K and V" if len(stored) == 2 else "K alone"
        raise Error(f"{caller}: {len(given)} tensors, must be {what}")
    sides = []
    for tensor, wanted, scale in zip(given, stored, scales):
        if tensor.ndim == 4 and tensor.shape[0] == 1 and tensor.shape[1] == wanted.heads:
            tensor = tensor[0]
        side = Side(tensor, ctypes.c_float(scale).value)
        fits = tensor.ndim in (3, 4) and side.heads == wanted.heads
        if not fits or tensor.shape[-1] != wanted.dim:
            raise Error(
                f"{caller}: {wanted.name} has shape {list(tensor.shape)}, must be [{wanted.heads}, "
                f"tokens, {wanted.dim}] or [blocks, block_tokens, {wanted.heads}, {wanted.dim}]"
            )
        if tensor.dtype not in DTYPES and tensor.dtype != F8:
            raise Error(
                f"{caller}: {wanted.name} is {tensor.dtype}, must be of 16 or 32 bits, or {F8}"
            )
        if not 0 < side.scale < float("inf"):
            raise Error(
                f"{caller}: the scale of {wanted.name} is {scale}, must be a float32 above 0"
            )
        if tensor.dtype != F8 and side.scale != 1:
            raise Error(f"{caller}: {wanted.name} has a scale and is {tensor.dtype}, not {F8}")
        if tensor.shape[-1] > 1 and tensor.stride(-1) != 1 or min(tensor.stride()) < 0:
            raise Error(f"{caller}: rows of {wanted.name} are not dense")
        sides.append(side)
    key, last = sides[0], sides[-1]
    if key.block_tokens != last.block_tokens or key.tensor.device != last.tensor.device:
        raise Error(f"{caller}: K and V differ in blocks or device")
    return tuple(sides)


def check_room(
    caller: str, sides: Sequence[Side], origin: int, end: int, table: Sequence[int] | None
) -> None:
    """Raises Error unless there are slots for tokens [origin, end)."""
    for side in sides:
        if not side.is_paged:
            tokens = side.tensor.shape[1]
            if tokens < end - origin:
                raise Error(f"{caller}: tensors have {tokens} tokens, {end - origin} are needed")
            continue
        needed = -(-end // side.block_tokens)
        if origin:
            raise Error(f"{caller}: origin is {origin}, tensors in blocks begin with token 0")
        if table is None or len(table) < needed:
            raise Error(f"{caller}: the table has {len(table or ())} blocks, {needed} are needed")
        if needed and not 0 <= min(table) <= max(table) < side.tensor.shape[0]:
            blocks = side.tensor.shape[0]
            raise Error(f"{caller}: the table names blocks beyond the {blocks} that there are")


def formats_of(caller: str, formats: Sequence[tuple[Tensor, Tensor]]) -> Any:
    """Returns the formats of a layer as an array of structs; those of V that is not stored are K's."""
    if not formats:
        raise Error(f"{caller}: the layer has no rows of its own")
    structs = [
        [
            side.format.as_struct(layout_of(side))  # type: ignore[union-attr]
            for side in (key, value if value.parts else key)
        ]
        for key, value in formats
    ]
    return (_abi.Format * len(structs))(*(_abi.Format(*pair) for pair in structs))


def layout_of(side: Tensor) -> int:
    return 2 if side.tiled else 3 if side.transposed else 1
