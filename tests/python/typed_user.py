"""A user's program for mypy --strict; test_types.py checks it. Lines that must be refused say so."""

from __future__ import annotations

from pathlib import Path
from typing import Any, assert_type

import numpy as np
import prefixd
import prefixd.aio
from numpy.typing import NDArray

Planes = tuple[NDArray[Any], ...]


def open_space(client: prefixd.Client, path: Path) -> prefixd.Space:
    formats = [prefixd.mlx_affine(8, 64, "bfloat16"), prefixd.pair(prefixd.q8_0(), prefixd.q4_0())]
    full = prefixd.FullLayer(kv_heads=8, key_dim=128, value_dim=128, formats=formats)
    sliding = prefixd.SlidingLayer(8, 128, 128, (prefixd.raw(),), window=1024, sink_tokens=4)
    layers: list[prefixd.Layer] = [full, sliding, prefixd.StateLayer(4096), prefixd.SharedLayer(0)]
    assert_type(full.formats[0].key.part_dtypes(), tuple[np.dtype[Any], ...])
    return client.open_space(
        model="m",
        weights=prefixd.digest_checkpoint(path),
        tokenizer=prefixd.digest_file(path / "tokenizer.json"),
        rope=prefixd.rope_of({"rope_theta": 500_000}, head_dim=128),
        layers=layers,
    )


def look_up(space: prefixd.Space, tokens: NDArray[np.uint32]) -> None:
    with space.acquire(tokens, readable="q8_0", max_cached_tokens=len(tokens) - 1) as lease:
        assert_type(lease, prefixd.Lease)
        assert_type(lease.wait_all(), int)
        assert_type(lease.gather(0), tuple[Planes, Planes] | None)
        assert_type(lease.state(2), NDArray[Any] | None)
        assert_type(lease.match.reasons, tuple[prefixd.Reason, ...])
        for block in lease.blocks(0):
            assert_type(block, prefixd.Block)
            assert_type(block.key, Planes)
    assert_type(space.match([1, 2, 3], readable=0).matched_tokens, int)
    assert_type(space.match(range(9), readable=(0, "q8_0")).kind, str)
    assert_type(prefixd.gather_batch([lease], 0, [1]), tuple[Planes, Planes] | None)
    assert_type(prefixd.acquire_set([space], tokens), list[prefixd.Lease])
    space.acquire("text")  # type: ignore[arg-type]
    space.acquire(tokens, deadline=3)  # type: ignore[call-arg]
    lease.gather(layer="0")  # type: ignore[arg-type]


def store(space: prefixd.Space, tokens: list[int], key: Planes, value: Planes) -> int:
    with space.reserve(tokens, writable=0, coarser=["q8_0"]) as plan:
        for run, which in zip(plan.missing, plan.formats):
            assert_type(run, prefixd.Run)
            assert_type(which, int)
            assert_type(plan.write_packed(layer=0, begin=run.begin, key=key, value=value), bool)
        done = plan.commit(len(tokens), sequence_end=True)
        assert_type(done, prefixd.CommitInfo)
        return done.stored_tokens


def counts(client: prefixd.Client) -> tuple[int, str]:
    assert_type(client.stats, prefixd.Stats)
    return client.stats.lookups, client.error


async def awaited(address: str, layers: list[prefixd.Layer]) -> int:
    async with prefixd.aio.connect(address, threads=2, start=True) as client:
        space = await client.open_space(model="m", layers=layers, salt="mine")
        assert_type(space, prefixd.aio.Space)
        async with space.acquire([1, 2, 3], deadline_ms=50) as lease:
            assert_type(lease, prefixd.aio.Lease)
            assert_type(await lease.gather(0), tuple[Planes, Planes] | None)
        plan = await space.reserve([1, 2, 3])
        assert_type(plan, prefixd.aio.Plan)
        assert_type(await plan.commit(3), prefixd.CommitInfo)
        await space.match([1], deadline=3)  # type: ignore[call-arg]
        return await lease.wait_all()


def main() -> None:
    with prefixd.connect("unix:///tmp/prefixd.sock", name="typed", start=False) as client:
        space = open_space(client, Path("m"))
        look_up(space, np.arange(9, dtype=np.uint32))
        prefixd.connect(7)  # type: ignore[arg-type]
