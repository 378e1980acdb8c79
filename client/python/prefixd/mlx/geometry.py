"""What a model's caches are made of, seen on the model itself: one token is run through it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from . import convert

DTYPES = {mx.float32: "float32", mx.float16: "float16", mx.bfloat16: "bfloat16"}


class Unsupported(Exception):
    """Why caches of a model are left to the engine's own prompt cache."""


@dataclass(frozen=True)
class LayerShape:
    kv_heads: int
    key_dim: int
    value_dim: int
    dtype: mx.Dtype


def layer_shapes(model: Any) -> list[LayerShape]:
    """Of each layer of the prompt cache that the engine makes for `model`.

    Shapes and types come from the tensors, not from a configuration, which may say something else.
    """
    caches = make_prompt_cache(model)
    check_supported(caches)
    model(mx.array([[0]]), cache=caches)
    return [_shape_of(cache) for cache in caches]


def check_supported(caches: Sequence[Any]) -> None:
    others = sorted({type(c).__name__ for c in caches if not convert.is_supported(c)})
    if others:
        raise Unsupported(f"its caches are {', '.join(others)}: no row for every token, in order")


def _shape_of(cache: Any) -> LayerShape:
    if cache.keys is None:
        raise Unsupported("a layer of its cache stays empty")
    key, value = cache.keys, cache.values
    if key.dtype not in DTYPES or value.dtype != key.dtype:
        raise Unsupported(f"its keys are {key.dtype}, its values {value.dtype}")
    return LayerShape(key.shape[1], key.shape[3], value.shape[3], key.dtype)


@dataclass(frozen=True)
class Rotation:
    """What the keys were turned by. `scaling`: all else that the configuration says about it."""

    theta: float
    rotary_dim: int
    scaling: str
    interleaved: bool


def rotation(config: dict[str, Any], head_dim: int) -> Rotation:
    """Out of a config.json. Fields that it does not know end up in `scaling`, so they count too."""
    config = {**config, **(config.get("text_config") or {})}
    rope = config.get("rope_parameters") or {}
    theta = rope.get("rope_theta", config.get("rope_theta", 10000.0))
    share = rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    others = {
        name: value
        for name, value in sorted(config.items())
        if name.startswith("rope_") and name not in ("rope_theta", "rope_traditional") and value
    }
    return Rotation(
        theta=float(theta),
        rotary_dim=int(head_dim * share),
        scaling=json.dumps(others, sort_keys=True) if others else "",
        interleaved=bool(config.get("rope_traditional", False)),
    )


def read_config(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "config.json").read_text())


def head_dim(config: dict[str, Any]) -> int:
    """Of the keys, by a config.json: before there is a model to look at."""
    config = {**config, **(config.get("text_config") or {})}
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
