"""open_model(): the spaces of a model, found on the model itself and in its files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import prefixd

from . import geometry
from .files import Files
from .options import RAW, Options, TensorFormat
from .pages import LayerPages
from .part import Part
from .shared import SharedCaches


@dataclass(frozen=True)
class Model:
    """A model in this process, and its files: a folder, or a name that mlx_lm downloaded."""

    module: Any
    path: str
    adapter: str | None = None


def open_model(client: prefixd.Client, models: Sequence[Model], options: Options) -> SharedCaches:
    """What is shared of a model, or of a model and its draft model, which have a space each.

    Raises Unsupported or OptionError, with the reason, where their caches cannot be shared. Without
    a daemon it opens all the same. Reads the files of the models whole.
    """
    return prepare_model(client, models, options)()


def prepare_model(
    client: prefixd.Client, models: Sequence[Model], options: Options
) -> Callable[[], SharedCaches]:
    """open_model() in two steps: now, on the thread that the models run on, what they compute is
    looked at; what is returned reads their files and opens, on any thread."""
    looks = [_look_at(model, options) for model in models]

    def open_all() -> SharedCaches:
        target, *drafts = looks
        parts = [_open(client, target, options, draft_of=None)]
        if drafts:
            weights = target.files.weights()
            parts += [_open(client, draft, options, draft_of=weights) for draft in drafts]
        return SharedCaches(parts)

    return open_all


@dataclass(frozen=True)
class _Look:
    name: str
    files: Files
    layers: list[LayerPages]


def _look_at(model: Model, options: Options) -> _Look:
    shapes = geometry.layer_shapes(model.module)
    for shape in shapes:
        for dim in (shape.key_dim, shape.value_dim):
            options.check_head_dim(dim)
    return _Look(
        name=options.model_name or Path(model.path).name,
        files=Files.of(model.path, model.adapter),
        layers=[LayerPages(shape, _ladder(options, shapes)) for shape in shapes],
    )


def _open(client: prefixd.Client, look: _Look, options: Options, draft_of: bytes | None) -> Part:
    turned = geometry.rotation(look.files.config(), look.layers[0].shape.key_dim)
    space = client.open_space(
        model=look.name,
        weights=look.files.weights(),
        adapter=look.files.adapter(),
        tokenizer=look.files.tokenizer(),
        draft_of=draft_of,
        rope=prefixd.Rope(
            theta=turned.theta,
            rotary_dim=turned.rotary_dim,
            scaling=turned.scaling,
            interleaved=turned.interleaved,
        ),
        layers=[layer.layer() for layer in look.layers],
        salt=options.salt,
    )
    return Part(space, look.layers, options)


def _ladder(options: Options, shapes: Sequence[geometry.LayerShape]) -> tuple[TensorFormat, ...]:
    """Of all layers alike; without what no row of some layer can be cut into."""
    dims = {dim for shape in shapes for dim in (shape.key_dim, shape.value_dim)}
    return tuple(
        form
        for form in options.ladder
        if form == RAW or all(dim % form.group_size == 0 for dim in dims)
    )
