"""A loop of one's own around mlx-lm, its caches shared through prefixd.

Usage: mlx_generate.py ADDRESS MODEL PROMPT [--kv-bits 8]      run it twice, or from two terminals
"""

import argparse

import mlx_lm
import prefixd
from mlx_lm.models.cache import make_prompt_cache
from prefixd.mlx import Model, Options, PromptCache, open_model

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("address")
parser.add_argument("model")
parser.add_argument("prompt")
parser.add_argument("--kv-bits", type=int)
parser.add_argument("--max-tokens", type=int, default=64)
arguments = parser.parse_args()

model, tokenizer = mlx_lm.load(arguments.model)
tokens = tokenizer.encode(arguments.prompt)

# The attachment. Without a daemon every fetch is a miss, and nothing else happens.
client = prefixd.connect(arguments.address, name="mlx_generate")
options = Options(kv_bits=arguments.kv_bits)
cache = PromptCache(lambda key: open_model(client, [Model(model, key)], options))

caches, rest = cache.fetch_nearest_cache(arguments.model, tokens)
caches = caches or make_prompt_cache(model)
answer = []
for step in mlx_lm.stream_generate(
    model,
    tokenizer,
    rest,
    max_tokens=arguments.max_tokens,
    prompt_cache=caches,
    kv_bits=options.kv_bits,
    kv_group_size=options.kv_group_size,
    quantized_kv_start=options.quantized_kv_start,
):
    answer.append(step.token)
    print(step.text, end="", flush=True)
cache.insert_cache(arguments.model, tokens + answer, caches)
print(f"\n{len(tokens)} prompt tokens, {len(tokens) - len(rest)} cached")
