"""PrefixdTier: prefixd behind vLLM's own offloading to the CPU's memory.

    vllm serve M --kv-transfer-config '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both",
        "kv_connector_extra_config": {"spec_name": "TieringOffloadingSpec",
            "cpu_bytes_to_use": 10000000000, "block_size": 256,
            "secondary_tiers": [{"type": "PrefixdTier", "module_path": "prefixd.vllm"}]}}'

vLLM copies chunks between the GPU and its own memory; this tier copies them between that memory
and prefixd. It lives in the scheduler's process, whose thread it never makes wait.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    OffloadKey,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
)
from vllm.v1.kv_offload.tiering.async_lookup import AsyncLookupManager
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob

from .tier_chunks import TOKENS, rows_of, tokens_of
from .tier_jobs import Finished, Jobs
from .tier_options import TierOptions
from .tier_space import TierSpace

if TYPE_CHECKING:
    from vllm.v1.kv_offload.base import OffloadingSpec
    from vllm.v1.kv_offload.tiering.backpressure import BackpressureDetector


class PrefixdTier(SecondaryTierManager):
    """A chunk that is not stored, or not loaded, is a failed job and a later miss, nothing else.
    prefixd decides by itself what it keeps: touch() is not passed on, for it names chunks that
    vLLM has in its own memory. A load counts as use."""

    medium = None  # RAM or SSD: as prefixd has it

    def __init__(
        self,
        offloading_spec: OffloadingSpec,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: BackpressureDetector | None = None,
        **said: Any,
    ) -> None:
        """`said`: see TierOptions. Raises OptionError."""
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        self._options = TierOptions.of(said)
        locality = self._options.locality
        self.locality = None if locality is None else Locality(locality)
        self._chunks: NDArray[np.uint8] | None = np.asarray(primary_kv_view).view(np.uint8)
        self._space = TierSpace(offloading_spec, self.block_size_bytes, self._options)
        self._jobs = Jobs(self._load, self._store, self._options.threads)
        self._lookups = _Lookups(self._space, self._options, tier_type)

    @override
    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        found = self._lookups.lookup(key, req_context)
        if found is None:
            return LookupResult.RETRY
        return LookupResult.HIT if found else LookupResult.MISS

    @override
    def submit_store(self, job_metadata: TransferJob) -> None:
        self._submit(job_metadata, False, self._options.store_deadline_ms)

    @override
    def submit_load(self, job_metadata: TransferJob) -> None:
        self._submit(job_metadata, True, self._options.load_deadline_ms)

    @override
    def get_finished_jobs(self) -> Iterable[JobResult]:
        results = []
        for job in self._jobs.finished():
            if job.is_load:  # else the request would ask for what failed for ever
                self._lookups.mark_miss([OffloadKey(key) for key in job.failed])
            results.append(self._result(job))
        return results

    @override
    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    @override
    def on_request_finished(self, req_context: ReqContext) -> None:
        self._lookups.cleanup(req_context.req_id)

    @override
    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        self._lookups.flush()

    @override
    def drain_jobs(self) -> None:
        self._jobs.drain()

    @override
    def shutdown(self) -> None:
        self._space.close()  # jobs that no thread works on yet fail at once
        self._lookups.shutdown()
        self._jobs.end()
        self._chunks = None  # vLLM unmaps this memory next

    def _submit(self, job: TransferJob, is_load: bool, deadline_ms: int) -> None:
        places = [int(place) for place in job.chunk_ids]
        self._jobs.submit(job.job_id, is_load, list(job.keys), places, deadline_ms)

    def _result(self, job: Finished) -> JobResult:
        loaded = [OffloadKey(key) for key in job.done] if job.is_load and job.failed else []
        return JobResult(
            job.job_id,
            success=not job.failed,
            successful_keys=loaded or None,
            transfer_time=job.seconds,
            transfer_bytes=len(job.done) * self.block_size_bytes,
        )

    def _load(self, key: bytes, place: int, until: float) -> bool:
        space, chunks = self._space.now(), self._chunks
        if space is None or chunks is None:
            return False
        left_ms = _left_ms(until)
        with space.acquire(
            tokens_of(key),
            deadline_ms=min(self._options.lookup_deadline_ms, left_ms),
            load_deadline_ms=left_ms,
        ) as lease:
            self._space.heard(lease.error)
            if lease.wait_all() < TOKENS:  # gone since the lookup, late or damaged
                lease.release(used_tokens=0)
                return False
            return all(
                lease.gather(layer, TOKENS, out=(rows, ())) is not None
                for layer, rows in enumerate(rows_of(chunks[place]))
            )

    def _store(self, key: bytes, place: int, until: float) -> bool:
        space, chunks = self._space.now(), self._chunks
        if space is None or chunks is None:
            return False
        with space.reserve(tokens_of(key), deadline_ms=_left_ms(until)) as plan:
            self._space.heard(plan.error)
            if plan.error:
                return False
            if plan.missing and not all(
                plan.write_packed(layer, key=rows)
                for layer, rows in enumerate(rows_of(chunks[place]))
            ):
                return False  # no room
            done = plan.commit(TOKENS, sequence_end=True, deadline_ms=_left_ms(until))
            self._space.heard(plan.error)
            return not done.error


class _Lookups(AsyncLookupManager):
    """Asks on a thread of its own, from one step of the scheduler to the next."""

    def __init__(self, space: TierSpace, options: TierOptions, tier_type: str) -> None:
        self._space, self._deadline_ms = space, options.lookup_deadline_ms
        super().__init__(tier_type)  # starts the thread

    @override
    def batch_lookup(self, keys: list[OffloadKey], req_context: ReqContext) -> Collection[bool]:
        return [self._is_there(key, req_context.req_id) for key in keys]

    def _is_there(self, key: bytes, request_id: str) -> bool:
        space = self._space.now()
        if space is None:
            return False
        found = space.match(tokens_of(key), deadline_ms=self._deadline_ms, request_id=request_id)
        self._space.heard(found.error)
        return found.restorable_tokens >= TOKENS


def _left_ms(until: float) -> int:
    return max(int((until - time.monotonic()) * 1000), 1)
