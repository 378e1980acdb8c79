"""PrefixdConnector: vLLM's interface to external caches, on prefixd."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)

from .messages import Hello, Report, Work
from .options import OptionError, Options
from .scheduler import SchedulerSide
from .worker import WorkerSide


class PrefixdConnector(KVConnectorBase_V1, SupportsHMA):
    """One in vLLM's scheduler and one in each worker; vLLM makes them.

    A prefix that prefixd has is loaded into vLLM's pages, in whole ones; what is computed is saved
    behind the engine. Nothing raises for a prefixd that is absent, late or dying: its prompts are
    computed. Raises OptionError for a configuration that cannot work.
    """

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        said = self._kv_transfer_config
        if said.kv_load_failure_policy != "recompute":
            raise OptionError(
                f'kv_load_failure_policy is {said.kv_load_failure_policy!r}, must be "recompute": '
                "a page that prefixd has lost is computed, and no request fails for it"
            )
        options = Options.of(said.kv_connector_extra_config)
        self._scheduler: SchedulerSide | None = None
        self._worker: WorkerSide | None = None
        if role == KVConnectorRole.SCHEDULER:
            self._scheduler = SchedulerSide(vllm_config, kv_cache_config, options)
        else:
            self._worker = WorkerSide(vllm_config, kv_cache_config, options)

    @property
    def requires_kv_delivery(self) -> bool:
        return False  # a save that is dropped is a later miss

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        return True  # layers are waited for one by one

    def shutdown(self) -> None:
        for side in (self._scheduler, self._worker):
            if side is not None:
                side.close()

    # --- in the scheduler ---

    @property
    def _planner(self) -> SchedulerSide:
        assert self._scheduler is not None
        return self._scheduler

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: dict[tuple[int, int], KVConnectorHandshakeMetadata]
    ) -> None:
        self._planner.greet({k: v for k, v in metadata.items() if isinstance(v, Hello)})

    def on_new_request(self, request: Any) -> None:
        self._planner.arrived(request)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        return self._planner.matched(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._planner.allocated(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return self._planner.work(
            scheduler_output.num_scheduled_tokens, scheduler_output.kv_connector_block_state
        )

    def update_connector_output(self, connector_output: Any) -> None:
        report = connector_output.kv_connector_worker_meta
        if isinstance(report, Report):
            self._planner.heard(report)

    def request_finished(
        self, request: Any, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        self._planner.finished(request, (block_ids,))
        return False, None

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        self._planner.finished(request, block_ids)
        return False, None

    def has_pending_push_work(self) -> bool:
        return self._planner.waits_for_saves

    def take_events(self) -> Iterable[Any]:
        return self._planner.take_events()

    # --- in a worker ---

    @property
    def _doer(self) -> WorkerSide:
        assert self._worker is not None
        return self._worker

    def _work(self) -> Work:
        work = self._get_connector_metadata()
        assert isinstance(work, Work)
        return work

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self._doer.register(kv_caches)

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        return self._doer.hello()

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        assert isinstance(kv_connector_metadata, Work)
        self._doer.before_step(kv_connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        self._doer.start_loads(self._work().loads)

    def wait_for_layer_load(self, layer_name: str) -> None:
        self._doer.wait_for_layer(layer_name)

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Does nothing: wait_for_save() copies out whole pages, of all layers."""

    def wait_for_save(self) -> None:
        self._doer.after_forward(self._work())

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        loaded, failed = self._doer.take_loaded()
        return KVConnectorTransferResults(finished_recving=loaded, failed_recving=failed)

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._doer.take_lost()

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        return self._doer.report()
