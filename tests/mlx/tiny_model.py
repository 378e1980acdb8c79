"""A llama with generated weights and a tokenizer of its own: a checkpoint that mlx_lm.load() reads.

One word is one token ("w17" is token 17), so that a prompt of 53 tokens is 53 words, and the text
that a server answers says which tokens it generated. The end-of-sequence token lies outside the
model's vocabulary: it is never generated, and an answer is as long as it was asked to be.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models import llama
from tokenizers import Tokenizer, models, pre_tokenizers

WORDS = 256
TEMPLATE = (
    "{% for m in messages %}"
    "{% if m['role'] == 'system' %}w250 {% elif m['role'] == 'user' %}w251 {% else %}w252 {% endif %}"
    "{{ m['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}w252{% endif %}"
)
TEMPLATE_WITH_ENDS = TEMPLATE.replace("{{ m['content'] }} ", "{{ m['content'] }} w253 ")
"""A message ends with a token of its own. mlx_lm.server finds the end of a system prompt by that,
and saves what it has there."""


@dataclass(frozen=True)
class Geometry:
    """What decides the bytes of a token: 2 * layers * kv_heads * row bytes of head_dim."""

    layers: int = 4
    kv_heads: int = 2
    query_heads: int = 4
    head_dim: int = 64
    hidden: int = 128
    seed: int = 7
    dtype: str = "bfloat16"
    window: int = 0  # of every other layer; 0: all attend on everything


QWEN3_06B = Geometry(layers=28, kv_heads=8, query_heads=8, head_dim=128, hidden=64)
"""The keys and values of Qwen3-0.6B (the seed's model), around far smaller weights."""


def config(geometry: Geometry) -> dict:
    kinds = ["sliding_attention" if geometry.window else "full_attention", "full_attention"]
    return {
        "layer_types": [kinds[layer % 2] for layer in range(geometry.layers)],
        "sliding_window": geometry.window or None,
        "model_type": "llama",
        "hidden_size": geometry.hidden,
        "num_hidden_layers": geometry.layers,
        "intermediate_size": 2 * geometry.hidden,
        "num_attention_heads": geometry.query_heads,
        "num_key_value_heads": geometry.kv_heads,
        "head_dim": geometry.head_dim,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "vocab_size": WORDS,
        "tie_word_embeddings": False,
        "eos_token_id": WORDS,
    }


def _weights(geometry: Geometry) -> dict[str, mx.array]:
    """Random ones, with attention loud enough that what is cached decides what is generated."""
    model = llama.Model(llama.ModelArgs.from_dict(config(geometry)))
    key = mx.random.key(geometry.seed)
    weights = {}
    for name, value in tree_flatten(model.parameters()):
        key, mine = mx.random.split(key)
        if value.ndim == 1:
            weights[name] = mx.ones(value.shape)
            continue
        scale = value.shape[-1] ** -0.5
        if "q_proj" in name or "k_proj" in name:
            scale *= 1.5
        weights[name] = scale * mx.random.normal(value.shape, key=mine)
    dtype = getattr(mx, geometry.dtype)
    return {name: value.astype(dtype) for name, value in weights.items()}


def write_tokenizer(directory: Path, template: str = TEMPLATE) -> None:
    vocabulary = {f"w{i}": i for i in range(WORDS)}
    vocabulary["<eos>"] = WORDS
    vocabulary["<unk>"] = WORDS + 1
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<eos>"])
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                # Without it transformers takes the tokenizer that it has for some model types.
                "auto_map": {"AutoTokenizer": [None, "PreTrainedTokenizerFast"]},
                "eos_token": "<eos>",
                "unk_token": "<unk>",
                "chat_template": template,
            }
        )
    )


def write_checkpoint(directory: Path, geometry: Geometry = Geometry()) -> Path:
    """Writes a checkpoint into `directory`, the same bytes for the same geometry."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config(geometry)))
    mx.save_safetensors(str(directory / "model.safetensors"), _weights(geometry), {"format": "mlx"})
    write_tokenizer(directory)
    return directory


def words(tokens: list[int]) -> str:
    return " ".join(f"w{t}" for t in tokens)


def tokens(text: str) -> list[int]:
    return [int(word[1:]) for word in text.split()]


if __name__ == "__main__":  # client/examples/PYTHON.md: tiny_model.py DIRECTORY
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(f"usage: {sys.argv[0]} DIRECTORY: writes a checkpoint of random weights there")
    print(write_checkpoint(Path(sys.argv[1])))
