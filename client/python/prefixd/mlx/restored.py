"""Restored: packed rows that were dequantized for an engine that computes in full precision.

When such an engine saves a longer sequence, the block in which the restored prefix ended is saved
anew, with more tokens in it. Its old rows go back as they came. Rows that are quantized,
dequantized and quantized again differ from the first ones, and each round would add to the error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from . import convert
from .options import RAW, TensorFormat
from .tokens import Prompt

_REQUESTS = 64  # requests that may be in progress


@dataclass(frozen=True)
class Kept:
    """Tokens [begin, begin + rows.tokens) of a layer."""

    begin: int
    rows: convert.Rows


class Restored:
    """The rows of the unfinished block of each of the last restored prefixes."""

    def __init__(self) -> None:
        self._prefixes: deque[tuple[Prompt, list[Kept | None]]] = deque(maxlen=_REQUESTS)

    def remember(
        self, prefix: Prompt, layers: Sequence[Sequence[convert.Rows]], block_tokens: int
    ) -> None:
        """Remembers the unfinished block of `prefix`. `layers`: for each layer, the runs that make
        up `prefix`, or its end; empty if the layer has no rows."""
        tail = len(prefix.tokens) % block_tokens
        if tail:
            kept = [
                self._kept(runs[-1], len(prefix.tokens), tail) if runs else None for runs in layers
            ]
            self._prefixes.append((prefix, kept))

    def find(self, prompt: Prompt, layer: int, form: TensorFormat) -> Kept | None:
        """Returns the rows of `prompt`'s longest prefix that ends in a block in `form`, or None."""
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
        rows = rows.copy()  # a view would keep the whole prefix alive
        mx.eval(rows.key, rows.value)
        return Kept(end - rows.tokens, rows)
