"""Layout: a worker's layers as its space has them, and their pages in vLLM's groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from vllm.v1.kv_cache_interface import MambaSpec, UniformTypeKVCacheSpecs

import prefixd

from ..engine.formats import RAW, fitting, ladder
from ..engine.spaces import ANCHOR, DEFAULT_BLOCK_TOKENS, block_tokens_for
from .groups import Group, Groups, Pages, first_page
from .messages import Save
from .options import Options
from .pages import LayerPages, RowPages, Rows, StatePages, WholePages, pages_of

_BLOCKS = (64, 32, 16)  # tokens of prefixd's blocks


@dataclass(frozen=True)
class Place:
    """A layer of vLLM, and the number of its group."""

    name: str
    group: int
    pages: LayerPages | StatePages


@dataclass(frozen=True)
class TakenRows:
    """K and V, or one array, of tokens from `begin` on."""

    begin: int
    sides: tuple[Rows, ...]


@dataclass(frozen=True)
class Layout:
    """The layers of a space, in the order of the model. `block_tokens`: of the space."""

    groups: Groups
    layers: tuple[Place, ...]
    block_tokens: int

    @property
    def is_anchored(self) -> bool:
        """True if no layer keeps every token: the space then has an ANCHOR behind its layers."""
        return all(isinstance(one.pages, StatePages) or one.pages.window > 0 for one in self.layers)

    @property
    def device(self) -> torch.device:
        return self.layers[0].pages.cache.device

    @property
    def bytes_per_token(self) -> int:
        rows = [one.pages.cache for one in self.layers if not isinstance(one.pages, StatePages)]
        return sum(cache[0].nbytes // cache.shape[2] for cache in rows)

    def space_layers(self) -> tuple[prefixd.Layer, ...]:
        """Rows that are stored raw have the formats of every adapter's raw rows, so that they
        share a space."""
        pages = [one.pages for one in self.layers]
        rows = [one for one in pages if isinstance(one, RowPages)]
        is_raw = len(rows) == len(pages) and all(one.form == RAW for one in rows)
        formats = fitting(ladder(RAW), [dim for one in rows for dim in one.dims]) if is_raw else ()
        layers = [one.layer(formats) if isinstance(one, RowPages) else one.layer() for one in pages]
        return (*layers, ANCHOR) if self.is_anchored else tuple(layers)

    def take(self, save: Save) -> list[TakenRows | None]:
        """Returns the rows of tokens [save.begin, save.end) of each layer, as far as they are still
        there; None for a layer of states."""
        return [
            None
            if isinstance(one.pages, StatePages)
            else self._take(one.pages, self.groups.each[one.group], save, save.pages[one.group])
            for one in self.layers
        ]

    def take_states(self, save: Save) -> list[tuple[int, int, Rows]]:
        """Returns layer, number of tokens and bytes of each state of the save."""
        return [
            (layer, state.tokens, one.pages.take(state.page))
            for state in save.states
            for layer, one in enumerate(self.layers)
            if one.group == state.group and isinstance(one.pages, StatePages)
        ]

    def fill(
        self, lease: prefixd.Lease, layer: int, pages: Sequence[Pages], begin: int, end: int
    ) -> bool:
        """Fills a layer's pages of tokens [begin, end), of those that are there. Returns False if
        the lease does not have them."""
        one = self.layers[layer]
        page, ids = self.groups.each[one.group].page, pages[one.group]
        if isinstance(one.pages, StatePages):
            return one.pages.fill(lease, layer, int(ids[end // page - 1]))
        first = max(begin // page, first_page(ids))
        which = ids[first : end // page]
        if not which.all():
            raise ValueError(f"vLLM has a gap in the pages of {one.name}")
        if not which.size:
            return True
        return one.pages.fill(
            lease, layer, first * page, end, _kernel_pages(which, page, one.pages)
        )

    def _take(self, held: LayerPages, group: Group, save: Save, ids: Pages) -> TakenRows:
        first = max(save.begin // group.page, first_page(ids))
        begin = first * group.page
        if begin >= save.end:
            return TakenRows(save.end, ())
        sides = held.take(_kernel_pages(ids[first:], group.page, held))
        # The block that the first page begins in is stored whole or not at all.
        skip = -begin % (self.block_tokens or DEFAULT_BLOCK_TOKENS) if begin > save.begin else 0
        return TakenRows(begin + skip, tuple(side[:, skip:] for side in sides))


def look_at(
    vllm_config: Any, kv_cache_config: Any, caches: dict[str, torch.Tensor], options: Options
) -> Layout:
    """Returns the layout of the worker's caches. Raises ValueError, KeyError or Unsupported, with
    the reason, if they cannot be stored."""
    groups = Groups.of(kv_cache_config)
    modules = vllm_config.compilation_config.static_forward_context
    found = {}
    for number, group in enumerate(kv_cache_config.kv_cache_groups):
        for name in group.layer_names:
            if getattr(modules[name], "kv_sharing_target_layer_name", None) is None:
                spec = _spec_of(group.kv_cache_spec, name)
                pages = _pages_of(modules[name], spec, caches[name], groups.each[number], options)
                found[name] = Place(name, number, pages)
    layers = tuple(found[name] for name in modules if name in found)
    windows = [one.window for one in groups.each if one.window]
    block_tokens = block_tokens_for(windows)
    if any(one.has_states for one in groups.each):
        # States are stored at the ends of pages, which must be ends of blocks.
        least = block_tokens or DEFAULT_BLOCK_TOKENS
        fits = [one for one in _BLOCKS if one <= least and groups.page % one == 0]
        if not fits:
            raise ValueError(f"a state stands for {groups.page} tokens, must be a multiple of 16")
        block_tokens = fits[0] % DEFAULT_BLOCK_TOKENS
    return Layout(groups, layers, block_tokens)


def salt_of(vllm_config: Any, layout: Layout) -> str:
    """Returns what sets whole pages and states apart from those of another backend or machine; ""
    if every layer is stored as rows."""
    modules = vllm_config.compilation_config.static_forward_context
    kinds = []
    for one in layout.layers:
        if isinstance(one.pages, WholePages):
            module, cache = modules[one.name], one.pages.cache
            backend, isa = type(module.impl).__name__, getattr(module, "isa", "")
            kinds.append(f"{backend} {isa} {cache.dtype} {list(cache.shape[1:])}")
        elif isinstance(one.pages, StatePages):
            kinds.append(_state_kind(modules[one.name], one.pages))
    return f"{vllm_config.cache_config.cache_dtype}: " + "; ".join(kinds) if kinds else ""


def _spec_of(spec: Any, name: str) -> Any:
    return spec.kv_cache_specs[name] if isinstance(spec, UniformTypeKVCacheSpecs) else spec


def _pages_of(
    module: Any, spec: Any, cache: torch.Tensor, group: Group, options: Options
) -> LayerPages | StatePages:
    if isinstance(spec, MambaSpec):
        return StatePages(cache)
    window = group.stored_window
    return pages_of(
        module, cache, spec.num_kv_heads, spec.head_size, options.rows, options.bits, window
    )


def _state_kind(module: Any, pages: StatePages) -> str:
    """Returns all that may decide the bytes of a state, which are vLLM's own."""
    from vllm import __version__

    shapes = [list(shape) for shape in module.get_state_shape()]
    device = pages.cache.device.type
    return f"{type(module).__name__} {shapes} {module.get_state_dtype()} {device} {__version__}"


def _kernel_pages(which: Pages, page: int, held: LayerPages) -> torch.Tensor:
    """Returns the numbers of the kernels' pages, of which several may make up one of vLLM's."""
    parts = page // held.cache.shape[2]
    numbers = which.astype(np.int64)[:, None] * parts + np.arange(parts)
    return torch.from_numpy(numbers.reshape(-1))
