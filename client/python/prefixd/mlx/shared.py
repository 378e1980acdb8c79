"""SharedCaches: what every process that serves a model has of its caches, through prefixd."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import prefixd

from . import convert, geometry
from .options import RAW, Options, TensorFormat
from .pages import LayerPages, Shorter
from .restored import Restored
from .tokens import Prompt


@dataclass(frozen=True)
class Model:
    """A model in this process and where its files are: a folder, or a name that mlx_lm downloaded."""

    module: Any
    path: str
    adapter: str | None = None


@dataclass(frozen=True)
class Stored:
    """What a store() came to. `held`: all of it can be given back by prefixd."""

    held: bool
    sequence_ends: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class _Part:
    """The caches of one model: of the model, or of its draft model."""

    space: prefixd.Space
    layers: list[LayerPages]


class SharedCaches:
    """Fetches and stores the prompt cache of a model, or of a model and its draft model: a list of one
    cache object for each layer, of the one then of the other."""

    def __init__(self, parts: Sequence[_Part], options: Options):
        self._parts = parts
        self._options = options
        self._restored = Restored(parts[0].space.block_tokens)

    def fetch(self, prompt: Prompt) -> tuple[list[Any] | None, int]:
        """Cache objects with the longest prefix that is here, and its tokens: at most all but one."""
        if len(prompt.tokens) < 2:
            return None, 0
        with contextlib.ExitStack() as held:
            leases = [held.enter_context(self._acquire(part, prompt)) for part in self._parts]
            count = prompt.outside_images(min(lease.wait_all() for lease in leases))
            if not count:
                return None, 0
            try:
                rows = self._gather(leases, count)
            except Shorter:
                return None, 0
        return self._restore(prompt.cut(count), rows), count

    def store(self, prompt: Prompt, caches: Sequence[Any], turn_ends: Sequence[int] = ()) -> Stored:
        """Saves what the caches hold of `prompt`, of which they may hold less. Bytes that are here
        already are neither converted nor sent."""
        geometry.check_supported(caches)
        if len(caches) != sum(len(part.layers) for part in self._parts):
            raise geometry.Unsupported(f"{len(caches)} caches are not those of the model's layers")
        stored = []
        begin = 0
        for part in self._parts:
            stored.append(self._store(part, prompt, caches[begin : begin + len(part.layers)], turn_ends))
            begin += len(part.layers)
        return Stored(
            held=all(one.held for one in stored),
            sequence_ends=stored[0].sequence_ends,
            bytes=sum(one.bytes for one in stored),
        )

    # --- fetch ---

    def _acquire(self, part: _Part, prompt: Prompt) -> prefixd.Lease:
        return part.space.acquire(
            prompt.tokens,
            content=_content(prompt),
            max_tokens=len(prompt.tokens) - 1,
            deadline_ms=self._options.deadline_ms,
            load_deadline_ms=self._options.load_deadline_ms,
            readable=part.layers[0].names(self._options.readable),
        )

    def _gather(self, leases: Sequence[prefixd.Lease], count: int) -> list[list[convert.Rows]]:
        """Of each layer, the runs that make up tokens [0, count). May raise Shorter."""
        return [
            layer.gather(lease, index, count)
            for part, lease in zip(self._parts, leases)
            for index, layer in enumerate(part.layers)
        ]

    def _restore(self, prompt: Prompt, rows: list[list[convert.Rows]]) -> list[Any]:
        """One format for all layers: the engine's own where any of it is quantized by the engine."""
        quantized = any(run.format != RAW for runs in rows for run in runs)
        form = self._options.quantized if quantized and self._options.kv_bits is not None else RAW
        if quantized and form == RAW:
            self._restored.remember(prompt, rows)
        caches = [convert.to_cache(convert.join(runs, form)) for runs in rows]
        mx.eval([(cache.keys, cache.values) for cache in caches])
        return caches

    # --- store ---

    def _store(
        self, part: _Part, prompt: Prompt, caches: Sequence[Any], turn_ends: Sequence[int]
    ) -> Stored:
        count = min(len(prompt.tokens), *(cache.offset for cache in caches))
        if not count:  # of nothing, not even a tensor
            return Stored(held=False)
        count = prompt.outside_images(count)
        prompt = prompt.cut(count)
        rows = [convert.from_cache(cache).cut(0, count) for cache in caches]
        form = rows[0].format
        if form == RAW:
            form = self._options.store_format(count)
        ends = [end for end in turn_ends if end < count]
        with part.space.reserve(
            prompt.tokens,
            content=_content(prompt),
            turn_ends=ends,
            writable=part.layers[0].names([form]),
            readable=part.layers[0].names(self._options.readable),
        ) as plan:
            stored = 0
            for begin, end in plan.mine:
                for index, (layer, own) in enumerate(zip(part.layers, rows)):
                    layer.write(plan, index, begin, self._packed(prompt, index, own, begin, end, form))
                stored += plan.commit(end).stored_tokens
            done = plan.commit(count, sequence_end=True)
            stored += done.stored_tokens
        return Stored(
            held=not done.error,
            sequence_ends=1 + len(ends) if stored else 0,
            bytes=stored * sum(layer.bytes_per_token(form) for layer in part.layers),
        )

    def _packed(
        self,
        prompt: Prompt,
        layer: int,
        rows: convert.Rows,
        begin: int,
        end: int,
        form: TensorFormat,
    ) -> convert.Rows:
        """Tokens [begin, end) in `form`. Rows that came quantized out of prefixd go back as they came."""
        if rows.format == form:
            return rows.cut(begin, end)
        kept = self._restored.find(prompt, layer, form)
        if kept is None or not begin <= kept.begin < end:
            return convert.quantize(rows.cut(begin, end), form)
        behind = min(end, kept.begin + kept.rows.tokens)
        runs = [rows.cut(begin, kept.begin), kept.rows.cut(0, behind - kept.begin), rows.cut(behind, end)]
        return convert.join([run for run in runs if run.tokens], form)


def _content(prompt: Prompt) -> list[prefixd.Content]:
    return [prefixd.Content(image.start, image.length, image.digest) for image in prompt.images]


# --- opening ---


def open_model(client: prefixd.Client, models: Sequence[Model], options: Options) -> SharedCaches:
    """What is shared of a model, or of a model and its draft model, which have a space each.

    Raises Unsupported or OptionError, with the reason, where their caches cannot be shared. Without
    a daemon it opens all the same.
    """
    target, *drafts = (_Files.of(model) for model in models)
    parts = [_open(client, target, options, draft_of=None)]
    parts += [_open(client, draft, options, draft_of=target.weights()) for draft in drafts]
    return SharedCaches(parts, options)


@dataclass(frozen=True)
class _Files:
    model: Model
    directory: Path

    @staticmethod
    def of(model: Model) -> _Files:
        directory = Path(model.path)
        if not directory.exists():
            from mlx_lm.utils import hf_repo_to_path

            directory = Path(hf_repo_to_path(model.path))
        return _Files(model, directory)

    def weights(self) -> bytes:
        return prefixd.digest_checkpoint(self.directory)

    def adapter(self) -> bytes | None:
        return prefixd.digest_checkpoint(self.model.adapter) if self.model.adapter else None

    def tokenizer(self) -> bytes:
        """Of every file that turns text into tokens."""
        digest = hashlib.sha256()
        for name in ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "merges.txt"):
            file = self.directory / name
            if file.exists():
                digest.update(name.encode() + prefixd.digest_file(file))
        return digest.digest()

    def name(self, options: Options) -> str:
        return options.model_name or Path(self.model.path).name


def _open(
    client: prefixd.Client, files: _Files, options: Options, draft_of: bytes | None
) -> _Part:
    shapes = geometry.layer_shapes(files.model.module)
    for shape in shapes:
        for dim in (shape.key_dim, shape.value_dim):
            options.check_head_dim(dim)
    layers = [LayerPages(shape, _ladder(options, shapes)) for shape in shapes]
    turned = geometry.rotation(geometry.read_config(files.directory), shapes[0].key_dim)
    space = client.open_space(
        model=files.name(options),
        weights=files.weights(),
        adapter=files.adapter(),
        tokenizer=files.tokenizer(),
        draft_of=draft_of,
        rope=prefixd.Rope(
            theta=turned.theta,
            rotary_dim=turned.rotary_dim,
            scaling=turned.scaling,
            interleaved=turned.interleaved,
        ),
        layers=[layer.layer() for layer in layers],
        salt=options.salt,
    )
    return _Part(space, layers)


def _ladder(options: Options, shapes: Sequence[geometry.LayerShape]) -> tuple[TensorFormat, ...]:
    """Of all layers alike; without what no row of some layer can be cut into."""
    dims = {dim for shape in shapes for dim in (shape.key_dim, shape.value_dim)}
    return tuple(
        form
        for form in options.ladder
        if form == RAW or all(dim % form.group_size == 0 for dim in dims)
    )
