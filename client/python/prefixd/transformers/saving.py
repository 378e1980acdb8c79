"""Save: writes what prefixd lacks of one sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from .. import Plan, Space
from ..engine.formats import RAW, TensorFormat
from ..engine.spaces import write_anchor
from .options import Options
from .pages import Pages, StatePages


@dataclass(frozen=True)
class Taken:
    """What a cache held when it was handed in, whatever becomes of the cache."""

    tokens: list[int]
    pieces: list[Any]  # Rows or states of each layer of the space
    turn_ends: list[int]
    ready: Callable[[], None]  # waits until the device has computed it


class Stored(NamedTuple):
    tokens: int
    error: str = ""  # why prefixd did not take it
    gap: str = ""  # why it cannot be given back in full


@dataclass(frozen=True)
class Save:
    space: Space
    pages: Sequence[Pages]
    anchored: bool  # the space has an ANCHOR behind its layers
    ladder: Sequence[TensorFormat]
    options: Options
    taken: Taken
    turn_ends: Sequence[int]

    def run(self) -> Stored:
        tokens, options = self.taken.tokens, self.options
        form = options.written if len(tokens) >= options.min_quantize_tokens else RAW
        ends = sorted(
            {end for end in (*self.turn_ends, *self.taken.turn_ends) if end < len(tokens)}
        )
        readable = [at for at, one in enumerate(self.ladder) if one in options.readable]
        self.taken.ready()
        with self.space.reserve(
            tokens,
            turn_ends=ends,
            writable=[self.ladder.index(form)],
            readable=readable,
            deadline_ms=options.deadline_ms,
        ) as plan:
            stored, error = 0, plan.error or self._put_states(plan)
            gap = self._gap(plan)
            if gap and not error:
                return Stored(0, gap=gap)
            for begin, end in plan.missing:
                error = error or self._write(plan, begin, end, [*ends, len(tokens)], form)
                if error:
                    break
                done = plan.commit(end, deadline_ms=options.store_deadline_ms)
                stored, error = stored + done.stored_tokens, done.error
            if not error:
                done = plan.commit(len(tokens), True, deadline_ms=options.store_deadline_ms)
                stored, error = stored + done.stored_tokens, done.error
        return Stored(stored, error)

    def _gap(self, plan: Plan) -> str:
        """Returns which rows that are to be written are needed after the last token, but gone."""
        count = len(self.taken.tokens)
        for pages, rows in zip(self.pages, self.taken.pieces, strict=True):
            if isinstance(pages, StatePages):
                continue
            for begin, end in plan.missing:
                for first, behind in pages.wanted(begin, end, [count]):
                    if rows.cut(first, behind) is None and first < pages.needs(count)[1]:
                        return (
                            f"rows of tokens {first} to {behind} are gone; "
                            "generate with a cache that fetch() gave"
                        )
        return ""

    def _write(
        self, plan: Plan, begin: int, end: int, ends: Sequence[int], form: TensorFormat
    ) -> str:
        """Writes the rows of tokens [begin, end). Returns plan.error."""
        for layer, (pages, rows) in enumerate(zip(self.pages, self.taken.pieces, strict=True)):
            if isinstance(pages, StatePages):
                continue
            for first, behind in pages.wanted(begin, end, ends):
                pages.write(plan, layer, first, behind, rows, form)
                if plan.error:
                    return plan.error
        if self.anchored:
            write_anchor(plan, len(self.pages), begin, end)
        return plan.error

    def _put_states(self, plan: Plan) -> str:
        for layer, (pages, states) in enumerate(zip(self.pages, self.taken.pieces, strict=True)):
            if not isinstance(pages, StatePages):
                continue
            if states is None:
                return "a layer keeps other states than at first"
            if not pages.write(plan, layer, len(self.taken.tokens), states):
                return plan.error or "no room for its states"
        return ""
