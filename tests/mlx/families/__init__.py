"""A small model of every family that mlx-lm serves: a file of mlx_lm.models each, and a few of
their variants.

`FAMILIES` says a configuration as a config.json would; `CANNOT` why a file of mlx_lm.models has
none. Models have float32 weights, the tokenizer of tiny_model, whose words are their vocabulary,
and windows of 128 tokens at most.
"""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
from tiny_model import write_tokenizer

from . import attention, experts, latent, nested, recurrent, windows
from .unserved import CANNOT
from .weights import build, weights

__all__ = ["CANNOT", "FAMILIES", "build", "write_config", "write_family"]

_TABLES = (attention, experts, latent, windows, recurrent, nested)

FAMILIES: dict[str, dict[str, Any]] = {
    name: config for table in _TABLES for name, config in table.FAMILIES.items()
}


def write_family(directory: Path, name: str) -> Path:
    """Writes a checkpoint into `directory`, the same bytes for the same name."""
    return write_config(directory, FAMILIES[name])


def write_config(directory: Path, config: dict[str, Any]) -> Path:
    """Writes a checkpoint of any configuration."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    path = str(directory / "model.safetensors")
    mx.save_safetensors(path, weights(config), {"format": "mlx"})
    write_tokenizer(directory)
    return directory
