"""Converts NumPy arrays to the planes of prefixd.h.

Arrays of one layer's K or V are [1, kv_heads, tokens, row] or [kv_heads, tokens, row].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterable, Sequence, Union

import numpy as np
from numpy.typing import NDArray

from . import _abi
from ._errors import Error
from ._formats import _TILED_PAGES, _TRANSPOSED, Layer, SharedLayer, StateLayer, TensorFormat

Array = Any  # anything that NumPy takes without copying: an array, a buffer, __array_interface__
Arrays = Union[Array, Sequence[Array]]


@dataclass(frozen=True)
class Part:
    """One of codes, scales and biases."""

    name: str
    dtype: np.dtype[Any]
    row_bytes: int

    @property
    def row_elements(self) -> int:
        return self.row_bytes // self.dtype.itemsize


@dataclass(frozen=True)
class Tensor:
    """One layer's K or V in one format."""

    name: str  # "key" or "value"
    heads: int
    parts: tuple[Part, ...]
    dim: int = 0  # elements of a row, also of V that stands in the keys
    tiled: bool = False  # its pages are tiled
    transposed: bool = False  # its pages are transposed
    format: TensorFormat | None = None  # None if it is not stored

    @property
    def row_bytes(self) -> int:
        return sum(part.row_bytes for part in self.parts)


def tensors_of(
    lib: _abi.Library, layer: Layer, page_layout: str
) -> tuple[tuple[Tensor, Tensor], ...]:
    """Returns K and V in each format of the layer."""
    if isinstance(layer, (StateLayer, SharedLayer)):
        return ()

    def tensor(name: str, format: TensorFormat, dim: int) -> Tensor:
        if name == "value" and layer.values != "stored":
            return Tensor(name, 0, (), dim=layer.value_dim)
        row = lib.row_bytes(format.as_struct(), dim)
        bytes_of = (row.codes, row.scales, row.biases)
        parts = zip(format.part_names, format.part_dtypes(), bytes_of)
        layout = format.layout_of(page_layout, is_value=name == "value")
        return Tensor(
            name,
            layer.kv_heads,
            tuple(Part(*part) for part in parts),
            dim=dim,
            tiled=layout == _TILED_PAGES,
            transposed=layout == _TRANSPOSED,
            format=format,
        )

    return tuple(
        (tensor("key", f.key, layer.key_dim), tensor("value", f.value, layer.value_dim))
        for f in layer.formats
    )


def empty(tensor: Tensor, tokens: int) -> tuple[NDArray[Any], ...]:
    return tuple(
        np.empty((1, tensor.heads, tokens, part.row_elements), part.dtype) for part in tensor.parts
    )


class View:
    """The planes of one tensor's arrays. Keeps the arrays alive."""

    __slots__ = ("planes", "tokens", "_arrays")

    def __init__(self, planes: _abi.Planes, tokens: int, arrays: Iterable[NDArray[Any]]) -> None:
        self.planes = planes
        self.tokens = tokens
        self._arrays = tuple(arrays)


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]  # half of the time of array.ctypes.data
    return address


def none_of(tokens: int) -> View:
    """Returns the view of values that are not stored."""
    return View(_abi.Planes(), tokens, ())


def of_fresh(tensor: Tensor, arrays: Sequence[NDArray[Any]], tokens: int) -> View:
    """Returns a view of arrays that empty() made, which are dense."""
    planes = _abi.Planes(**{p.name: _address(a) for p, a in zip(tensor.parts, arrays)})
    return View(planes, tokens, arrays)


def to_read(caller: str, tensor: Tensor, given: Arrays) -> View:
    """Returns a view of the arrays in place. Copies an array whose rows are not dense, and scales
    and biases whose strides differ."""
    arrays = [
        _shaped(caller, tensor, part, np.asarray(array))
        for part, array in _pair(caller, tensor, given)
    ]
    arrays = [a if _takes(a) else np.ascontiguousarray(a) for a in arrays]
    if len(arrays) == 3 and _strides(arrays[1]) != _strides(arrays[2]):
        arrays[1:] = [np.ascontiguousarray(a) for a in arrays[1:]]
    return _view(caller, tensor, arrays)


def to_write(caller: str, tensor: Tensor, given: Arrays) -> View:
    """Returns a view of the arrays in place. Raises Error unless all can be written there."""
    arrays = []
    for part, array in _pair(caller, tensor, given):
        if not isinstance(array, np.ndarray) or not array.flags.writeable:
            raise Error(f"{caller}: {tensor.name} {part.name} is not an array that can be written")
        arrays.append(_shaped(caller, tensor, part, array))
        if not _takes(arrays[-1]):
            raise Error(f"{caller}: rows of {tensor.name} {part.name} are not dense")
    if len(arrays) == 3 and _strides(arrays[1]) != _strides(arrays[2]):
        raise Error(f"{caller}: {tensor.name} scales and biases have different strides")
    return _view(caller, tensor, arrays)


def _pair(caller: str, tensor: Tensor, given: Arrays) -> list[tuple[Part, Array]]:
    arrays = list(given) if isinstance(given, (tuple, list)) else [given]
    if len(arrays) != len(tensor.parts):
        names = ", ".join(part.name for part in tensor.parts)
        raise Error(f"{caller}: {tensor.name} is {len(arrays)} arrays, the format has {names}")
    return list(zip(tensor.parts, arrays))


def _shaped(caller: str, tensor: Tensor, part: Part, array: NDArray[Any]) -> NDArray[Any]:
    """Returns the array as [heads, tokens, row]. Raises Error if its shape or type does not fit."""
    if array.ndim == 4 and array.shape[0] == 1:
        array = array[0]
    if array.ndim != 3 or array.shape[0] != tensor.heads:
        raise Error(
            f"{caller}: {tensor.name} {part.name} has shape {list(array.shape)}, "
            f"must be [1, {tensor.heads}, tokens, row]"
        )
    if array.shape[2] * array.itemsize != part.row_bytes or array.dtype.hasobject:
        raise Error(
            f"{caller}: {tensor.name} {part.name} has rows of {array.shape[2]} {array.dtype}, "
            f"the format has rows of {part.row_bytes} bytes"
        )
    if not _stands_for(array.dtype, part.dtype):
        raise Error(
            f"{caller}: {tensor.name} {part.name} is {array.dtype}, the format has {part.dtype}"
        )
    return array


def _stands_for(given: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """True if elements of type `given` may hold those of `wanted`. Integers hold the bits of any
    type, as uint16 holds bfloat16. A float holds only itself. A type that NumPy does not know, such
    as another package's bfloat16, is no NumPy float."""
    if given.kind == "V":
        return wanted.kind != "f"
    return given.kind in "iu" or given == wanted


def _takes(array: NDArray[Any]) -> bool:
    """True if a plane can have the array's strides."""
    if array.size == 0:
        return True
    (heads, tokens, row), strides = array.shape, array.strides
    return (
        (row == 1 or strides[2] == array.itemsize)
        and (tokens == 1 or strides[1] > 0)
        and (heads == 1 or strides[0] > 0)
    )


def _strides(array: NDArray[Any]) -> tuple[int, int]:
    """Returns the strides of heads and tokens; 0 for a dimension of 1: any would do, and some
    libraries have odd ones."""
    heads, tokens = array.shape[:2]
    return (array.strides[0] if heads > 1 else 0, array.strides[1] if tokens > 1 else 0)


def _view(caller: str, tensor: Tensor, arrays: Sequence[NDArray[Any]]) -> View:
    tokens = arrays[0].shape[1]
    if any(array.shape[1] != tokens for array in arrays):
        counts = ", ".join(str(array.shape[1]) for array in arrays)
        raise Error(f"{caller}: {tensor.name} parts have {counts} tokens, must be the same")
    planes = _abi.Planes(**{p.name: _address(a) for p, a in zip(tensor.parts, arrays)})
    planes.codes_head_stride, planes.codes_token_stride = _strides(arrays[0])
    if len(arrays) > 1:
        planes.scales_head_stride, planes.scales_token_stride = _strides(arrays[1])
    return View(planes, tokens, arrays)
