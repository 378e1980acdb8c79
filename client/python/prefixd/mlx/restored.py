"""Restored: packed rows that were dequantized for an engine that computes in full precision.

When such an engine saves a longer sequence, the block in which the restored prefix ended is saved
anew, with more tokens in it. Its rows go back as they came: rows that are quantized, dequantized
and quantized again are others than the first, and each round would add to the error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from . import convert
from .options import RAW, TensorFormat
from .tokens import Prompt

_REQUESTS = 64  # that may be under way


@dataclass(frozen=True)
class Kept:
    """Tokens [begin, begin + rows.tokens) of a layer."""

    begin: int
    rows: convert.Rows


class Restored:
    """The rows of the unfinished block of the last prefixes that were restored."""

    def __init__(self) -> None:
        self._prefixes: deque[tuple[Prompt, list[Kept | None]]] = deque(maxlen=_REQUESTS)

    def remember(
        self, prefix: Prompt, layers: Sequence[Sequence[convert.Rows]], block_tokens: int
    ) -> None:
        """`layers`: of each layer, the runs that make up `prefix`, or its end; none: no rows."""
        tail = len(prefix.tokens) % block_tokens
        if tail:
            kept = [
                self._kept(runs[-1], len(prefix.tokens), tail) if runs else None for runs in layers
            ]
            self._prefixes.append((prefix, kept))

    def find(self, prompt: Prompt, layer: int, form: TensorFormat) -> Kept | None:
        """Of the longest prefix of `prompt` that ends in a block in `form`."""
        found = None
        for prefix, layers in self._prefixes:
            kept = layers[layer]
            if kept is None or kept.rows.format != form or not prompt.begins_with(prefix):
                continue
            if found is None or kept.begin >= found.begin:
                found = kept
        return found

    @staticmethod
    def _kept(last: convert.Rows, end: int, tail: int) -> Kept | None:
        if last.format == RAW:
            return None
        rows = last.cut(max(0, last.tokens - tail), last.tokens)
        rows = rows.copy()  # or the whole prefix would live on below these few rows
        mx.eval(rows.key, rows.value)
        return Kept(end - rows.tokens, rows)
