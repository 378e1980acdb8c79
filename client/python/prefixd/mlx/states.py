"""Caches without rows: the arrays of mlx-lm's ArraysCache (Mamba, linear attention, short
convolutions) as one run of bytes. They are valid at one exact number of tokens.

The bytes are those of the arrays, one after another, as `prefixctl import` writes them. Shapes and
types are not in them: they are the model's, the same after every token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import ArraysCache

from .convert import from_numpy, to_numpy

Arrays = tuple[mx.array | None, ...]


@dataclass(frozen=True)
class ArrayShape:
    shape: tuple[int, ...]
    dtype: mx.Dtype

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.size


@dataclass(frozen=True)
class StateShape:
    """Describes the arrays of an ArraysCache; None: an array that the model leaves out."""

    arrays: tuple[ArrayShape | None, ...]

    @staticmethod
    def of(cache: ArraysCache) -> StateShape:
        return StateShape(
            tuple(None if a is None else ArrayShape(tuple(a.shape), a.dtype) for a in cache.cache)
        )

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in self.arrays if a is not None)

    def bytes_of(self, arrays: Arrays) -> np.ndarray:
        """Returns the bytes of the arrays. Requires: they have these shapes."""
        parts = [
            np.ascontiguousarray(to_numpy(array)).reshape(-1).view(np.uint8)
            for array in arrays
            if array is not None
        ]
        return np.concatenate(parts)

    def cache_of(self, state: np.ndarray) -> ArraysCache:
        """Returns a cache that goes on after the state."""
        cache = ArraysCache(len(self.arrays))
        at = 0
        for index, array in enumerate(self.arrays):
            if array is None:
                continue
            own = state[at : at + array.nbytes]
            at += array.nbytes
            cache[index] = from_numpy(_typed(own, array), array.dtype)
        return cache


def _typed(state: np.ndarray, array: ArrayShape) -> np.ndarray:
    """Returns the bytes as an array. NumPy has no bfloat16: its bits are uint16."""
    name = "uint16" if array.dtype == mx.bfloat16 else str(array.dtype).rpartition(".")[2]
    return state.view(np.dtype("bool" if name == "bool_" else name)).reshape(array.shape)
