"""Converts NumPy arrays of elements to the rows of prefixd.h.

Arrays of one layer's K or V are [1, kv_heads, tokens, dim] or [kv_heads, tokens, dim].
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import _abi
from ._errors import Error
from ._formats import _DTYPES
from ._planes import Tensor, _address, _strides, _takes

_BY_TYPE = {np.dtype(element): name for name, (_, element) in _DTYPES.items()}


class RowsView:
    """The rows of one array. Keeps the array alive."""

    __slots__ = ("rows", "tokens", "_array")

    def __init__(self, rows: _abi.Rows, tokens: int, array: NDArray[Any] | None) -> None:
        self.rows, self.tokens, self._array = rows, tokens, array


def none_of(tokens: int) -> RowsView:
    """Returns the view of values that are not stored."""
    return RowsView(_abi.Rows(), tokens, None)


def view(
    caller: str, tensor: Tensor, given: Any, dtype: str | None, *, to_write: bool
) -> RowsView:
    """Returns a view of the array in place; where it is only read, of a copy if its rows are not
    dense. `dtype`: of its elements; None: as NumPy says, where uint16 is bfloat16. Raises Error
    unless it holds rows of the tensor, and unless all can be written there."""
    array = given if to_write and isinstance(given, np.ndarray) else np.asarray(given)
    if to_write and (array is not given or not array.flags.writeable):
        raise Error(f"{caller}: {tensor.name} is not an array that can be written")
    if array.ndim == 4 and array.shape[0] == 1:
        array = array[0]
    if array.ndim != 3 or (array.shape[0], array.shape[2]) != (tensor.heads, tensor.dim):
        raise Error(
            f"{caller}: {tensor.name} has shape {list(array.shape)}, "
            f"must be [1, {tensor.heads}, tokens, {tensor.dim}]"
        )
    name = _BY_TYPE.get(array.dtype) if dtype is None else dtype
    if name not in _DTYPES or _DTYPES[name][1].itemsize != array.dtype.itemsize:
        raise Error(
            f"{caller}: {tensor.name} is {array.dtype}, for {name}; must be float32, float16, or "
            "bfloat16 as uint16"
        )
    if not _takes(array):
        if to_write:
            raise Error(f"{caller}: rows of {tensor.name} are not dense")
        array = np.ascontiguousarray(array)
    head_stride, token_stride = _strides(array)
    rows = _abi.Rows(
        data=_address(array),
        dtype=_DTYPES[name][0],
        head_stride=head_stride,
        token_stride=token_stride,
    )
    return RowsView(rows, array.shape[1], array)
