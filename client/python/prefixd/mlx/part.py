"""Part: the caches of one model, in a space of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import prefixd

from . import convert
from .geometry import Unsupported
from .options import RAW, Options, TensorFormat
from .pages import LayerPages
from .restored import Restored
from .tokens import Prompt

LayerRows = list[convert.Rows]
"""Of one layer, runs in one format each, one after another."""


@dataclass(frozen=True)
class Stored:
    """What a store() came to. `held`: all of it can be given back by prefixd."""

    held: bool
    sequence_ends: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Part:
    """Of a model, or of its draft model."""

    space: prefixd.Space
    layers: Sequence[LayerPages]
    options: Options
    _restored: Restored = field(default_factory=Restored)

    def acquire(self, prompt: Prompt) -> prefixd.Lease:
        """Of all but the last token, which is computed for its logits."""
        return self.space.acquire(
            prompt.tokens,
            content=_content(prompt),
            max_tokens=len(prompt.tokens) - 1,
            deadline_ms=self.options.deadline_ms,
            load_deadline_ms=self.options.load_deadline_ms,
            readable=self._readable(),
        )

    def gather(self, lease: prefixd.Lease, count: int) -> list[LayerRows]:
        """Of each layer, tokens [0, count). May raise pages.Shorter."""
        return [layer.gather(lease, index, count) for index, layer in enumerate(self.layers)]

    def restore(self, prefix: Prompt, layers: Sequence[LayerRows]) -> list[Any]:
        """Cache objects for the engine, in one format: its own if any of it is quantized by it."""
        quantized = any(run.format != RAW for runs in layers for run in runs)
        form = self.options.quantized if quantized and self.options.kv_bits is not None else RAW
        if quantized and form == RAW:
            self._restored.remember(prefix, layers, self.space.block_tokens)
        return [convert.to_cache(convert.join(runs, form)) for runs in layers]

    def store(self, prompt: Prompt, caches: Sequence[Any], turn_ends: Sequence[int]) -> Stored:
        """Saves what is not there of what the caches hold of `prompt`."""
        count = min(len(prompt.tokens), *(cache.offset for cache in caches))
        prompt = prompt.cut(prompt.outside_images(count))
        if not prompt.tokens:  # of an empty cache there is not even a tensor
            return Stored(held=False)
        rows = [convert.from_cache(cache).cut(0, len(prompt.tokens)) for cache in caches]
        return self._write(prompt, rows, [end for end in turn_ends if end < len(prompt.tokens)])

    def _write(
        self, prompt: Prompt, rows: Sequence[convert.Rows], turn_ends: Sequence[int]
    ) -> Stored:
        form = self._stored_format(rows)
        rows = [own.as_numpy() if own.format == form else own for own in rows]
        with self.space.reserve(
            prompt.tokens,
            content=_content(prompt),
            turn_ends=turn_ends,
            writable=self._names([form]),
            readable=self._readable(),
            deadline_ms=self.options.deadline_ms,
        ) as plan:
            stored, error = 0, plan.error
            for begin, end in plan.mine:
                if error:
                    break
                for index, (layer, own) in enumerate(zip(self.layers, rows)):
                    packed = self._packed(prompt, index, own, begin, end, form)
                    layer.write(plan, index, begin, packed)
                done = self._commit(plan, end)
                stored, error = stored + done.stored_tokens, done.error
            if not error:
                done = self._commit(plan, len(prompt.tokens), sequence_end=True)
                stored, error = stored + done.stored_tokens, done.error
        return Stored(
            held=not error,
            sequence_ends=1 + len(turn_ends) if stored else 0,
            bytes=stored * sum(layer.bytes_per_token(form) for layer in self.layers),
        )

    def _commit(
        self, plan: prefixd.Plan, tokens: int, sequence_end: bool = False
    ) -> prefixd.CommitInfo:
        return plan.commit(tokens, sequence_end, deadline_ms=self.options.store_deadline_ms)

    def _stored_format(self, rows: Sequence[convert.Rows]) -> TensorFormat:
        forms = {own.format for own in rows}
        if len(forms) > 1:
            raise Unsupported("some of its layers are quantized and some are not")
        (form,) = forms
        return self.options.store_format(rows[0].tokens) if form == RAW else form

    def _packed(
        self,
        prompt: Prompt,
        layer: int,
        rows: convert.Rows,
        begin: int,
        end: int,
        form: TensorFormat,
    ) -> convert.Rows:
        """Tokens [begin, end) in `form`: those that came out of prefixd as they came."""
        if rows.format == form:
            return rows.cut(begin, end)
        kept = self._restored.find(prompt, layer, form)
        if kept is None or not begin <= kept.begin < end:
            return convert.quantize(rows.cut(begin, end), form)
        behind = min(end, kept.begin + kept.rows.tokens)
        runs = [
            rows.cut(begin, kept.begin),
            kept.rows.cut(0, behind - kept.begin),
            rows.cut(behind, end),
        ]
        return convert.join([run for run in runs if run.tokens], form)

    def _readable(self) -> list[str]:
        """Of what the options read, what this model's rows can be cut into."""
        return self._names([f for f in self.options.readable if f in self.layers[0].ladder])

    def _names(self, forms: Sequence[TensorFormat]) -> list[str]:
        return self.layers[0].names(forms)


def _content(prompt: Prompt) -> list[prefixd.Content]:
    return [prefixd.Content(image.start, image.length, image.digest) for image in prompt.images]
