"""A chunk of vLLM's offloading as one block of 16 tokens: its key as tokens, its bytes as rows.

A key is a block hash and the number of a group of caches. The hash stands for all tokens before it,
so each key is a sequence of its own, and no chunk is found by way of another one.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

import prefixd

TOKENS = 16
_HASH_BYTES = 32  # the first eight tokens
_GROUP_BYTES = 4  # of a key, behind its hash
_DIM = 128  # elements of two bytes in a row
HEAD_BYTES = TOKENS * _DIM * 2
_LAYER_BYTES = 1 << 20  # prefixd keeps the layers of a block in pages of about this size


def tokens_of(key: bytes) -> NDArray[np.uint32]:
    """Returns 8 words of the hash, and 8 that are the same for all hashes of one group. Different
    keys have different tokens."""
    digest, group = key[:-_GROUP_BYTES], int.from_bytes(key[-_GROUP_BYTES:], "big")
    length = len(digest)
    if length > _HASH_BYTES:
        digest = hashlib.sha256(digest).digest()
    tokens = np.zeros(TOKENS, np.uint32)
    tokens[:8] = np.frombuffer(digest.ljust(_HASH_BYTES, b"\0"), "<u4")
    tokens[8:10] = length, group
    return tokens


def layers_of(chunk_bytes: int) -> list[prefixd.FullLayer]:
    """Returns the layers of a space whose blocks hold so many bytes each. Raises ValueError if no
    layers do."""
    if chunk_bytes <= 0 or chunk_bytes % HEAD_BYTES:
        raise ValueError(f"chunks of {chunk_bytes} bytes, must be a multiple of {HEAD_BYTES}")
    return [
        prefixd.FullLayer(
            min(_LAYER_BYTES, chunk_bytes - begin) // HEAD_BYTES,
            _DIM,
            0,
            [prefixd.raw("float16")],
            values="none",
        )
        for begin in range(0, chunk_bytes, _LAYER_BYTES)
    ]


def rows_of(chunk: NDArray[np.uint8]) -> list[NDArray[np.uint16]]:
    """Returns the bytes of a chunk, in place, as the keys [1, heads, tokens, dim] of each layer."""
    return [
        chunk[begin : begin + _LAYER_BYTES].view(np.uint16).reshape(1, -1, TOKENS, _DIM)
        for begin in range(0, len(chunk), _LAYER_BYTES)
    ]
