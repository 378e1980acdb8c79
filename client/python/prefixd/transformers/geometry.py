"""Finds what a model's cache is made of: runs a few tokens through the model and looks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Union

import torch
from transformers import DynamicCache
from transformers.cache_utils import (
    DummyLayer,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionLayer,
)

from ..engine.spaces import Unsupported
from ..engine.tensors import DTYPES
from .windows import WindowLayer

_PROBE_TOKENS = 8
_ROWS = (DynamicLayer, DynamicSlidingWindowLayer, WindowLayer)


@dataclass(frozen=True)
class RowShape:
    """K and V of a cache layer."""

    kv_heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    device: torch.device
    window: int = 0  # tokens that a token attends on; 0: all

    @property
    def row_bytes(self) -> int:
        return self.kv_heads * (self.key_dim + self.value_dim) * self.dtype.itemsize


@dataclass(frozen=True)
class StateTensor:
    kind: str  # "conv_states" or "recurrent_states", of the layer
    index: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class StateShape:
    """The states of a linear-attention layer, right after one exact number of tokens."""

    tensors: tuple[StateTensor, ...]
    previous: tuple[bool, ...]  # the layer's has_previous_state

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)


Shape = Union[RowShape, StateShape]


@dataclass(frozen=True)
class CacheShape:
    """For each layer of a cache what it keeps: nothing, rows, states, or states and rows."""

    layers: tuple[tuple[Shape, ...], ...]

    @property
    def all(self) -> list[tuple[int, Shape]]:
        """Everything that is kept, in order: the layer of the cache, and what."""
        return [(at, shape) for at, kept in enumerate(self.layers) for shape in kept]

    @property
    def rows(self) -> list[RowShape]:
        return [shape for _, shape in self.all if isinstance(shape, RowShape)]

    @property
    def has_states(self) -> bool:
        return any(isinstance(shape, StateShape) for _, shape in self.all)


def new_cache(model: Any) -> DynamicCache:
    """Returns the empty cache that generate() would make for the model."""
    return DynamicCache(config=model.config.get_text_config(decoder=True))


def most_tokens(model: Any) -> int | None:
    """Returns up to how many tokens a key does not depend on the length of the whole sequence; None
    if it never does. transformers turns the keys of longer ones by other frequencies, where RoPE is
    "longrope" or "dynamic" (modeling_rope_utils.dynamic_rope_update)."""
    limits = []
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        for layer_type, kind in (kinds if isinstance(kinds, dict) else {None: kinds}).items():
            if kind == "longrope":
                said = module.config.rope_parameters
                said = said if layer_type is None else said[layer_type]
                limits.append(said["original_max_position_embeddings"])
            elif "dynamic" in (kind or ""):
                limits.append(module.original_max_seq_len - 1)
    return min(limits, default=None)


def look_at(model: Any) -> CacheShape:
    """Returns the shape of the model's cache. Shapes and types come from the tensors, not from a
    configuration. Raises Unsupported, with the reason, if some of it cannot be shared."""
    if getattr(model.config, "is_encoder_decoder", False):
        raise Unsupported("an encoder-decoder's cache depends on more than the tokens before")
    if not model._supports_default_dynamic_cache():
        raise Unsupported("generate() does not run it with a DynamicCache")
    cache = new_cache(model)
    ids = torch.zeros((1, _PROBE_TOKENS), dtype=torch.long, device=model.device)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            model(input_ids=ids, past_key_values=cache, use_cache=True)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        raise Unsupported(f"it does not run on a DynamicCache ({text[:200]})") from error
    finally:
        model.train(was_training)
    shape = CacheShape(tuple(tuple(_shapes_of(layer)) for layer in cache.layers))
    if not shape.rows:
        raise Unsupported("no layer keeps K and V: generate() does not go on from such a cache")
    return shape


def _shapes_of(layer: Any) -> list[Shape]:
    kind = type(layer)
    if kind is DummyLayer:
        return []
    found: list[Shape] = []
    if kind in (LinearAttentionLayer, LinearAttentionAndFullAttentionLayer):
        found.append(_states_of(layer))
    elif kind not in _ROWS:
        raise Unsupported(
            f"a layer keeps a {kind.__name__}, which prefixd.transformers cannot read"
        )
    if kind is not LinearAttentionLayer and layer.is_initialized and layer.keys is not None:
        found.append(_rows_of(layer))
    return found


def _rows_of(layer: Any) -> RowShape:
    key, value = layer.keys, layer.values
    if key.dtype not in DTYPES or value.dtype != key.dtype:
        raise Unsupported(f"its keys are {key.dtype}, its values {value.dtype}")
    if key.ndim != 4 or key.shape[:3] != value.shape[:3] or key.shape[2] != _PROBE_TOKENS:
        raise Unsupported(f"its keys are {list(key.shape)}, its values {list(value.shape)}")
    window = getattr(layer, "sliding_window", None) or 0
    heads, dims = key.shape[1], (key.shape[3], value.shape[3])
    return RowShape(heads, *dims, key.dtype, key.device, window)


def _states_of(layer: Any) -> StateShape:
    tensors = []
    for index in range(layer.number_of_states):
        for kind in ("conv_states", "recurrent_states"):
            tensor = getattr(layer, kind)[index]
            if tensor is not None:
                shape = tuple(tensor.shape)
                tensors.append(StateTensor(kind, index, shape, tensor.dtype, tensor.device))
    if not tensors:
        raise Unsupported("a linear-attention layer keeps no states")
    previous = tuple(bool(layer.has_previous_state[i]) for i in range(layer.number_of_states))
    return StateShape(tuple(tensors), previous)
