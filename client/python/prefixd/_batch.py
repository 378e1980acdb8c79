"""K and V of many leases as one left-padded batch, packed as they are stored."""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np
from numpy.typing import NDArray

from ._errors import Error
from ._lease import Lease
from ._planes import Tensor

Planes = tuple[NDArray[Any], ...]


def _zeros(tensor: Tensor, rows: int, width: int) -> Planes:
    return tuple(
        np.zeros((rows, tensor.heads, width, part.row_elements), part.dtype)
        for part in tensor.parts
    )


def _row(planes: Planes, row: int, tokens: int) -> Planes:
    width = planes[0].shape[2] if planes else 0
    return tuple(plane[row, :, width - tokens :, :] for plane in planes)


def gather_batch(
    leases: Sequence[Lease], layer: int, tokens: Sequence[int]
) -> tuple[Planes, Planes] | None:
    """Returns tokens [0, tokens[i]) of lease i as row i: K and V, each a tuple of codes, scales and
    biases [rows, kv_heads, max(tokens), row] (or of one array). A sequence's tokens are at the
    right end, after zeros. Copies once, straight from the pages; nothing is quantized again.

    Returns None if a lease has fewer tokens by now, or if the tokens are not all in one format.
    """
    if len(leases) != len(tokens):
        raise Error(f"gather_batch: {len(tokens)} lengths for {len(leases)} leases")
    stored = {lease.stored_format(layer, count) for lease, count in zip(leases, tokens) if count}
    if not stored:
        raise Error("gather_batch: no lease and no token")
    pair = stored.pop()
    if pair is None or stored:
        return None
    key, value = pair
    width = max(tokens)
    keys, values = _zeros(key, len(leases), width), _zeros(value, len(leases), width)
    for row, (lease, count) in enumerate(zip(leases, tokens)):
        out = _row(keys, row, count), _row(values, row, count)
        if count and lease.gather(layer, count, out=out) is None:
            return None
    return keys, values
