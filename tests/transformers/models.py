"""Small models with random weights, written by save_pretrained() as any checkpoint is.

Attention is loud enough that what is cached decides what is generated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

WORDS = 256
WINDOW = 128
ORIGINAL = 150  # tokens up to which "longrope" and "dynamic" turn keys as they were trained
_COMMON = {
    "vocab_size": WORDS,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
_KINDS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama": (LlamaForCausalLM, LlamaConfig, {}),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {}),
    "longrope": (
        LlamaForCausalLM,
        LlamaConfig,
        {
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "original_max_position_embeddings": ORIGINAL,
                "short_factor": [1.0] * 32,
                "long_factor": [4.0] * 32,
            },
        },
    ),
    "dynamic": (
        LlamaForCausalLM,
        LlamaConfig,
        {
            "max_position_embeddings": ORIGINAL + 1,
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
        },
    ),
    "gemma3": (
        Gemma3ForCausalLM,
        Gemma3TextConfig,
        {
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
            "num_hidden_layers": 6,
            "query_pre_attn_scalar": 64,
        },
    ),
    "gemma2": (
        Gemma2ForCausalLM,
        Gemma2Config,
        {
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "query_pre_attn_scalar": 64,
            "attn_logit_softcapping": 5.0,
        },
    ),
    "qwen3_next": (
        Qwen3NextForCausalLM,
        Qwen3NextConfig,
        {
            "layer_types": ["linear_attention"] * 3 + ["full_attention"],
            "linear_key_head_dim": 32,
            "linear_value_head_dim": 32,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
            "shared_expert_intermediate_size": 64,
        },
    ),
    "lfm2": (
        Lfm2ForCausalLM,
        Lfm2Config,
        {"layer_types": ["conv", "full_attention"] * 2, "conv_L_cache": 3},
    ),
}
NAMES = ("llama", "qwen3", "gemma3", "qwen3_next", "lfm2")


def write_model(folder: Path, name: str, seed: int = 7, **changed: Any) -> Path:
    """Writes the model into `folder`, the same bytes for the same seed. `changed`: fields of its
    configuration."""
    kind, config, more = _KINDS[name]
    torch.manual_seed(seed)
    model = kind(config(**{**_COMMON, **more, **changed}))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter.ndim < 2:
                continue
            scale = parameter.shape[-1] ** -0.5
            if "q_proj" in parameter_name or "k_proj" in parameter_name:
                scale *= 1.5
            parameter.normal_(0, scale, generator=generator)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    """One word is one token: "w17" is token 17."""
    words = Tokenizer(WordLevel({f"w{at}": at for at in range(WORDS)}, unk_token="w0"))
    words.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)


def words(ids: list[int]) -> str:
    return " ".join(f"w{at}" for at in ids)


def load(folder: Path, dtype: torch.dtype = torch.float32, **more: Any) -> Any:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **more)
    return model.eval()


def prompt(length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, WORDS, (length,), generator=generator).tolist()


def generate(model: Any, ids: list[int], count: int, cache: Any = None, **more: Any) -> Any:
    """The greedy answer to one prompt, as generate() gives it."""
    return model.generate(
        torch.tensor([ids], device=model.device),
        past_key_values=cache,
        max_new_tokens=count,
        min_new_tokens=count,
        do_sample=False,
        return_dict_in_generate=True,
        **more,
    )


def answer(model: Any, ids: list[int], count: int) -> list[int]:
    """The whole sequence, without prefixd."""
    return generate(model, ids, count).sequences[0].tolist()
