"""Small models with random weights whose layers keep windows or states, in files for vLLM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import models
import torch

WINDOW = 256
LAYERS = ["sliding_attention", "sliding_attention", "full_attention"] * 2


def gemma3(folder: Path, window: int = WINDOW) -> Path:
    return models.write_model(folder, "gemma3", sliding_window=window, layer_types=LAYERS)


def lfm2(folder: Path) -> Path:
    """Two convolutions, which keep states, and two layers of full attention."""
    heads = {"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 4}
    models.write_model(folder, "lfm2", **heads)
    _say(folder, block_dim=256, block_ff_dim=256, block_auto_adjust_ff_dim=False)
    _say(folder, block_multiple_of=64, block_ffn_dim_multiplier=1.0, block_norm_eps=1e-5)
    _say(folder, conv_dim=256, conv_dim_out=256, num_heads=4)
    return folder


def qwen3_next(folder: Path) -> Path:
    """Three layers of the gated delta rule, and one of full attention."""
    dims = {"linear_key_head_dim": 128, "linear_value_head_dim": 128}
    return models.write_model(folder, "qwen3_next", **dims)


def runs_the_delta_rule() -> bool:
    """True if vLLM's CPU build has kernels for the gated delta rule on this machine."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def _say(folder: Path, **fields: Any) -> None:
    """Adds fields that vLLM reads and transformers leaves out."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
