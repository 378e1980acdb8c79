"""Language models inside of models that see images; what they are is in their `text_config`."""

from typing import Any

from .attention import NO_BIAS
from .experts import ROUTED
from .recurrent import LFM2, QWEN3_5
from .shape import ONE_IN_TWO, WINDOW, YARN, small

def _hadamard(path: str, block: int) -> dict[str, Any]:
    return {"path": path, "block": block, "embedding": False, "dtype": "float16"}


_QWEN2 = small("qwen2", rope_scaling={"type": "mrope", "mrope_section": [4, 6, 6]})

FAMILIES = {
    "lfm2-vl": {"model_type": "lfm2-vl", "text_config": LFM2},
    "mistral3": {
        "model_type": "mistral3",
        "text_config": small(
            "ministral3",
            **ONE_IN_TWO,
            sliding_window=WINDOW,
            rope_theta=None,
            rope_parameters={**YARN, "rope_theta": 10000.0, "llama_4_scaling_beta": 0.1},
        ),
    },
    "pixtral": {"model_type": "pixtral", "text_config": small("llama", **NO_BIAS)},
    "prism_hadamard_qwen35": {
        "model_type": "prism_hadamard_qwen35",
        "text_config": {**QWEN3_5, "hidden_size": 512},
        "schema_version": 1,
        "tensor_namespace": "mlx-lm-text",
        "gdn_activation_layout": "grouped",
        "quantization": {"bits": 2, "group_size": 128, "mode": "affine"},
        "modules": [
            _hadamard("model.layers.0.mlp.gate_proj", block=512),
            _hadamard("model.layers.3.mlp.gate_proj", block=0),
        ],
    },
    "qwen2_vl": {**_QWEN2, "model_type": "qwen2_vl"},
    "qwen2_5_vl": {"model_type": "qwen2_5_vl", "text_config": _QWEN2},
    "qwen3_vl": {"model_type": "qwen3_vl", "text_config": small("qwen3_vl_text")},
    "qwen3_vl_moe": {
        "model_type": "qwen3_vl_moe",
        "text_config": small(
            "qwen3_vl_moe_text",
            **ROUTED,
            decoder_sparse_step=1,
            mlp_only_layers=[],
            norm_topk_prob=True,
        ),
    },
}
