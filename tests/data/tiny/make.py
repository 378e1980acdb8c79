#!/usr/bin/env python3
"""Makes the small checkpoints of this folder: one for each model family the worker decodes, with seeded random weights.

  make.py weights           writes NAME/config.json and NAME/model.safetensors (numpy alone)
  make.py golden            writes NAME/golden_logits_f32.npy: what mlx-lm computes from them in float32
                            (a Python with mlx and mlx-lm: scripts/python-venv mlx FOLDER prints one)

The numbers are the same on every machine: NumPy's PCG64, rounded to bfloat16. Text of such models means nothing; it
depends on every token before it, and that is what the tests need.
"""
import json
import struct
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
GOLDEN_POSITIONS = [0, 1, 5, 63, 64, 65, 100, 126, 127, 128, 129, 131, 200, 255, 256, 299]
TOKENS = [(i * 7919 + (i * i) % 251) % 256 for i in range(300)]

COMMON = dict(vocab_size=256, hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2,
              head_dim=32, max_position_embeddings=4096, rms_norm_eps=1e-6, hidden_act="silu",
              tie_word_embeddings=True, torch_dtype="bfloat16")
CONFIGS = {
    "qwen2": COMMON | dict(model_type="qwen2", num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
                           rope_theta=1e6, use_sliding_window=False, sliding_window=4096),
    "qwen3": COMMON | dict(model_type="qwen3", num_hidden_layers=2, rope_theta=1e6, attention_bias=False),
    "llama3": COMMON | dict(model_type="llama", num_hidden_layers=2, rope_theta=500000.0, rms_norm_eps=1e-5,
                            rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                              original_max_position_embeddings=64)),
    "gemma3": COMMON | dict(model_type="gemma3_text", num_hidden_layers=6, num_attention_heads=2, num_key_value_heads=1,
                            hidden_activation="gelu_pytorch_tanh", rope_theta=1e6, rope_local_base_freq=10000.0,
                            query_pre_attn_scalar=24, sliding_window=128, sliding_window_pattern=6),
    "qwen3_next": COMMON | dict(model_type="qwen3_next", num_hidden_layers=4, num_attention_heads=2,
                                num_key_value_heads=1, rope_theta=1e6, partial_rotary_factor=0.25,
                                full_attention_interval=4, linear_num_key_heads=2, linear_num_value_heads=4,
                                linear_key_head_dim=16, linear_value_head_dim=16, linear_conv_kernel_dim=4,
                                num_experts=0, num_experts_per_tok=0, decoder_sparse_step=1, mlp_only_layers=[],
                                moe_intermediate_size=0, shared_expert_intermediate_size=0),
}
del CONFIGS["gemma3"]["hidden_act"]
# A family whose norms multiply with 1 + weight.
ZERO_CENTERED = ("gemma3", "qwen3_next")


def bfloat16_bits(values):
    """Round to nearest even."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def is_delta(config, layer):
    interval = config.get("full_attention_interval")
    return interval is not None and (layer + 1) % interval != 0


def shapes(config):
    """Every tensor of the checkpoint: name -> shape, in order."""
    hidden, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    family = config["model_type"]
    out = {"model.embed_tokens.weight": (config["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        norms = ["input_layernorm", "post_attention_layernorm"]
        if family == "gemma3_text":
            norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
        out |= {f"{layer}{norm}.weight": (hidden,) for norm in norms}
        out |= {f"{layer}mlp.gate_proj.weight": (inner, hidden), f"{layer}mlp.up_proj.weight": (inner, hidden),
                f"{layer}mlp.down_proj.weight": (hidden, inner)}
        if is_delta(config, i):
            heads, value_heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
            keys = heads * config["linear_key_head_dim"]
            values = value_heads * config["linear_value_head_dim"]
            at = layer + "linear_attn."
            out |= {at + "in_proj_qkvz.weight": (2 * keys + 2 * values, hidden),
                    at + "in_proj_ba.weight": (2 * value_heads, hidden),
                    at + "conv1d.weight": (2 * keys + values, 1, config["linear_conv_kernel_dim"]),
                    at + "A_log": (value_heads,), at + "dt_bias": (value_heads,),
                    at + "norm.weight": (config["linear_value_head_dim"],),
                    at + "out_proj.weight": (hidden, values)}
            continue
        at = layer + "self_attn."
        gated = 2 if family == "qwen3_next" else 1
        out |= {at + "q_proj.weight": (gated * q, hidden), at + "k_proj.weight": (kv, hidden),
                at + "v_proj.weight": (kv, hidden), at + "o_proj.weight": (hidden, q)}
        if family == "qwen2":
            out |= {at + "q_proj.bias": (q,), at + "k_proj.bias": (kv,), at + "v_proj.bias": (kv,)}
        if family in ("qwen3", "gemma3_text", "qwen3_next"):
            out |= {at + "q_norm.weight": (dim,), at + "k_norm.weight": (dim,)}
    return out


def random_tensor(rng, name, shape, zero_centered):
    if name.endswith("A_log"):
        return np.log(rng.uniform(0.02, 2.0, shape))
    if name.endswith("dt_bias"):
        return rng.uniform(-2.0, 1.0, shape)
    if name.endswith(".bias"):
        return rng.standard_normal(shape)
    if name.endswith("conv1d.weight"):
        return rng.standard_normal(shape) * 0.6
    if len(shape) == 1:  # a norm
        plain = not zero_centered or name.endswith("linear_attn.norm.weight")
        return (1.0 if plain else 0.0) + 0.25 * rng.standard_normal(shape)
    if "embed_tokens" in name:
        return rng.standard_normal(shape) * 0.5
    # Keeps a vector's variance; queries and keys somewhat larger, so that attention chooses.
    gain = 1.5 if ".q_proj." in name or ".k_proj." in name else 1.0
    return rng.standard_normal(shape) * gain / np.sqrt(shape[1])


def write_safetensors(path, tensors):
    header, at = {}, 0
    for name, bits in tensors.items():
        header[name] = dict(dtype="BF16", shape=list(bits.shape), data_offsets=[at, at + bits.nbytes])
        at += bits.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for bits in tensors.values():
            file.write(bits.tobytes())


def write_weights():
    for seed, (name, config) in enumerate(CONFIGS.items()):
        rng = np.random.Generator(np.random.PCG64(20261122 + seed))
        folder = HERE / name
        folder.mkdir(exist_ok=True)
        tensors = {tensor: bfloat16_bits(random_tensor(rng, tensor, shape, name in ZERO_CENTERED))
                   for tensor, shape in shapes(config).items()}
        write_safetensors(folder / "model.safetensors", tensors)
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        print(name, sum(bits.nbytes for bits in tensors.values()), "bytes")


def write_golden():
    import importlib

    import mlx.core as mx
    from mlx.utils import tree_unflatten

    for name, config in CONFIGS.items():
        module = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
        weights = {key: value.astype(mx.float32)
                   for key, value in mx.load(str(HERE / name / "model.safetensors")).items()}
        model = module.Model(module.ModelArgs.from_dict(config))
        if hasattr(model, "sanitize"):
            weights = model.sanitize(weights)
        if name == "qwen3_next":  # its sanitize does this only where there are experts
            for key, value in weights.items():
                if key.endswith("conv1d.weight"):
                    weights[key] = value.moveaxis(2, 1)
                elif key.endswith("norm.weight") and not key.endswith("linear_attn.norm.weight"):
                    weights[key] = value + 1.0
        model.load_weights(list(weights.items()), strict=True)
        model.eval()
        logits = np.array(model(mx.array([TOKENS])).astype(mx.float32))[0]
        golden = np.ascontiguousarray(logits[GOLDEN_POSITIONS])
        np.save(HERE / name / "golden_logits_f32.npy", golden)
        print(name, golden.shape, "largest", np.abs(golden).max(), "std", golden.std())


if __name__ == "__main__":
    commands = {"weights": write_weights, "golden": write_golden}
    if len(sys.argv) != 2 or sys.argv[1] not in commands:
        sys.exit(__doc__)
    commands[sys.argv[1]]()
