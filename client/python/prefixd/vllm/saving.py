"""Saving: rows and states that were copied out of vLLM's pages, stored behind the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import prefixd

from ..engine.spaces import write_anchor
from ..engine.tensors import Ready
from .layout import Layout, TakenRows
from .messages import Save
from .options import Options
from .pages import Rows, StatePages
from .spaces import Spaces


@dataclass(frozen=True)
class Taken:
    """The rows of a save for each layer, and its states: layer, tokens, bytes. They are there once
    ready() has returned."""

    save: Save
    rows: Sequence[TakenRows | None]
    states: Sequence[tuple[int, int, Rows]] = ()
    ready: Ready = lambda: None

    @property
    def nbytes(self) -> int:
        sides = [side for layer in self.rows if layer is not None for side in layer.sides]
        return sum(side.nbytes for side in (*sides, *(state for _, _, state in self.states)))


def store(taken: Taken, spaces: Spaces, layout: Layout, options: Options) -> int:
    """Stores what prefixd lacks. Returns up to which token it has the sequence now; 0 if it is
    unknown."""
    save = taken.save
    opened = None if spaces.is_silent else spaces.of(save.prompt.salt, save.prompt.adapter)
    if not opened:
        return 0
    space, deadline = opened[0], options.store_deadline_ms
    with (
        prefixd.trace(*save.prompt.trace),
        space.reserve(
            save.prompt.tokens,
            content=save.prompt.content,
            turn_ends=save.turn_ends,
            writable=0,
            readable=0,
            deadline_ms=deadline,
        ) as plan,
    ):
        spaces.heard("" if space.error else plan.error)
        if plan.error:
            return 0
        if plan.missing or taken.states:
            taken.ready()
        for layer, tokens, state in taken.states:
            plan.put_state(layer, tokens, state)
        for begin, end in plan.missing:
            if begin < save.begin:
                return begin  # rows that were taken earlier did not arrive, or are gone again
            _write(plan, taken, layout, begin, end)
            done = plan.commit(end, deadline_ms=deadline)
            if done.error:
                return begin
        done = plan.commit(save.end, save.is_last, deadline_ms=deadline)
        return 0 if done.error else save.end


def _write(plan: prefixd.Plan, taken: Taken, layout: Layout, begin: int, end: int) -> None:
    """Writes the rows of tokens [begin, end). A layer with a window may have those at the end
    alone."""
    for at, (one, rows) in enumerate(zip(layout.layers, taken.rows, strict=True)):
        if rows is None or isinstance(one.pages, StatePages):
            continue
        first = max(begin, rows.begin)
        if first < end:
            cut = tuple(side[:, first - rows.begin : end - rows.begin] for side in rows.sides)
            one.pages.write(plan, at, first, cut)
    if layout.is_anchored:
        write_anchor(plan, len(layout.layers), begin, end)
