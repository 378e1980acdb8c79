"""A small model of every family that mlx-lm serves: a file of mlx_lm.models each, and a few of
their variants.

`FAMILIES` says a configuration as a config.json would; `CANNOT` why a file of mlx_lm.models has
none. Models have float32 weights, the tokenizer of tiny_model, whose words are their vocabulary,
and windows of 128 tokens at most.
"""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache
from tiny_model import TEMPLATE_WITH_ENDS, write_tokenizer

from . import attention, experts, latent, nested, recurrent, windows
from .draw import build, weights
from .unserved import CANNOT

__all__ = [
    *("AS_CACHED", "CANNOT", "EVERY_RUN", "FAMILIES", "NOT_HELD", "PLAIN_WRONG"),
    *("build", "cache_classes", "selected", "write_config", "write_family"),
]

_TABLES = (attention, experts, latent, windows, recurrent, nested)

FAMILIES: dict[str, dict[str, Any]] = {
    name: config for table in _TABLES for name, config in table.FAMILIES.items()
}

EVERY_RUN = (
    *("llama", "llama_rope_parameters", "qwen3", "qwen3_moe", "deepseek_v3", "deepseek_v32"),
    *("gemma3_text", "gpt_oss", "llama4", "qwen3_next", "mamba2", "falcon_h1", "lfm2"),
)
"""Every cache class, and the families that are asked for most."""

PLAIN_WRONG = {
    "llama4": "mlx_lm.server trims a ChunkedKVCache to a prefix that its chunk no longer holds",
}
"""Why mlx_lm.server answers otherwise from its cache than without one."""

AS_CACHED = {
    "phi3small": "its sparse layers add a mask of truths to their scores instead of masking, so a "
    "token sees later ones of its block if they are computed with it",
    "plamo3": "its mask has a window of one token more than its cache keeps of what was computed",
}
"""Why an answer is another one when the cache ended at another token, whoever holds it."""

NOT_HELD = {"deepseek_v41": "LayerCache is a class of its own file"}
"""Why prefixd leaves the caches of a family to the engine."""


def selected() -> list[str]:
    """The families to test: with PREFIXD_ALL_FAMILIES=1 all, with PREFIXD_FAMILIES=a,b those."""
    if names := os.environ.get("PREFIXD_FAMILIES"):
        return names.split(",")
    return list(FAMILIES if os.environ.get("PREFIXD_ALL_FAMILIES") == "1" else EVERY_RUN)


def cache_classes(name: str) -> str:
    """As mlx-lm makes them for this family, with how many of each."""
    counts = Counter(map(_class_of, make_prompt_cache(build(FAMILIES[name]))))
    return ", ".join(f"{count} {kind}" for kind, count in counts.items())


def _class_of(cache: Any) -> str:
    inside = getattr(cache, "caches", None)
    own = type(cache).__name__
    return own if inside is None else f"{own}({', '.join(map(_class_of, inside))})"


def write_family(directory: Path, name: str) -> Path:
    """Writes a checkpoint into `directory`, the same bytes for the same name."""
    return write_config(directory, FAMILIES[name])


def write_config(directory: Path, config: dict[str, Any]) -> Path:
    """Writes a checkpoint of any configuration."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    path = str(directory / "model.safetensors")
    mx.save_safetensors(path, weights(config), {"format": "mlx"})
    write_tokenizer(directory, TEMPLATE_WITH_ENDS)
    return directory
