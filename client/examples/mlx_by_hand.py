"""The same with nothing but `prefixd`: an engine that owns its KV memory copies packed rows in and
out.

Usage: mlx_by_hand.py ADDRESS MODEL PROMPT      8 bits in groups of 64; run it twice
"""

import hashlib
import json
import sys
from pathlib import Path

import mlx.core as mx
import mlx_lm
import numpy as np
import prefixd
from mlx_lm.models.cache import QuantizedKVCache, make_prompt_cache

BITS, GROUP = 8, 64
address, path, prompt = sys.argv[1:]
model, tokenizer = mlx_lm.load(path)
config = (Path(path) / "config.json").read_bytes()

seen = make_prompt_cache(model)  # after one token: what a config.json leaves out
model(mx.array([[0]]), cache=seen)
_, heads, _, dim = seen[0].keys.shape
layers, dtype = len(seen), seen[0].keys.dtype

client = prefixd.connect(address, name="mlx_by_hand")
form = prefixd.mlx_affine(BITS, GROUP, str(dtype).removeprefix("mlx.core."))
space = client.open_space(
    model=Path(path).name,
    weights=hashlib.sha256(prefixd.digest_checkpoint(path) + config).digest(),
    tokenizer=prefixd.digest_file(Path(path) / "tokenizer.json"),
    rope=prefixd.Rope(theta=json.loads(config).get("rope_theta", 10000), rotary_dim=dim),
    layers=[prefixd.FullLayer(heads, dim, dim, [form])] * layers,
)


def to_numpy(x: mx.array) -> np.ndarray:
    """NumPy has no bfloat16: it travels as uint16."""
    return np.asarray(x.view(mx.uint16) if x.dtype == mx.bfloat16 else x)


def to_mlx(a: np.ndarray) -> mx.array:
    """Codes are uint32; scales and biases are of the model's type."""
    x = mx.array(a)
    return x if x.dtype in (mx.uint32, dtype) else x.view(dtype)


def warm(tokens: list[int]) -> tuple[list[QuantizedKVCache], int]:
    """Cache objects with the longest prefix that is here already in them, and its tokens."""
    caches = [QuantizedKVCache(group_size=GROUP, bits=BITS) for _ in range(layers)]
    with space.acquire(tokens, max_cached_tokens=len(tokens) - 1) as lease:
        n = lease.wait_all()
        for i, cache in enumerate(caches if n else ()):
            key, value = lease.gather(i, n)  # codes, scales, biases: [1, heads, n, *] each
            cache.keys, cache.values = tuple(map(to_mlx, key)), tuple(map(to_mlx, value))
            cache.offset = n
    return caches, n


def store(tokens: list[int], caches: list[QuantizedKVCache]) -> None:
    """What is not there yet, as it is: never dequantized, never quantized twice."""
    n = caches[0].offset  # not len(), which is 0, nor shape[2]: buffers grow by 256 tokens
    with space.reserve(tokens[:n]) as plan:
        for begin, end in plan.missing:
            for i, cache in enumerate(caches):
                key = [to_numpy(a[..., begin:end, :]) for a in cache.keys]
                value = [to_numpy(a[..., begin:end, :]) for a in cache.values]
                plan.write_packed(i, begin, key=key, value=value)
            plan.commit(end)
        plan.commit(n, sequence_end=True)


tokens = tokenizer.encode(prompt)
caches, cached = warm(tokens)
answer = []
for step in mlx_lm.stream_generate(
    model, tokenizer, tokens[cached:], max_tokens=16, prompt_cache=caches, kv_bits=BITS
):
    answer.append(step.token)
    print(step.text, end="", flush=True)
store(tokens + answer, caches)
print(f"\n{len(tokens)} prompt tokens, {cached} cached")
