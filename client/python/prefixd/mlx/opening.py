"""open_model(): the spaces of a model, found on the model itself and in its files."""

from __future__ import annotations

from collections.abc import Sequence
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

    def files(self) -> Files:
        return Files.of(self.path, self.adapter)


def open_model(client: prefixd.Client, models: Sequence[Model], options: Options) -> SharedCaches:
    """What is shared of a model, or of a model and its draft model, which have a space each.

    Raises Unsupported or OptionError, with the reason, where their caches cannot be shared. Without
    a daemon it opens all the same.
    """
    target, *drafts = models
    parts = [_open(client, target, options, draft_of=None)]
    parts += [_open(client, draft, options, draft_of=target.files().weights()) for draft in drafts]
    return SharedCaches(parts)


def _open(client: prefixd.Client, model: Model, options: Options, draft_of: bytes | None) -> Part:
    shapes = geometry.layer_shapes(model.module)
    files = model.files()
    for shape in shapes:
        for dim in (shape.key_dim, shape.value_dim):
            options.check_head_dim(dim)
    layers = [LayerPages(shape, _ladder(options, shapes)) for shape in shapes]
    turned = geometry.rotation(files.config(), shapes[0].key_dim)
    space = client.open_space(
        model=options.model_name or Path(model.path).name,
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
    return Part(space, layers, options)


def _ladder(options: Options, shapes: Sequence[geometry.LayerShape]) -> tuple[TensorFormat, ...]:
    """Of all layers alike; without what no row of some layer can be cut into."""
    dims = {dim for shape in shapes for dim in (shape.key_dim, shape.value_dim)}
    return tuple(
        form
        for form in options.ladder
        if form == RAW or all(dim % form.group_size == 0 for dim in dims)
    )
