"""Weights of a family: drawn, the same bytes every time, and such that what is cached decides what
is generated."""

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.utils import _get_classes
from tiny_model import WORDS

_SEED = 13
_EMBEDDINGS = ("embed", "wte", "embd")
_EMBEDDED = 0.2
"""How loud a token is by itself, next to what the layers add to it."""
_SHARP = 2.0
"""How loud queries and keys are: attention picks a few of hundreds of tokens."""
_QUERIES_AND_KEYS = (
    *("q_proj", "k_proj", "q_b_proj", "c_q", "c_k", "attn_query", "attn_key"),
    *("qkv", "query_key_value", "c_attn", "W_pack"),
    *("q_norm.weight", "k_norm.weight", "head_gain", "attn_gain"),
)
_DECAYS = ("A_log", "w_lora.lora.2.bias")
_SLOWER = 3.0
"""How much less a state decays, as a logarithm: it holds what was said a turn ago."""


def build(config: dict[str, Any]) -> nn.Module:
    """The model that mlx_lm.utils.load makes of this configuration."""
    mx.random.seed(_SEED)  # for what the constructors draw
    model_class, arguments = _get_classes(config)
    return model_class(arguments.from_dict(config))


def weights(config: dict[str, Any]) -> dict[str, mx.array]:
    """Vectors are much as the constructors made them, matrices are drawn."""
    key = mx.random.key(_SEED)
    drawn = {}
    for name, made in sorted(tree_flatten(build(config).parameters())):
        key, mine = mx.random.split(key)
        drawn[name] = _draw(name, made, mine)
    return drawn


def _draw(name: str, made: mx.array, key: mx.array) -> mx.array:
    if made.dtype == mx.uint32:  # packed
        return mx.random.randint(0, 1 << 31, made.shape, mx.int64, key=key).astype(made.dtype)
    if name.endswith((".scales", ".biases")):
        return (0.05 * mx.random.normal(made.shape, key=key)).astype(made.dtype)
    if not mx.issubdtype(made.dtype, mx.floating):
        return made
    if name.endswith(_DECAYS):
        return made - _SLOWER
    loud = _SHARP if any(part in name for part in _QUERIES_AND_KEYS) else 1.0
    if made.ndim < 2:
        return loud * made
    if "norm" in name.split(".")[-2:][0]:  # of every head, where others have a vector
        return loud * mx.ones_like(made) if name.endswith("weight") else made
    drawn = loud * made.shape[-1] ** -0.5 * mx.random.normal(made.shape, key=key)
    embedded = any(part in name for part in _EMBEDDINGS)
    if embedded:
        drawn = _EMBEDDED * drawn
    if made.shape[0] > WORDS and (embedded or "head" in name):
        drawn[WORDS:] = 0  # what is no word is never the likeliest token
    return drawn
