"""What the small models share, so that a table says only what makes a family that family."""

from typing import Any

from tiny_model import WORDS

HEAD_DIM = 32
WINDOW = 128
"""Of sliding layers: a conversation of the tests is three times as long."""

_SHAPE = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": HEAD_DIM,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}

YARN = {
    "type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 1024,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}


def bare(model_type: str, **own: Any) -> dict[str, Any]:
    """A configuration that calls everything by names of its own."""
    return {"model_type": model_type, "vocab_size": WORDS, "eos_token_id": WORDS, **own}


def small(model_type: str, **own: Any) -> dict[str, Any]:
    """A configuration with the usual names; a name given as None is not in it."""
    said = bare(model_type, **{**_SHAPE, **own})
    return {name: value for name, value in said.items() if value is not None}


def layers(*kinds: str) -> dict[str, Any]:
    """`layer_types` of these kinds, "_attention" left out."""
    types = [f"{kind}_attention" for kind in kinds]
    return {"layer_types": types, "num_hidden_layers": len(types)}


ONE_IN_TWO = layers("sliding", "full")
ONE_IN_FOUR = layers("sliding", "sliding", "sliding", "full")
