"""open_model(): opens the spaces of a model, by what the model itself and its files say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import prefixd

from ..engine.files import Files
from ..engine.spaces import ANCHOR, DEFAULT_BLOCK_TOKENS, block_tokens_for
from . import geometry
from .geometry import CacheShape, PromptShape, RowShape
from .layers import (
    EmptyPages,
    Pages,
    RowPages,
    StatePages,
    WindowPages,
    needs_anchor,
)
from .options import RAW, OptionError, Options, TensorFormat
from .part import Part
from .shared import SharedCaches
from .states import StateShape


@dataclass(frozen=True)
class Model:
    """A model in this process, and its files: a folder, or a name that mlx_lm downloaded."""

    module: Any
    path: str
    adapter: str | None = None


def open_model(client: prefixd.Client, models: Sequence[Model], options: Options) -> SharedCaches:
    """Opens the shared caches of a model, or of a model and its draft model: a space for each.

    Raises Unsupported or OptionError, with the reason, if their caches cannot be shared. Without a
    daemon it opens all the same. Reads the files of the models whole.
    """
    return prepare_model(client, models, options)()


def prepare_model(
    client: prefixd.Client, models: Sequence[Model], options: Options
) -> Callable[[], SharedCaches]:
    """open_model() in two steps. This call looks at what the models compute, on the thread that
    they run on. The returned function reads their files and opens their spaces, on any thread."""
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
    shape: PromptShape
    block_tokens: int  # 0: the daemon's default
    pages: list[Pages]

    @property
    def rope_dim(self) -> int:
        """The width of a key, of which the rotary part is a share; 0 if there are no keys."""
        dims = [shape.key_dim for shape in self.shape.caches if isinstance(shape, RowShape)]
        return dims[0] if dims else 0


def _look_at(model: Model, options: Options) -> _Look:
    shape = geometry.look_at(model.module, options.max_kv_size)
    rows = [one for one in shape.caches if isinstance(one, RowShape)]
    for one in rows:
        for dim in one.dims:
            options.check_head_dim(dim)
    if options.kv_bits is not None:
        _check_quantizes(model.module, options)
    block_tokens = _block_tokens(rows)
    return _Look(
        name=options.model_name or Path(model.path).name,
        files=Files.of(model.path, model.adapter),
        shape=shape,
        block_tokens=block_tokens,
        pages=[_pages(one, _ladder(options, rows), options, block_tokens) for one in shape.caches],
    )


def _open(client: prefixd.Client, look: _Look, options: Options, draft_of: bytes | None) -> Part:
    layers = [pages.layer() for pages in look.pages if not isinstance(pages, EmptyPages)]
    space = client.open_space(
        model=look.name,
        weights=look.files.weights(),
        adapter=look.files.adapter(),
        tokenizer=look.files.tokenizer(),
        draft_of=draft_of,
        rope=geometry.rotation(look.files.config(), look.rope_dim),
        layers=[*layers, ANCHOR] if needs_anchor(look.pages) else layers,
        salt=options.salt,
        block_tokens=look.block_tokens,
    )
    return Part(space, look.shape, look.pages, options)


def _pages(
    shape: CacheShape, ladder: tuple[TensorFormat, ...], options: Options, block_tokens: int
) -> Pages:
    if isinstance(shape, StateShape):
        return StatePages(shape)
    if not isinstance(shape, RowShape):
        return EmptyPages(shape)
    if options.kv_bits is not None and not shape.quantizes:
        ladder = (RAW,)  # the engine leaves these rows as they are
    if shape.window is None:
        return RowPages(shape, ladder)
    return WindowPages(shape, ladder, block_tokens or DEFAULT_BLOCK_TOKENS)


def _ladder(options: Options, shapes: Sequence[RowShape]) -> tuple[TensorFormat, ...]:
    """Returns the formats of all layers, which are the same. Leaves out a format whose groups do
    not divide the rows of every layer."""
    dims = {dim for shape in shapes for dim in shape.dims}
    return tuple(
        form
        for form in options.ladder
        if form == RAW or all(dim % form.group_size == 0 for dim in dims)
    )


def _block_tokens(shapes: Sequence[RowShape]) -> int:
    """Returns a block size for the smallest window; 0: the daemon's default."""
    return block_tokens_for([one.window.window for one in shapes if one.window is not None])


def _check_quantizes(module: Any, options: Options) -> None:
    """Raises OptionError if the model cannot run with --kv-bits: some of mlx-lm's models raise in
    the middle of a request."""
    why = geometry.why_not_quantized(module, options.kv_group_size, options.kv_bits or 0)
    if why:
        raise OptionError(
            f"--kv-bits: mlx-lm cannot generate with quantized caches of this model ({why}); "
            "--kv-cache-quantization saves quantized and computes in full precision"
        )
