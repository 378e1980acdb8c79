"""Saving: rows that were copied out of vLLM's pages, stored behind the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import prefixd

from ..engine.tensors import Ready
from .messages import Save
from .options import Options
from .pages import LayerPages, Rows
from .spaces import Spaces


@dataclass(frozen=True)
class Taken:
    """The rows of a save: K and V, or one array, of each layer, as vLLM has them. They are there
    once ready() has returned."""

    save: Save
    layers: Sequence[tuple[Rows, ...]]
    ready: Ready = lambda: None

    @property
    def nbytes(self) -> int:
        return sum(rows.nbytes for layer in self.layers for rows in layer)


def store(taken: Taken, spaces: Spaces, layers: Sequence[LayerPages], options: Options) -> int:
    """Stores what prefixd lacks. Returns up to which token it has the sequence now; 0 if it is
    unknown."""
    save = taken.save
    opened = None if spaces.is_silent else spaces.of(save.prompt.salt, save.prompt.adapter)
    if not opened:
        return 0
    space, deadline = opened[0], options.store_deadline_ms
    with space.reserve(
        save.prompt.tokens, content=save.prompt.content, deadline_ms=deadline
    ) as plan:
        spaces.heard("" if space.error else plan.error)
        if plan.error:
            return 0
        if plan.missing:
            taken.ready()
        for begin, end in plan.missing:
            if begin < save.begin:
                return begin  # rows that were taken earlier did not arrive, or are gone again
            _write(plan, taken, layers, begin, end)
            done = plan.commit(end, deadline_ms=deadline)
            if done.error:
                return begin
        done = plan.commit(save.end, save.is_last, deadline_ms=deadline)
        return 0 if done.error else save.end


def _write(
    plan: prefixd.Plan, taken: Taken, layers: Sequence[LayerPages], begin: int, end: int
) -> None:
    first = taken.save.begin
    for at, (layer, rows) in enumerate(zip(layers, taken.layers, strict=True)):
        cut = tuple(one[:, begin - first : end - first] for one in rows)
        layer.write(plan, at, begin, cut)
