"""Part: the caches of one model, in a space of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import prefixd

from ..engine.spaces import write_anchor
from . import convert
from .convert import Held, Rows
from .geometry import PromptShape, Unsupported, leaves_of, rebuild
from .layers import (
    EmptyPages,
    Gathered,
    Pages,
    RowPages,
    StatePages,
    Taken,
    needs_anchor,
)
from .options import RAW, Options, TensorFormat
from .restored import Restored
from .tokens import Prompt


@dataclass(frozen=True)
class Stored:
    """The result of a store(). `held`: prefixd can give all of it back."""

    held: bool
    why: str = ""  # why it is not held
    sequence_ends: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Part:
    """The caches of a model, or of its draft model."""

    space: prefixd.Space
    shape: PromptShape
    pages: Sequence[Pages]  # one for each object that is no CacheList
    options: Options
    _restored: Restored = field(default_factory=Restored)

    @property
    def objects(self) -> int:
        """Number of objects in a prompt cache, each CacheList counted once."""
        return len(self.shape.trees)

    @property
    def is_anchored(self) -> bool:
        """True if the space has an ANCHOR, behind the layers of `pages`."""
        return needs_anchor(self.pages)

    @property
    def readable(self) -> list[int] | None:
        """The formats that this server can be given, as indexes into the layers' formats; None if
        no layer has any."""
        readable = self.options.readable
        return [index for index, form in enumerate(self._ladder) if form in readable] or None

    def gather(self, lease: prefixd.Lease, count: int) -> list[Gathered]:
        """Returns what prefixd has of each object after `count` tokens. May raise Shorter."""
        found: list[Gathered] = []
        layer = 0
        for pages in self.pages:
            if isinstance(pages, EmptyPages):
                found.append(None)
                continue
            found.append(pages.gather(lease, layer, count))
            layer += 1
        return found

    def restore(self, prefix: Prompt, gathered: Sequence[Gathered]) -> list[Any]:
        """Returns cache objects for the engine, which all go on after `prefix`."""
        runs = [run for one in gathered if isinstance(one, list) for run in one]
        quantized = any(run.format != RAW for run in runs)
        form = self.options.quantized if quantized and self.options.kv_bits is not None else RAW
        if quantized and form == RAW:
            rows = [one if isinstance(one, list) else [] for one in gathered]
            self._restored.remember(prefix, rows, self.space.block_tokens)
        count = len(prefix.tokens)
        leaves = (pages.restore(one, count, form) for pages, one in zip(self.pages, gathered))
        return rebuild(self.shape.trees, leaves)

    def take(self, caches: Sequence[Any]) -> list[Taken]:
        """Returns what the engine's objects hold, as arrays that are not computed yet."""
        return [pages.take(cache) for pages, cache in zip(self.pages, leaves_of(caches))]

    def store(self, prompt: Prompt, taken: Sequence[Taken], turn_ends: Sequence[int]) -> Stored:
        """Saves what prefixd lacks of `prompt`, from `taken`, which take() gave. On any thread."""
        count = min([len(prompt.tokens), *(one.end for one in taken if isinstance(one, Held))])
        count = prompt.outside_images(count)
        if not count or any(
            one is None for one, pages in zip(taken, self.pages) if isinstance(pages, RowPages)
        ):
            return Stored(held=False, why="the caches are empty")
        if count < len(prompt.tokens) and any(isinstance(p, StatePages) for p in self.pages):
            return Stored(held=False, why=f"its states are not those after {count} tokens")
        ends = [end for end in turn_ends if end < count]
        return _Store(self, prompt.cut(count), taken, ends).run()

    @property
    def _ladder(self) -> tuple[TensorFormat, ...]:
        """The formats of the layers that have most of them; the other layers have its first."""
        ladders = [pages.ladder for pages in self.pages if isinstance(pages, RowPages)]
        return max(ladders, key=len, default=())

    def _stored_format(self, taken: Sequence[Taken], tokens: int) -> TensorFormat:
        forms = {
            one.rows.format
            for one, pages in zip(taken, self.pages)
            if isinstance(one, Held) and isinstance(pages, RowPages) and len(pages.ladder) > 1
        }
        if len(forms) > 1:
            raise Unsupported("some of its layers are quantized and some are not")
        form = forms.pop() if forms else RAW
        return self.options.store_format(tokens) if form == RAW else form


class _Store:
    """One save: writes what a plan wants of what was taken."""

    def __init__(
        self, part: Part, prompt: Prompt, taken: Sequence[Taken], turn_ends: Sequence[int]
    ):
        self._part = part
        self._prompt = prompt
        self._taken = list(taken)
        self._turn_ends = turn_ends
        self._gap = ""  # which rows of a window are needed, but gone
        self._form = part._stored_format(taken, len(prompt.tokens))

    def run(self) -> Stored:
        part, tokens, options = self._part, self._prompt.tokens, self._part.options
        ladder = part._ladder
        with part.space.reserve(
            tokens,
            content=content_of(self._prompt),
            turn_ends=self._turn_ends,
            writable=[ladder.index(self._form)] if ladder else None,
            readable=part.readable,
            deadline_ms=options.deadline_ms,
        ) as plan:
            stored, error = 0, plan.error or self._put_states(plan)
            for begin, end in plan.missing:
                if error:
                    break
                error = self._write(plan, begin, end)
                if not error:
                    done = plan.commit(end, deadline_ms=options.store_deadline_ms)
                    stored, error = stored + done.stored_tokens, done.error
            if not error:
                done = plan.commit(len(tokens), True, deadline_ms=options.store_deadline_ms)
                stored, error = stored + done.stored_tokens, done.error
        rows = [pages for pages in part.pages if isinstance(pages, RowPages)]
        return Stored(
            held=not (error or self._gap),
            why=error or self._gap,
            sequence_ends=1 + len(self._turn_ends) if stored else 0,
            bytes=stored * sum(pages.bytes_per_token(self._form) for pages in rows),
        )

    def _write(self, plan: prefixd.Plan, begin: int, end: int) -> str:
        """Writes the rows of tokens [begin, end). Returns plan.error; notes lost rows in _gap."""
        ends = [*self._turn_ends, len(self._prompt.tokens)]
        layer = 0
        for index, pages in enumerate(self._part.pages):
            if isinstance(pages, RowPages):
                held = self._held(index, pages)
                for first, behind in pages.wanted(begin, end, ends):
                    if first < held.begin:
                        self._gap = f"the rows of tokens {first} to {held.begin} are gone"
                        continue
                    packed = self._packed(index, held, first, behind)
                    pages.write(plan, layer, first, packed)
            layer += not isinstance(pages, EmptyPages)
        if self._part.is_anchored:
            write_anchor(plan, layer, begin, end)
        return plan.error

    def _held(self, index: int, pages: RowPages) -> Held:
        """Returns the rows, in NumPy if they need no conversion: MLX would compute every cut."""
        held = self._taken[index]
        assert isinstance(held, Held)
        form = self._form if len(pages.ladder) > 1 else RAW
        if held.rows.format == form:
            held = self._taken[index] = Held(held.begin, held.rows.as_numpy())
        return held

    def _put_states(self, plan: prefixd.Plan) -> str:
        tokens, layer = len(self._prompt.tokens), 0
        for pages, one in zip(self._part.pages, self._taken):
            if isinstance(pages, StatePages):
                if one is None:
                    return "its arrays have other shapes at first"
                if not plan.put_state(layer, tokens, pages.shape.bytes_of(one)):
                    return plan.error or "no room for its states"
            layer += not isinstance(pages, EmptyPages)
        return ""

    def _packed(self, index: int, held: Held, begin: int, end: int) -> Rows:
        """Returns tokens [begin, end) as they are to be stored. Rows that came out of prefixd are
        stored as they came."""
        pages = self._part.pages[index]
        form = self._form if isinstance(pages, RowPages) and len(pages.ladder) > 1 else RAW
        if held.rows.format == form:
            return held.cut(begin, end)
        kept = self._part._restored.find(self._prompt, index, form)
        if kept is None or not begin <= kept.begin < end:
            return convert.quantize(held.cut(begin, end), form)
        behind = min(end, kept.begin + kept.rows.tokens)
        runs = [
            held.cut(begin, kept.begin),
            kept.rows.cut(0, behind - kept.begin),
            held.cut(behind, end),
        ]
        return convert.join([run for run in runs if run.tokens], form)


def content_of(prompt: Prompt) -> list[prefixd.Content]:
    return [prefixd.Content(image.start, image.length, image.digest) for image in prompt.images]
