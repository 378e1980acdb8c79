"""What is expected of every byte: it follows from the tokens up to its own, the layer and nothing
else. Any process can tell whether what it was given is right."""

from __future__ import annotations

import random
import zlib
from typing import NamedTuple, Sequence

import numpy as np
import prefixd

_MASK = (1 << 64) - 1
HEADS, DIM = 2, 64


def _mix(words: np.ndarray) -> np.ndarray:
    """SplitMix64's finalizer (Steele, Lea, Flood 2014)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def prefixes(space: str, tokens: Sequence[int]) -> np.ndarray:
    """One number a token, of its space and all tokens up to it."""
    state, out = zlib.crc32(space.encode()), np.empty(len(tokens), np.uint64)
    for i, token in enumerate(tokens):
        state = ((state ^ token) * 0x9E3779B97F4A7C15 + 0x7F4A7C15) & _MASK
        state ^= state >> 29
        out[i] = state
    return out


class Name(NamedTuple):
    """A sequence of the universe: the first `shared` tokens are its family's."""

    family: int
    branch: int
    shared: int
    count: int

    def tokens(self) -> list[int]:
        def stream(seed: int, count: int) -> list[int]:
            # Few different ids, and long repetitions: the worst for those who compare hashes.
            draw = random.Random(seed)
            period = draw.choice([1, 2, 7, 64, 65, 100_000])
            some = [draw.randrange(2 if period < 7 else 50_000) for _ in range(min(period, count))]
            return [some[i % len(some)] for i in range(count)]

        own = self.count - self.shared
        return stream(self.family, self.shared) + stream(10_000 + self.family * 100 + self.branch, own)


def universe(families: int, branches: int) -> list[Name]:
    names = []
    for family in range(families):
        draw = random.Random(f"family {family}")
        shared = draw.choice([0, 1, 63, 64, 65, 128, draw.randrange(600)])
        for branch in range(branches):
            own = draw.choice([1, 64, 65, draw.randrange(2, 400)])
            names.append(Name(family, branch, shared, shared + own))
    return names


class Layout(NamedTuple):
    """A kind of space."""

    title: str
    layers: tuple[prefixd.Layer, ...]
    salt: str = ""

    def open(self, client: prefixd.Client) -> prefixd.Space:
        return client.open_space(
            model=f"stress {self.title}",
            weights=bytes([7]) * 32,
            tokenizer=bytes([8]) * 32,
            rope=prefixd.Rope(theta=10_000, rotary_dim=DIM),
            layers=list(self.layers),
            salt=self.salt,
        )


def layouts() -> list[Layout]:
    full = prefixd.FullLayer(HEADS, DIM, DIM, (prefixd.mlx_affine(8, 64, "bfloat16"),))
    mixed = prefixd.FullLayer(
        HEADS, DIM, DIM, (prefixd.mlx_affine(4, 64, "bfloat16"),)
    )
    sliding = prefixd.SlidingLayer(
        HEADS, DIM, DIM, (prefixd.mlx_affine(8, 64, "bfloat16"),), window=128, sink_tokens=4
    )
    return [
        Layout("full", (full,) * 3),
        Layout("4 bits", (mixed,) * 2, salt="somebody"),
        Layout("sliding", (full, sliding)),
        Layout("states", (full, prefixd.StateLayer(3000))),
    ]


def _rows(tensor: prefixd.TensorFormat) -> list[int]:
    groups = DIM // tensor.group_size
    return [DIM * tensor.bits // 32, groups, groups]


def planes(tensor: prefixd.TensorFormat, hashes: np.ndarray, place: int) -> tuple[np.ndarray, ...]:
    """The parts of K or V of these tokens, [1, heads, tokens, row] each. `place` tells layers and
    K from V."""
    parts = []
    for part, (dtype, row) in enumerate(zip(tensor.part_dtypes(), _rows(tensor))):
        row_bytes = row * dtype.itemsize
        words = -(-row_bytes // 8)
        at = np.arange(HEADS * words, dtype=np.uint64).reshape(HEADS, 1, words)
        salt = np.uint64((place * 8 + part + 1) * 0xD1B54A32D192ED03 & _MASK)
        raw = _mix(hashes.reshape(1, -1, 1) ^ salt + at)
        rows = raw.view(np.uint8).reshape(HEADS, len(hashes), words * 8)[..., :row_bytes]
        parts.append(np.ascontiguousarray(rows).view(dtype)[None])
    return tuple(parts)


def pair(layer: prefixd.Layer, at: int, hashes: np.ndarray) -> tuple[tuple, tuple]:
    key, value = layer.formats[0].key, layer.formats[0].value
    return planes(key, hashes, at * 2), planes(value, hashes, at * 2 + 1)


def state(layer: prefixd.StateLayer, at: int, after: np.uint64) -> np.ndarray:
    words = np.arange(-(-layer.state_bytes // 8), dtype=np.uint64)
    return _mix(after ^ (words + np.uint64(at * 1_000_003))).view(np.uint8)[: layer.state_bytes]
