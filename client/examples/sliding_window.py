"""A model with sliding layers: what an engine gathers of them, and what it writes.

Usage: sliding_window.py ADDRESS      no model: NumPy makes the rows up; run it twice
"""

import sys

import numpy as np
import prefixd

HEADS, DIM, WINDOW = 2, 64, 256
form = prefixd.raw("float16")
layers = [
    prefixd.FullLayer(HEADS, DIM, DIM, [form]),
    prefixd.SlidingLayer(HEADS, DIM, DIM, [form], window=WINDOW),
    prefixd.SlidingLayer(HEADS, DIM, DIM, [form], window=WINDOW),
]
client = prefixd.connect(sys.argv[1], name="sliding_window")
if not client.wait_attached(5000):
    print(f"no cache: {client.error}", file=sys.stderr)
space = client.open_space(
    model="made-up", weights=bytes([7]) * 32, rope=prefixd.Rope(theta=10000), layers=layers
)
tokens = [(31 * at) % 50021 for at in range(1000)]


def compute(layer: int, begin: int) -> list[np.ndarray]:
    """Stands for the model: K and V of tokens [begin, ...), each [1, HEADS, tokens, DIM]."""
    rows = np.sin(np.outer(tokens[begin:], np.arange(1, HEADS * DIM + 1)) + layer)
    key = rows.reshape(1, -1, HEADS, DIM).transpose(0, 2, 1, 3).astype(np.float16)
    return [key, -key]


# gather() returns all cached rows of the first layer, and the rows of the window of each other
# layer: the next token needs no more. first[layer] is the position of the first row.
with space.acquire(tokens, max_cached_tokens=len(tokens) - 1) as lease:
    cached = lease.wait_all()
    found = [lease.gather(layer) for layer in range(len(layers))] if cached else []
    assert None not in found, lease.error
first, cache = [], []
for layer in range(len(layers)):
    rows = compute(layer, cached)
    if cached:
        (key,), (value,) = found[layer]  # a raw format has one array
        rows = [np.concatenate(pair, axis=2) for pair in zip((key, value), rows)]
    first.append(len(tokens) - rows[0].shape[2])
    cache.append(rows)
    wanted = compute(layer, first[layer])
    assert all(np.array_equal(a, b) for a, b in zip(rows, wanted)), f"layer {layer} differs"

# What is missing begins at most one block before the tokens that were computed, and the window is
# longer than a block: the rows are all here. An engine whose window is shorter leaves out the blocks
# of which it has not all rows.
with space.reserve(tokens) as plan:
    for begin, end in plan.missing:
        for layer, (key, value) in enumerate(cache):
            cut = slice(begin - first[layer], end - first[layer])
            plan.write_packed(layer, begin, key=[key[:, :, cut]], value=[value[:, :, cut]])
        plan.commit(end)
    plan.commit(len(tokens), sequence_end=True)

print(f"{cached} of {len(tokens)} tokens cached; first rows of the layers: {first}")
