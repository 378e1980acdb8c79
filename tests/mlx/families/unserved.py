"""Model files of mlx-lm that its own server cannot serve here."""

from typing import Any

from .attention import NO_BIAS
from .shape import ONE_IN_TWO, WINDOW, bare, small

CANNOT = {
    "bitnet": "needs a Metal device: its linear layers are a Metal kernel",
    "muse_spark": "needs a Metal device: it norms and rotates queries and keys in a Metal kernel",
    "olmo": "needs the package ai2-olmo: its file ends the process where that is missing",
}

CONFIGS: dict[str, dict[str, Any]] = {
    "bitnet": small("bitnet", **NO_BIAS, tie_word_embeddings=True),
    "muse_spark": {
        "model_type": "muse_spark",
        "audio_config": {"out_hidden_size": 128},
        "text_config": small(
            "muse_spark_text",
            **ONE_IN_TWO,
            layer_rope_theta=[10000.0, 0.0],
            post_norm_eps=1e-5,
            sliding_window=WINDOW,
            final_logit_softcapping=20.0,
            output_multiplier=0.2,
            num_local_experts=4,
            num_experts_per_tok=2,
            moe_hidden_size=64,
            moe_intermediate_size=64,
            rope_theta=None,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        ),
    },
    "olmo": bare(
        "olmo", d_model=128, n_layers=2, mlp_hidden_size=256, n_heads=4, embedding_size=256
    ),
}
