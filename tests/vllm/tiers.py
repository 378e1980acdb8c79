"""vLLM's own offloading with prefixd behind it, without a GPU: vLLM's connector, scheduler side and
TieringOffloadingManager are its own, made from the documented command line. Only the copies between
the GPU and the CPU's memory are this file's: it writes and reads that memory itself.

As a program it is a server in a process of its own: `tiers.py ADDRESS SEED ...` prints, for each
chunk, whether it was loaded with the bytes of that seed.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from engines import MODEL, ROOT
from numpy.typing import NDArray
from prefixd_process import wait_for
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.kv_offload.base import (
    LookupResult,
    OffloadKey,
    ReqContext,
    ScheduleEndContext,
    make_offload_key,
)

BLOCK, BLOCKS = 16, 12  # tokens of a block of vLLM, blocks of a chunk
CHUNK_BYTES = 12 * 6 * 2 * 2 * 64 * 4 * 16  # 6 layers, K and V, 2 heads, 64 dims, float32
PLACES = 8  # chunks of vLLM's own memory


def documented() -> dict[str, Any]:
    """Returns what client/README.md gives to --kv-transfer-config."""
    text = (ROOT / "client/README.md").read_text()
    section = text[text.index("### The tier behind") :]
    command = re.search(r"```sh\n.*?(vllm serve .*?)```", section, re.S)
    assert command is not None
    words = shlex.split(command[1])
    return json.loads(words[words.index("--kv-transfer-config") + 1])


def said(address: str, **more: Any) -> dict[str, Any]:
    """Returns the documented config with a small memory, a prefixd of the tests, and chunks of more
    than one of its layers."""
    config = documented()
    extra = config["kv_connector_extra_config"]
    extra.update(cpu_bytes_to_use=PLACES * CHUNK_BYTES, block_size=BLOCK * BLOCKS)
    (tier,) = extra["secondary_tiers"]
    tier.update(address=address, **more)
    return config


def key_of(seed: int, group: int = 0) -> OffloadKey:
    return make_offload_key(hashlib.sha256(b"block %d" % seed).digest(), group)


def bytes_of(seed: int) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, CHUNK_BYTES, np.uint8)


class Server:
    """The scheduler's side of one server."""

    def __init__(self, transfer: dict[str, Any], model: Path = MODEL) -> None:
        config = EngineArgs(
            model=str(model),
            dtype="float32",
            max_model_len=4096,
            block_size=BLOCK,
            skip_tokenizer_init=True,
            enforce_eager=True,
            kv_transfer_config=KVTransferConfig(**transfer),
        ).create_engine_config()
        spec = FullAttentionSpec(
            block_size=BLOCK, num_kv_heads=2, head_size=64, dtype=torch.float32
        )
        groups = [KVCacheGroupSpec([f"layers.{at}" for at in range(6)], spec)]
        caches = KVCacheConfig(num_blocks=32, kv_cache_tensors=[], kv_cache_groups=groups)
        self.connector = KVConnectorFactory.create_connector(
            config, KVConnectorRole.SCHEDULER, caches
        )
        self.manager = self.connector.connector_scheduler.manager
        (self.tier,) = self.manager.secondary_tiers
        self.memory = np.asarray(self.manager.primary_tier.get_kv_memoryview()).view(np.uint8)
        self.region = Path(self.manager.primary_tier._mmap_region.mmap_path)
        self.slowest_s = 0.0  # call of the scheduler
        self._requests = 0

    def wait_until_shared(self) -> Server:
        wait_for("the space", lambda: self.tier._space.now())
        return self

    def store(self, *seeds: int) -> None:
        """As a request whose chunks were computed."""
        self.store_keys({key_of(seed): bytes_of(seed) for seed in seeds})
        self.finish()

    def store_keys(self, chunks: Mapping[OffloadKey, NDArray[np.uint8]]) -> None:
        """Begins to store."""
        context = self.begin()
        output = self.timed(self.manager.prepare_store, list(chunks), context)
        assert output is not None, "vLLM's own memory is full"
        for key, place in zip(output.keys_to_store, output.store_spec.chunk_ids, strict=True):
            self.memory[place] = chunks[key]
        self.timed(self.manager.complete_store, output.keys_to_store, context)
        self.timed(self.manager.on_request_finished, context)

    def finish(self) -> None:
        """Steps until no job is left."""

        def step() -> bool:
            self.step()
            return not self.manager.has_pending_work()

        wait_for("all jobs to end", step, tick_s=0.002)

    def step(self) -> None:
        self.timed(self.manager.on_schedule_end, ScheduleEndContext((), ()))

    def load(
        self, *seeds: int, group: int = 0, before_jobs: Callable[[], None] | None = None
    ) -> list[NDArray[np.uint8] | None]:
        """As a request that looks for these chunks, all of them in each step. Returns the bytes of
        each, None for a miss. `before_jobs`: called when all are found, and no job has begun."""
        context = self.begin()
        keys = [key_of(seed, group) for seed in seeds]
        answers: list[LookupResult] = []

        def known() -> bool:
            nonlocal before_jobs
            answers[:] = (self.timed(self.manager.lookup, key, context) for key in keys)
            if before_jobs and set(answers) == {LookupResult.HIT_PENDING}:
                before_jobs()
                before_jobs = None
            self.step()
            return set(answers) <= {LookupResult.HIT, LookupResult.MISS}

        wait_for("answers", known, tick_s=0.002)
        found = [
            self.read(key, context) if answer is LookupResult.HIT else None
            for key, answer in zip(keys, answers, strict=True)
        ]
        self.timed(self.manager.on_request_finished, context)
        self.finish()
        return found

    def read(self, key: OffloadKey, context: ReqContext) -> NDArray[np.uint8]:
        (place,) = self.manager.prepare_load([key], context).chunk_ids
        found = self.memory[place].copy()
        self.manager.complete_load([key], context)
        return found

    def begin(self) -> ReqContext:
        self._requests += 1
        context = ReqContext(str(self._requests))
        self.timed(self.manager.on_new_request, context)
        return context

    def forget(self) -> None:
        """What vLLM's own memory holds, not what prefixd does."""
        self.manager.reset_cache()

    def has_itself(self, seed: int) -> bool:
        context = ReqContext("look")
        return self.manager.primary_tier.lookup(key_of(seed), context) is not LookupResult.MISS

    def failed_jobs(self) -> tuple[float, float]:
        """Returns how many stores and loads failed since the last call, as vLLM counts them."""
        stats = self.manager.get_stats()
        counts = stats.data["data"] if stats is not None else {}
        stores, loads = (
            sum(counts.get(f"vllm:kv_offload_tiering_{what}_job_failures", {}).values())
            for what in ("cascade", "promotion")
        )
        return stores, loads

    def timed(self, call: Any, *arguments: Any) -> Any:
        began = time.monotonic()
        try:
            return call(*arguments)
        finally:
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)

    def close(self) -> None:
        self.memory = None
        self.connector.shutdown()


def loaded(server: Server, seeds: Sequence[int]) -> list[bool]:
    """Returns which chunks were found. Raises if one has other bytes than it should."""
    hits = []
    for seed, found in zip(seeds, server.load(*seeds), strict=True):
        if found is not None:
            np.testing.assert_array_equal(found, bytes_of(seed), f"chunk {seed}")
        hits.append(found is not None)
    return hits


def main() -> None:
    server = Server(said(sys.argv[1])).wait_until_shared()
    print("loaded", json.dumps(loaded(server, list(map(int, sys.argv[2:])))), flush=True)
    server.close()


if __name__ == "__main__":
    main()
