"""GGUF files with a vocabulary of 256 bytes: the shipped model, as llama.cpp's converter makes it of a
Llama checkpoint, and tiny models with random weights. Usage: make_gguf.py MODEL_FOLDER FILE"""

import json
import struct
import sys
from pathlib import Path

import gguf
import numpy as np

TEMPLATE = """
{%- if tools %}tools:{% for t in tools %} {{ t | tojson }}{% endfor %}{{ '\\n' }}{% endif %}
{%- for m in messages %}
{{- m['role'] + ': ' + (m['content'] or '') }}
{%- for c in m['tool_calls'] or [] %}
{{- '{"name": "' + c['function']['name'] + '", "arguments": ' }}
{{- c['function']['arguments'] | tojson + '}' }}
{%- endfor %}{{ '\\n' }}{% endfor %}
{%- if add_generation_prompt %}assistant: {% endif %}
"""
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def read_bf16(path: Path) -> dict[str, np.ndarray]:
    raw = path.read_bytes()
    (length,) = struct.unpack_from("<Q", raw)
    tensors = {}
    for name, entry in json.loads(raw[8 : 8 + length]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        bits = np.frombuffer(raw[begin:end], dtype=np.uint16).astype(np.uint32) << 16
        tensors[name] = bits.view(np.float32).reshape(entry["shape"])
    return tensors


def byte_tokens() -> list[str]:
    """One character for each byte, as byte-level BPE writes them."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows in the order of llama.cpp's rotary embedding, which turns neighbours."""
    shape = weight.shape
    return weight.reshape(heads, 2, shape[0] // heads // 2, shape[1]).swapaxes(1, 2).reshape(shape)


def add_vocabulary(out: gguf.GGUFWriter, count: int = 256) -> None:
    tokens = byte_tokens() + [f"<{number}>" for number in range(256, count)]
    out.add_vocab_size(len(tokens))
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("gpt-2")
    out.add_token_list(tokens)
    out.add_token_types([gguf.TokenType.NORMAL] * len(tokens))
    out.add_token_merges([f"{tokens[0]} {tokens[1]}"])  # of two bytes that no text has
    out.add_add_bos_token(False)
    out.add_bos_token_id(0)
    out.add_eos_token_id(0)
    out.add_chat_template(TEMPLATE)


def finish(out: gguf.GGUFWriter) -> None:
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def add_longrope(out: gguf.GGUFWriter, original_context: int, head_dim: int) -> None:
    """Other factors for contexts that are longer than `original_context`."""
    out.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
    out.add_rope_scaling_orig_ctx_len(original_context)
    out.add_rope_scaling_attn_factors(1.0)
    for name, factor in {"long": 4.0, "short": 1.0}.items():
        factors = np.full(head_dim // 2, factor, np.float32)
        out.add_tensor(f"rope_factors_{name}.weight", factors)


def write(model: Path, to: Path, name: str = "bible", original_context: int = 0) -> None:
    """`original_context`: as of a model with longrope; 0: it has none."""
    config = json.loads((model / "config.json").read_text())
    out = gguf.GGUFWriter(str(to), "llama")
    out.add_name(name)
    out.add_block_count(config["num_hidden_layers"])
    out.add_context_length(config["max_position_embeddings"])
    out.add_embedding_length(config["hidden_size"])
    out.add_feed_forward_length(config["intermediate_size"])
    out.add_head_count(config["num_attention_heads"])
    out.add_head_count_kv(config["num_key_value_heads"])
    out.add_key_length(config["head_dim"])
    out.add_value_length(config["head_dim"])
    out.add_rope_dimension_count(config["head_dim"])
    out.add_layer_norm_rms_eps(config["rms_norm_eps"])
    out.add_rope_freq_base(config["rope_theta"])
    add_vocabulary(out)
    if original_context:
        add_longrope(out, original_context, config["head_dim"])
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for path, weight in read_bf16(model / "model.safetensors").items():
        if path == "model.norm.weight":
            out.add_tensor("output_norm.weight", weight)
        elif path == "model.embed_tokens.weight":
            out.add_tensor("token_embd.weight", weight.astype(np.float16))
        else:
            _, _, layer, *rest = path.split(".")
            short = NAMES[".".join(rest[:-1])]
            if short in heads:
                weight = interleaved(weight, heads[short])
            stored = weight if weight.ndim == 1 else weight.astype(np.float16)
            out.add_tensor(f"blk.{layer}.{short}.weight", np.ascontiguousarray(stored))
    finish(out)


class Tiny:
    """A model of four layers with random weights."""

    EMBEDDING, FORWARD, LAYERS, HEADS, KV_HEADS = 64, 128, 4, 4, 2

    def __init__(
        self, to: Path, architecture: str, dim: int, kv_heads: list[int], vocabulary: int = 256
    ):
        self._random = np.random.default_rng(7)
        self._dim = dim
        self.out = out = gguf.GGUFWriter(str(to), architecture)
        out.add_name(f"tiny-{architecture}")
        out.add_block_count(self.LAYERS)
        out.add_context_length(8192)
        out.add_embedding_length(self.EMBEDDING)
        out.add_feed_forward_length(self.FORWARD)
        out.add_head_count(self.HEADS)
        out.add_head_count_kv(kv_heads if len(set(kv_heads)) > 1 else kv_heads[0])
        out.add_key_length(dim)
        out.add_value_length(dim)
        out.add_layer_norm_rms_eps(1e-5)
        out.add_rope_freq_base(10000.0)
        add_vocabulary(out, vocabulary)
        self.random("token_embd", vocabulary, self.EMBEDDING)

    def random(self, name: str, *shape: int) -> None:
        weight = self._random.standard_normal(shape) / np.sqrt(shape[-1])
        self.out.add_tensor(f"{name}.weight", weight.astype(np.float32))

    def ones(self, name: str, count: int) -> None:
        self.out.add_tensor(f"{name}.weight", np.ones(count, np.float32))

    def attention(self, layer: str) -> None:
        query, key = self.HEADS * self._dim, self.KV_HEADS * self._dim
        self.random(f"{layer}.attn_q", query, self.EMBEDDING)
        self.random(f"{layer}.attn_k", key, self.EMBEDDING)
        self.random(f"{layer}.attn_v", key, self.EMBEDDING)
        self.random(f"{layer}.attn_output", self.EMBEDDING, query)

    def forward(self, layer: str) -> None:
        self.random(f"{layer}.ffn_gate", self.FORWARD, self.EMBEDDING)
        self.random(f"{layer}.ffn_up", self.FORWARD, self.EMBEDDING)
        self.random(f"{layer}.ffn_down", self.EMBEDDING, self.FORWARD)


def write_wide(to: Path, vocabulary: int) -> None:
    """The logits of a token are far larger than its K and V."""
    model = Tiny(to, "llama", 32, [Tiny.KV_HEADS], vocabulary)
    model.out.add_rope_dimension_count(32)
    model.ones("output_norm", Tiny.EMBEDDING)
    for number in range(Tiny.LAYERS):
        layer = f"blk.{number}"
        model.ones(f"{layer}.attn_norm", Tiny.EMBEDDING)
        model.ones(f"{layer}.ffn_norm", Tiny.EMBEDDING)
        model.attention(layer)
        model.forward(layer)
    finish(model.out)


def write_sliding(to: Path, window: int = 128) -> None:
    """Every second layer attends to a window."""
    model = Tiny(to, "gemma2", 32, [Tiny.KV_HEADS])
    model.out.add_sliding_window(window)
    model.out.add_attn_logit_softcapping(50.0)
    model.out.add_final_logit_softcapping(30.0)
    model.ones("output_norm", Tiny.EMBEDDING)
    for number in range(Tiny.LAYERS):
        layer = f"blk.{number}"
        for norm in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
            model.ones(f"{layer}.{norm}", Tiny.EMBEDDING)
        model.attention(layer)
        model.forward(layer)
    finish(model.out)


def write_hybrid(to: Path) -> None:
    """Every second layer is a short convolution, whose state is recurrent."""
    model = Tiny(to, "lfm2", 16, [0, Tiny.KV_HEADS, 0, Tiny.KV_HEADS])
    model.out.add_shortconv_l_cache(3)
    model.ones("token_embd_norm", Tiny.EMBEDDING)
    for number in range(Tiny.LAYERS):
        layer = f"blk.{number}"
        model.ones(f"{layer}.attn_norm", Tiny.EMBEDDING)
        model.ones(f"{layer}.ffn_norm", Tiny.EMBEDDING)
        model.forward(layer)
        if number % 2 == 1:
            model.ones(f"{layer}.attn_q_norm", 16)
            model.ones(f"{layer}.attn_k_norm", 16)
            model.attention(layer)
        else:
            model.random(f"{layer}.shortconv.conv", Tiny.EMBEDDING, 3)
            model.random(f"{layer}.shortconv.in_proj", 3 * Tiny.EMBEDDING, Tiny.EMBEDDING)
            model.random(f"{layer}.shortconv.out_proj", Tiny.EMBEDDING, Tiny.EMBEDDING)
    finish(model.out)


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
