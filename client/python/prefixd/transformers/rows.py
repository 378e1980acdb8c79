"""Rows: K and V of one sequence in one layer, between a cache and prefixd."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
import torch

from ..engine.formats import TensorFormat
from ..engine.rows import Planes
from .windows import Run


class Shorter(Exception):
    """Raised if a lease no longer has what it had: the request is computed in full."""


@dataclass(frozen=True)
class Packed:
    """The rows of tokens [begin, end) as they are stored: quantized once, never twice."""

    begin: int
    end: int
    key: Planes
    value: Planes
    form: TensorFormat


@dataclass(frozen=True)
class Rows:
    """K and V of one sequence in one layer, on the model's device."""

    runs: Sequence[Run]
    packed: Packed | None = None  # the last, unfinished block of what prefixd gave

    def cut(self, begin: int, end: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Returns the rows of tokens [begin, end); None if they are gone."""
        for at, keys, values in self.runs:
            if at <= begin and end <= at + keys.shape[2]:
                return keys[:, :, begin - at : end - at], values[:, :, begin - at : end - at]
        return None
