"""A first hit: python -m prefixd [ADDRESS]

Stores the cache of a made-up prompt and reads it back as another worker would. With PREFIXD_START=1
it starts a prefixd where none runs.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

import prefixd
from prefixd._client import DEFAULT_ADDRESS

_TOKENS, _HEADS, _DIM, _LAYERS = 1024, 8, 128, 4
_WAIT_MS = 5_000


def main() -> int:
    address = sys.argv[1] if len(sys.argv) > 1 else DEFAULT_ADDRESS
    rng = np.random.default_rng()  # another prompt each time
    tokens = rng.integers(0, 50_000, _TOKENS, np.uint32)
    cache = rng.integers(0, 2**16, (_LAYERS, 2, 1, _HEADS, _TOKENS, _DIM), np.uint16)
    with prefixd.connect(address, name="first hit") as writer:
        if not writer.wait_attached(_WAIT_MS):
            hint = " (PREFIXD_START=1 starts one)" if "no daemon" in writer.error else ""
            print(f"no cache: {writer.error}{hint}", file=sys.stderr)
            return 1
        began = time.perf_counter()
        if error := _store(_open(writer), tokens, cache):
            print(f"nothing was stored: {error}", file=sys.stderr)
            return 1
        print(f"stored     {_TOKENS} tokens, {cache.nbytes >> 20} MiB, in {_since(began)}")
    with prefixd.connect(address, name="first hit") as reader:
        reader.wait_attached(_WAIT_MS)
        return _read(_open(reader), tokens, cache)


def _open(client: prefixd.Client) -> prefixd.Space:
    layer = prefixd.FullLayer(_HEADS, _DIM, _DIM, [prefixd.raw("bfloat16")])
    return client.open_space(
        model="first-hit",
        weights=_digest(1),
        tokenizer=_digest(2),
        rope=prefixd.Rope(theta=10_000, rotary_dim=_DIM),
        layers=[layer] * _LAYERS,
    )


def _digest(byte: int) -> bytes:
    return bytes([byte]) * 32  # a real model has prefixd.digest_checkpoint(path)


def _store(space: prefixd.Space, tokens: NDArray[Any], cache: NDArray[Any]) -> str:
    """Returns why nothing was stored, or ""."""
    with space.reserve(tokens) as plan:
        for layer, (key, value) in enumerate(cache):
            plan.write_packed(layer, key=key, value=value)
        return plan.commit(len(tokens), sequence_end=True).error


def _read(space: prefixd.Space, tokens: NDArray[Any], cache: NDArray[Any]) -> int:
    """Returns the exit status."""
    began = time.perf_counter()
    with space.acquire(tokens, max_cached_tokens=len(tokens) - 1) as lease:
        count = lease.wait_all()
        found = [lease.gather(layer, count) for layer in range(_LAYERS)] if count else []
        took = _since(began)
        same = count > 0 and all(
            pair is not None
            and all(np.array_equal(part[0], kept[..., :count, :]) for part, kept in zip(pair, both))
            for pair, both in zip(found, cache)
        )
        print(f"{lease.match_kind:<10} {count} of {len(tokens)} tokens in {took}", end="")
        print(", bit for bit the same" if same else f": not what was stored. {lease.error}")
    return 0 if same else 1


def _since(began: float) -> str:
    return f"{(time.perf_counter() - began) * 1000:.1f} ms"


if __name__ == "__main__":
    sys.exit(main())
