"""Finds what a model's caches are made of: runs a few tokens through the model and looks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Union

import mlx.core as mx
import prefixd
from mlx_lm.generate import maybe_quantize_kv_cache
from mlx_lm.models.cache import (
    ArraysCache,
    BatchKVCache,
    BatchRotatingKVCache,
    CacheList,
    make_prompt_cache,
)

from ..engine.spaces import Unsupported
from . import convert, windows
from .states import StateShape

MAX_SCALING_BYTES, MAX_ROTARY_DIM = 64, 16384  # the daemon's limits
DTYPES = {mx.float32: "float32", mx.float16: "float16", mx.bfloat16: "bfloat16"}

_PROBE_TOKENS = 16  # after these, arrays that grow with the first tokens have their size


@dataclass(frozen=True)
class RowShape:
    """A cache of rows of K and V."""

    kv_heads: int
    key_dim: int
    value_dim: int  # 0: the layer stores keys only
    dtype: mx.Dtype
    window: windows.Rotating | windows.Chunked | None = None  # None: it keeps every token
    quantizes: bool = False  # with kv_bits the engine quantizes its rows

    @property
    def dims(self) -> tuple[int, ...]:
        return tuple(dim for dim in (self.key_dim, self.value_dim) if dim)


@dataclass(frozen=True)
class Unfilled:
    """A cache that the model never fills, as the engine makes it."""

    cache: Any


CacheShape = Union[RowShape, StateShape, Unfilled]

Tree = Union[None, tuple["Tree", ...]]
"""One object of a prompt cache: a CacheList as a tuple of the trees in it, any other as None."""


@dataclass(frozen=True)
class PromptShape:
    """The prompt cache that the engine makes for a model."""

    trees: tuple[Tree, ...]  # one for each object
    caches: tuple[CacheShape, ...]  # one for each object that is no CacheList, in order


def look_at(model: Any, max_kv_size: int | None = None) -> PromptShape:
    """Returns the shape of a model's prompt cache. Shapes and types come from the tensors, not from
    a configuration, which may say something else. Raises Unsupported, with the reason, if some of
    it cannot be shared."""
    caches = make_prompt_cache(model, max_kv_size)
    model(mx.zeros((1, _PROBE_TOKENS), mx.int32), cache=caches)
    leaves = list(leaves_of(caches))
    top = {id(cache) for cache in caches}
    shapes = tuple(_shape_of(cache, quantizes=id(cache) in top) for cache in leaves)
    if all(isinstance(shape, Unfilled) for shape in shapes):
        raise Unsupported("every layer of its cache stays empty")
    return PromptShape(tuple(map(_tree_of, caches)), shapes)


def why_not_quantized(model: Any, group_size: int, bits: int) -> str:
    """Tries what the engine does with --kv-bits. Returns "", or how it failed."""
    caches = make_prompt_cache(model)
    try:
        model(mx.zeros((1, 2), mx.int32), cache=caches)
        maybe_quantize_kv_cache(caches, 0, group_size, bits)
        mx.eval(model(mx.zeros((1, 1), mx.int32), cache=caches))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def leaves_of(caches: Sequence[Any]) -> Iterator[Any]:
    """Yields the objects of a prompt cache, and instead of a CacheList the objects in it."""
    for cache in caches:
        if type(cache) is CacheList:
            yield from leaves_of(cache.caches)
        else:
            yield cache


def rebuild(trees: Sequence[Tree], leaves: Iterator[Any]) -> list[Any]:
    """Returns a prompt cache of objects with these trees, from what leaves_of() yields."""
    return [
        next(leaves) if tree is None else CacheList(*rebuild(tree, leaves)) for tree in trees
    ]


def unbatched(caches: Sequence[Any]) -> list[Any]:
    """Returns the objects of one sequence, taken out of a batch of one if they are batched."""
    return [_unbatched(cache) for cache in caches]


def _unbatched(cache: Any) -> Any:
    if type(cache) is CacheList:
        return CacheList(*map(_unbatched, cache.caches))
    if type(cache) not in (BatchKVCache, BatchRotatingKVCache) or cache.empty():
        return cache
    rows = cache.keys.shape[0]
    if rows != 1:
        raise Unsupported(f"a batch of {rows} sequences: extract() one, and store that")
    return cache.extract(0)


def _tree_of(cache: Any) -> Tree:
    return tuple(map(_tree_of, cache.caches)) if type(cache) is CacheList else None


def _shape_of(cache: Any, quantizes: bool) -> CacheShape:
    if type(cache) is ArraysCache:
        shape = StateShape.of(cache)
        return shape if shape.nbytes else Unfilled(cache)
    window = windows.describe(cache)
    if window is None and not convert.keeps_all_rows(cache):
        raise Unsupported(f"its layers keep a {type(cache).__name__}, which prefixd.mlx cannot read")
    if cache.keys is None:
        return Unfilled(cache)
    key, value = cache.keys, cache.values
    if key.dtype not in DTYPES or value.dtype != key.dtype:
        raise Unsupported(f"its keys are {key.dtype}, its values {value.dtype}")
    if key.shape[1] != value.shape[1]:
        raise Unsupported(f"{key.shape[1]} heads of keys, {value.shape[1]} of values")
    return RowShape(
        kv_heads=key.shape[1],
        key_dim=key.shape[3],
        value_dim=value.shape[3],
        dtype=key.dtype,
        window=window,
        quantizes=quantizes and hasattr(cache, "to_quantized"),
    )


def rotation(config: dict[str, Any], head_dim: int) -> prefixd.Rope:
    """Returns the Rope that turned the keys, from a config.json.

    If a space could open before there was rope_of(), its Rope is what it was then, so that it keeps
    its id and what is stored in it. For all others, which the daemon refused, it is rope_of().
    """
    try:
        first = _first_rotation(config, head_dim)
    except (AttributeError, TypeError, ValueError, OverflowError, RecursionError):
        return prefixd.rope_of(config, head_dim)
    did_open = (
        len(first.scaling) <= MAX_SCALING_BYTES
        and 0 <= first.rotary_dim <= MAX_ROTARY_DIM
        and first.rotary_dim % 2 == 0
        and isfinite(first.theta)
        and (first.theta > 0 or first.theta == first.rotary_dim == 0)
    )
    return first if did_open else prefixd.rope_of(config, head_dim)


def _first_rotation(config: dict[str, Any], head_dim: int) -> prefixd.Rope:
    """Returns the Rope as it was before rope_of(): all fields but theta and share as JSON in
    `scaling`. Do not change it: ids of spaces depend on it."""
    config = {**config, **(config.get("text_config") or {})}
    rope = config.get("rope_parameters") or {}
    theta = rope.get("rope_theta", config.get("rope_theta", 10000.0))
    share = rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    others = {
        name: value
        for name, value in sorted(config.items())
        if name.startswith("rope_") and name not in ("rope_theta", "rope_traditional") and value
    }
    return prefixd.Rope(
        theta=float(theta),
        rotary_dim=int(head_dim * share),
        scaling=json.dumps(others, sort_keys=True) if others else "",
        interleaved=bool(config.get("rope_traditional", False)),
    )


def head_dim(config: dict[str, Any]) -> int:
    """Returns the head_dim of the keys by a config.json, before there is a model to look at."""
    config = {**config, **(config.get("text_config") or {})}
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
