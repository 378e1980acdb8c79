"""A worker in a container: worker.py store | read | hold. Bytes follow from the tokens, so that another one can tell."""

import sys
import time

import numpy as np
import prefixd

_TOKENS, _HEADS, _DIM, _LAYERS = 512, 4, 64, 2
TOKENS = np.arange(_TOKENS, dtype=np.uint32)
CACHE = np.random.default_rng(7).integers(0, 2**16, (_LAYERS, 2, 1, _HEADS, _TOKENS, _DIM), np.uint16)


def main() -> int:
    with prefixd.connect(name=sys.argv[1]) as client:
        if not client.wait_attached(10_000):
            print(client.error)
            return 1
        space = client.open_space(
            model="container",
            weights=bytes([1]) * 32,
            tokenizer=bytes([2]) * 32,
            rope=prefixd.Rope(theta=10_000, rotary_dim=_DIM),
            layers=[prefixd.FullLayer(_HEADS, _DIM, _DIM, [prefixd.raw("bfloat16")])] * _LAYERS,
        )
        return {"store": store, "read": read, "hold": hold}[sys.argv[1]](space)


def store(space: prefixd.Space) -> int:
    with space.reserve(TOKENS) as plan:
        for layer, (key, value) in enumerate(CACHE):
            plan.write_packed(layer, key=key, value=value)
        error = plan.commit(_TOKENS, sequence_end=True).error
    print(error or "stored")
    return 1 if error else 0


def read(space: prefixd.Space) -> int:
    with space.acquire(TOKENS) as lease:
        count = lease.wait_all()
        kept = [lease.gather(layer, count) for layer in range(_LAYERS)] if count else []
        same = count > 0 and all(np.array_equal(part[0], stored) for pair, both in zip(kept, CACHE) for part, stored in zip(pair, both))
        how = "in place" if lease.match.in_place else "by copy"
        print(f"{count} tokens {how}, {'the same' if same else 'other bytes'} {lease.match.error}")
    return 0 if same else 1


def hold(space: prefixd.Space) -> int:
    lease = space.acquire(TOKENS)
    print(f"holds {lease.wait_all()} tokens", flush=True)
    time.sleep(3600)  # it is killed
    return 1


if __name__ == "__main__":
    sys.exit(main())
