"""Keeps a prefixd busy with lookups of 32k tokens and with stores, until it is killed."""

import itertools
import sys

import numpy as np

import prefixd

space = prefixd.connect(sys.argv[1], name="busy").open_space(
    model="busy",
    weights=b"1" * 32,
    tokenizer=b"1" * 32,
    layers=[prefixd.FullLayer(1, 64, 64, [prefixd.raw("float32")])],
)
for turn in itertools.count():
    tokens = np.arange(turn, turn + 32_768, dtype=np.uint32)
    space.match(tokens, deadline_ms=5000)
    if turn % 64 == 0:
        rows = np.ones((1, 1, 4096, 64), np.float32)
        with space.reserve(tokens[:4096], deadline_ms=5000) as plan:
            plan.write_packed(0, 0, key=rows, value=rows)
            plan.commit(4096, True)
        print("stored", flush=True)
