"""The connector in a worker of vLLM: fills pages from prefixd and stores what was computed."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

import prefixd

from ..engine.cpus import unbound_threads
from ..engine.pinning import Pinning
from ..engine.saver import Saver
from ..engine.spaces import Unsupported
from ..engine.tensors import Beside, copied
from .identity import Rank, why_not_shared
from .layout import Layout, look_at, salt_of
from .loading import Loading
from .messages import Hello, Load, Report, Save, Work
from .options import Options
from .saving import Taken, store
from .spaces import Spaces

log = logging.getLogger("vllm.prefixd")

_SETTLE_S = 5.0  # that a shutdown waits for saves


class WorkerSide:
    """Calls come from the thread that runs the model, one step after another."""

    def __init__(self, vllm_config: Any, kv_cache_config: Any, options: Options) -> None:
        self._config, self._caches, self._options = vllm_config, kv_cache_config, options
        self._why_not = why_not_shared(vllm_config, kv_cache_config)
        self._layout: Layout | None = None
        self._places: dict[str, int] = {}  # of layers, by name
        self._spaces: Spaces | None = None
        self._refusal: prefixd.Client | None = None
        self._saver: Saver | None = None
        self._loader: _Loader | None = None
        self._pinning: Pinning | None = None
        self._open: list[Loading] = []  # of this step's forward pass
        # Pages that a load left unfilled, of the steps that may still compute on them.
        self._lost: deque[set[int]] = deque([set()], vllm_config.max_concurrent_batches)
        wants = vllm_config.kv_events_config
        self._reports = bool(wants and wants.enable_kv_cache_events)
        self._saved: dict[int, int] = {}
        self._saved_lock = threading.Lock()
        self._said_full = False

    def register(self, caches: dict[str, torch.Tensor]) -> None:
        """Looks at the pages of each layer and opens the space."""
        with unbound_threads():
            self._register(caches)

    def _register(self, caches: dict[str, torch.Tensor]) -> None:
        if not self._why_not:
            try:
                self._layout = look_at(self._config, self._caches, caches, self._options)
            except (KeyError, ValueError, Unsupported) as error:
                self._why_not = f"its caches cannot be stored: {error}"
        if self._layout is None:
            self._refuse()
            return
        self._places = {one.name: at for at, one in enumerate(self._layout.layers)}
        self._spaces = Spaces(self._config, self._options, [self._rank()], "worker")
        self._saver = Saver(self._options.save_queue_bytes)
        self._loader = _Loader(self._layout.device)
        self._pinning = Pinning(self._layout.device, log) if self._options.pin else None

    def hello(self) -> Hello:
        layout = self._layout
        if layout is None:
            return Hello((), "", 0, self._why_not)
        return Hello(
            layout.space_layers(),
            salt_of(self._config, layout),
            layout.bytes_per_token,
            block_tokens=layout.block_tokens,
        )

    def before_step(self, work: Work) -> None:
        """Takes rows out of pages that somebody may write from this step on."""
        self._close_open()
        self._lost.append(set())
        self._save(work.parting)

    def start_loads(self, loads: Sequence[Load]) -> None:
        until = time.monotonic() + self._options.load_deadline_ms / 1000
        for load in loads:
            if self._loader is None or not load.beside:
                self._open.append(self._loading(load, until))
            else:  # its turn may come late: the deadline is that of all of it
                self._loader.submit(load.request_id, lambda load=load: self._loading(load, until))

    def wait_for_layer(self, name: str) -> None:
        at = self._places.get(name)
        if at is not None:
            for loading in self._open:
                loading.fill(at)

    def after_forward(self, work: Work) -> None:
        """Copies out the rows that are computed now, and leaves them to the saver."""
        self._close_open()
        self._save(work.saves)

    def take_loaded(self) -> tuple[set[str], set[str]]:
        """Returns the requests whose loads beside the steps have ended, and those of them that are
        to be computed from their beginning."""
        ended = [] if self._loader is None else self._loader.take()
        for one in ended:
            self._lost[-1] |= one.lost
        failed = {one.request_id for one in ended if one.failed}
        if failed:
            log.warning("%d loads failed, their requests are computed", len(failed))
        return {one.request_id for one in ended}, failed

    def take_lost(self) -> set[int]:
        """Returns the pages that loads left unfilled in this step."""
        return set(self._lost[-1])

    def report(self) -> Report | None:
        with self._saved_lock:
            saved, self._saved = self._saved, {}
        return Report(saved) if saved else None

    def close(self) -> None:
        self._close_open()
        if self._saver is not None and not self._saver.settle(_SETTLE_S):
            log.warning("the last saves did not end within %s s", _SETTLE_S)
        if self._loader is not None:
            self._loader.close()
        for held in (self._spaces, self._refusal):
            if held is not None:
                held.close()

    def _rank(self) -> Rank:
        parallel = self._config.parallel_config
        world = parallel.tensor_parallel_size
        rank = parallel.rank % (world * parallel.pipeline_parallel_size)
        return Rank(
            (rank % world, world), (rank // world, parallel.pipeline_parallel_size), self.hello()
        )

    def _loading(self, load: Load, until: float) -> Loading:
        assert self._layout is not None
        return Loading(load, self._spaces, self._layout, self._options, until, self._pinning)

    def _close_open(self) -> None:
        for loading in self._open:
            self._lost[-1] |= loading.close()
        self._open.clear()

    def _save(self, saves: Sequence[Save]) -> None:
        spaces, saver, layout = self._spaces, self._saver, self._layout
        if spaces is None or saver is None or layout is None:
            return
        lost = set().union(*self._lost)
        taken = []
        for save in saves:
            if spaces.is_silent or lost.intersection(save.pages[0].tolist()):
                self._done(save, 0)
            else:
                taken.append(self._take(save, layout))
        held = sum(one.nbytes for one in taken)
        if taken and not saver.submit(lambda: self._store(taken, spaces, layout), held):
            for one in taken:
                self._done(one.save, 0)
            if not self._said_full:
                log.warning("prefixd is slower than this server computes: not all of it is stored")
            self._said_full = True

    def _take(self, save: Save, layout: Layout) -> Taken:
        if save.begin == save.end:
            return Taken(save, [])
        rows, states = layout.take(save), layout.take_states(save)
        return Taken(save, rows, states, copied(layout.device))

    def _store(self, taken: Sequence[Taken], spaces: Spaces, layout: Layout) -> None:
        for one in taken:
            end = 0
            try:
                end = store(one, spaces, layout, self._options)
            finally:
                self._done(one.save, end)

    def _done(self, save: Save, end: int) -> None:
        if self._reports:
            with self._saved_lock:
                self._saved[save.number] = end

    def _refuse(self) -> None:
        name = self._options.model_name or self._config.model_config.model
        log.warning("prefixd does not hold caches of %s: %s", name, self._why_not)
        self._refusal = prefixd.connect(self._options.address, token_file=self._options.token_file)
        self._refusal.not_shared(str(name), self._why_not)


@dataclass(frozen=True)
class _Ended:
    request_id: str
    lost: set[int]  # pages that are not filled
    failed: bool


class _Loader:
    """A thread that fills pages beside the engine's steps, one request after another."""

    def __init__(self, device: torch.device) -> None:
        self._beside = Beside(device)
        self._waiting: queue.SimpleQueue[tuple[str, Any, Any] | None] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[_Ended] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="prefixd-loader", daemon=True).start()

    def submit(self, request_id: str, begin: Any) -> None:
        self._waiting.put((request_id, begin, self._beside.mark()))

    def take(self) -> list[_Ended]:
        """Returns the loads that ended since it was called last."""
        ended = []
        while not self._ended.empty():
            ended.append(self._ended.get())
        return ended

    def close(self) -> None:
        self._waiting.put(None)

    def _run(self) -> None:
        while (one := self._waiting.get()) is not None:
            request_id, begin, mark = one
            loading = begin()
            with self._beside.after(mark):
                loading.fill_all()
            lost = loading.close()
            self._ended.put(_Ended(request_id, lost, loading.failed))
