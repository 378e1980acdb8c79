"""vLLM's tiering, with copies between its pages and its chunks where both are in the CPU's memory:
vLLM's own worker wants a GPU. All else is vLLM's."""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class Copies(OffloadingWorker):
    """Copies at once. For one group of caches."""

    def __init__(self, caches: Any, region: SharedOffloadRegion, blocks: int) -> None:
        pages = [one.tensor.view(torch.int8).flatten(1) for one in caches.tensors]
        self._blocks = blocks  # of a chunk
        self._pairs = [
            (page, region.create_next_worker_view(page.shape[1] * blocks)) for page in pages
        ]
        self._finished: list[TransferResult] = []

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        return self._copy(job_id, src_spec, dst_spec, is_store=True)

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        return self._copy(job_id, dst_spec, src_spec, is_store=False)

    def get_finished(self) -> list[TransferResult]:
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: set[int]) -> None:
        """Nothing is ever left to wait for."""

    def _copy(self, job_id: int, device: Any, host: Any, is_store: bool) -> bool:
        (first,) = device.block_indices
        copied = 0
        for at, block in enumerate(device.block_ids.tolist(), first % self._blocks):
            chunk, part = int(host.block_ids[at // self._blocks]), at % self._blocks
            for pages, chunks in self._pairs:
                width = pages.shape[1]
                page, place = pages[block], chunks[chunk, part * width : (part + 1) * width]
                place.copy_(page) if is_store else page.copy_(place)
                copied += width
        self._finished.append(TransferResult(job_id, True, copied, 0.0))
        return True


class CpuTieringSpec(TieringOffloadingSpec):
    def get_worker(self, kv_caches: Any) -> OffloadingWorker:
        region = SharedOffloadRegion(
            engine_id=self._engine_id,
            num_chunks=self.num_chunks,
            rank=0,
            kv_bytes_per_chunk=self.kv_bytes_per_chunk,
            cpu_page_size=self.cpu_page_size_per_worker,
        )
        return Copies(kv_caches, region, self.blocks_per_chunk)
