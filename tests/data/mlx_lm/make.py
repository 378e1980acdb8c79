"""Writes prompt_cache.safetensors beside this file: caches of every class as save_prompt_cache of mlx-lm 0.32.2 writes them.

Usage: python make.py   (a Python with mlx and mlx-lm, scripts/python-venv makes one)

Element [head, token, channel] of the i-th tensor drawn is sin(i + 3 * head + token / 7 + channel / 5): layers in order, K before V.
"""

import pathlib

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, QuantizedKVCache, RotatingKVCache, save_prompt_cache

mx.set_default_device(mx.cpu)
drawn = 0


def draw(first: int, tokens: int, dim: int, heads: int = 2) -> mx.array:
    global drawn
    drawn += 1
    head = mx.arange(heads, dtype=mx.float32)[:, None, None]
    token = mx.arange(first, first + tokens, dtype=mx.float32)[:, None]
    channel = mx.arange(dim, dtype=mx.float32)
    return mx.sin(drawn + 3 * head + token / 7 + channel / 5).astype(mx.float16)[None]


plain, quantized, rotating, listed = KVCache(), QuantizedKVCache(group_size=32, bits=4), RotatingKVCache(8, keep=2), KVCache()
plain.update_and_fetch(draw(0, 5, 32), draw(0, 5, 64))
quantized.update_and_fetch(draw(0, 5, 32), draw(0, 5, 64))
for position in range(11):
    rotating.update_and_fetch(mx.full((1, 2, 1, 4), position, mx.float16), mx.full((1, 2, 1, 4), -position, mx.float16))
listed.update_and_fetch(draw(0, 5, 32), draw(0, 5, 32))
state = ArraysCache(2)
state[0] = draw(0, 3, 4)
path = pathlib.Path(__file__).parent / "prompt_cache.safetensors"
save_prompt_cache(str(path), [plain, quantized, rotating, state, CacheList(listed, quantized)], {"model": "tiny"})
