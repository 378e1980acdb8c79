"""Defaults of known model families for fields that are absent, and the scalings' parameters.

A default is listed if the engines that have the family agree on it, or if only one of them has one.
None = they disagree, so a configuration without the field has a Rope of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Sliding:
    """How sliding layers turn if a configuration does not say it for each kind of layers."""

    theta: float | None  # None = as the full layers
    scaled: bool = False  # rope_scaling applies, as to the full layers


@dataclass(frozen=True)
class Family:
    theta: float | None = 10000.0
    share: float | None = 1.0  # share of a head's channels that turn
    interleaved: bool = False
    sliding: Sliding | None = None
    parameters: Mapping[str, Any] | None = None  # default of rope_parameters
    nope_interval: int = 0  # every nth layer does not turn; 0 = all do
    head_dim: int | None = None
    yarn_is_longrope: bool = False
    known: bool = True


UNKNOWN = Family(theta=None, known=False)

_LLAMA = Family()
_NO_THETA = Family(theta=None)
_MLA = Family(interleaved=True)
_GEMMA = Family(head_dim=256)
_GEMMA3 = Family(theta=1e6, sliding=Sliding(1e4), head_dim=256)
_GEMMA4 = Family(
    parameters={
        "full_attention": {
            "rope_type": "proportional",
            "partial_rotary_factor": 0.25,
            "rope_theta": 1e6,
        },
        "sliding_attention": {"rope_theta": 1e4},
    },
)
_MODERNBERT = Family(theta=160_000.0, sliding=Sliding(1e4, scaled=True))
_ERNIE = Family(theta=500_000.0, interleaved=True)
_QWEN35 = Family(theta=None, share=0.25)

# By model_type.
FAMILIES: Mapping[str, Family] = {
    **dict.fromkeys(("llama", "mistral", "ministral", "ministral3"), _LLAMA),
    **dict.fromkeys(("qwen3", "qwen3_moe", "olmo", "olmo2", "olmoe", "exaone4"), _LLAMA),
    **dict.fromkeys(("granite", "granitemoe", "seed_oss", "dots1", "hunyuan_v1_dense"), _LLAMA),
    "falcon": _LLAMA,
    **dict.fromkeys(("internlm2", "internlm3"), _LLAMA),
    **dict.fromkeys(("qwen2", "qwen2_moe", "starcoder2", "falcon_h1", "phimoe"), _NO_THETA),
    **dict.fromkeys(("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"), _NO_THETA),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "kimi_k2"), _MLA),
    **dict.fromkeys(("gptj", "codegen"), _MLA),
    **dict.fromkeys(("gemma", "gemma2"), _GEMMA),
    **dict.fromkeys(("gemma3", "gemma3_text", "gemma3n", "gemma3n_text"), _GEMMA3),
    **dict.fromkeys(("gemma4", "gemma4_text"), _GEMMA4),
    **dict.fromkeys(("modernbert", "modernbert-decoder"), _MODERNBERT),
    **dict.fromkeys(("ernie4_5", "ernie4_5_moe"), _ERNIE),
    **dict.fromkeys(("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"), _QWEN35),
    **dict.fromkeys(("lfm2", "lfm2_moe", "mixtral"), Family(theta=1e6)),
    **dict.fromkeys(("cohere", "cohere2"), Family(theta=None, interleaved=True)),
    **dict.fromkeys(("glm", "glm4"), Family(share=0.5, interleaved=True)),
    **dict.fromkeys(("glm4_moe", "nemotron", "persimmon"), Family(share=0.5)),
    **dict.fromkeys(("gpt_neox", "stablelm", "qwen3_next"), Family(share=0.25)),
    "glm4_moe_lite": Family(theta=None, interleaved=True),
    "gpt_oss": Family(theta=150_000.0),
    "helium": Family(theta=100_000.0, interleaved=True),
    "llama4_text": Family(theta=500_000.0, interleaved=True, nope_interval=4),
    "longcat_flash": Family(theta=1e7, interleaved=True),
    "minimax_m2": Family(theta=5e6),
    "olmo3": Family(theta=500_000.0, sliding=Sliding(None)),
    "phi": Family(share=None),
    "phi3": Family(yarn_is_longrope=True),
    "qwen3_vl_text": Family(theta=500_000.0),
    "smollm3": Family(theta=None, nope_interval=4),
}

# Positions reach the keys of these families in another way, or not at all.
NO_ROPE = frozenset(
    ("bloom", "falcon_mamba", "gpt2", "gpt_bigcode", "gpt_neo", "jamba", "mamba", "mamba2")
    + ("nemotron_h", "opt", "rwkv5", "rwkv6", "rwkv7")
)

ORIGINAL, MOST = "original_max_position_embeddings", "max_position_embeddings"


@dataclass(frozen=True)
class Scaling:
    """The order of a scaling's parameters: `numbers`, each with its default (None: engines
    disagree); then `lists`, each but the last behind its length; then `last`, if the configuration
    has it."""

    numbers: tuple[tuple[str, float | None], ...] = ()
    lists: tuple[str, ...] = ()
    last: str | None = None


# By rope_type. client/worker/cache_space.cc has "linear" and "llama3" in the same order.
SCALINGS: Mapping[str, Scaling] = {
    "": Scaling(),
    "linear": Scaling((("factor", None),)),
    "llama3": Scaling(
        (("factor", None), ("low_freq_factor", 1), ("high_freq_factor", 4), (ORIGINAL, None))
    ),
    "dynamic": Scaling((("factor", None), (MOST, None))),
    "yarn": Scaling(
        (("factor", None), (ORIGINAL, None), ("beta_fast", 32), ("beta_slow", 1))
        + (("mscale", None), ("mscale_all_dim", 0)),
        last="attention_factor",
    ),
    "longrope": Scaling(((ORIGINAL, None), (MOST, None)), lists=("short_factor", "long_factor")),
    "mrope": Scaling(lists=("mrope_section",)),
    "proportional": Scaling((("factor", 1), ("partial_rotary_factor", 1))),
}
TYPE_NAMES = {"default": "", "su": "longrope"}  # other names of rope types
