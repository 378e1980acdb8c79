"""The connector in a worker of vLLM: fills pages from prefixd and stores what was computed."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch

import prefixd

from ..engine.cpus import unbound_threads
from ..engine.saver import Saver
from ..engine.tensors import Beside, copied
from .identity import Rank, why_not_shared
from .loading import Loading
from .messages import Hello, Load, Report, Save, Work
from .options import Options
from .pages import LayerPages, WholePages, pages_of
from .saving import Taken, store
from .spaces import Spaces

log = logging.getLogger("vllm.prefixd")

_SETTLE_S = 5.0  # that a shutdown waits for saves


class WorkerSide:
    """Calls come from the thread that runs the model, one step after another."""

    def __init__(self, vllm_config: Any, kv_cache_config: Any, options: Options) -> None:
        self._config, self._options = vllm_config, options
        self._group = kv_cache_config.kv_cache_groups[0]
        self._page = self._group.kv_cache_spec.block_size
        self._why_not = why_not_shared(vllm_config, kv_cache_config)
        self._layers: list[LayerPages] = []
        self._places: dict[str, int] = {}  # of layers, by name
        self._spaces: Spaces | None = None
        self._refusal: prefixd.Client | None = None
        self._saver: Saver | None = None
        self._loader: _Loader | None = None
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
                self._layers = [self._look_at(name, caches) for name in self._group.layer_names]
            except (KeyError, ValueError) as error:
                self._why_not = f"its caches cannot be stored: {error}"
        if self._why_not:
            self._refuse()
            return
        self._places = {name: at for at, name in enumerate(self._group.layer_names)}
        self._spaces = Spaces(self._config, self._options, [self._rank()], "worker")
        device = self._layers[0].cache.device
        self._saver, self._loader = Saver(self._options.save_queue_bytes), _Loader(device)

    def hello(self) -> Hello:
        if self._why_not:
            return Hello((), "", 0, self._why_not)
        layers = tuple(pages.layer() for pages in self._layers)
        per_page = sum(pages.cache[0].nbytes for pages in self._layers)
        return Hello(layers, self._layout(), per_page // self._page)

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

    def take_loaded(self) -> set[str]:
        """Returns the requests whose loads beside the steps have ended."""
        if self._loader is None:
            return set()
        ended = self._loader.take()
        for _, lost in ended:
            self._lost[-1] |= lost
        return {request_id for request_id, _ in ended}

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

    def _look_at(self, name: str, caches: dict[str, torch.Tensor]) -> LayerPages:
        module = self._config.compilation_config.static_forward_context[name]
        spec = self._group.kv_cache_spec
        spec = getattr(spec, "kv_cache_specs", {}).get(name, spec)
        options, heads, dim = self._options, spec.num_kv_heads, spec.head_size
        return pages_of(module, caches[name], heads, dim, options.rows, options.bits)

    def _rank(self) -> Rank:
        parallel = self._config.parallel_config
        world = parallel.tensor_parallel_size
        rank = parallel.rank % (world * parallel.pipeline_parallel_size)
        return Rank(
            (rank % world, world), (rank // world, parallel.pipeline_parallel_size), self.hello()
        )

    def _layout(self) -> str:
        """Returns what sets whole pages apart from those of another backend or machine; "" if every
        layer is stored as rows."""
        whole = [
            (name, pages.cache)
            for name, pages in zip(self._group.layer_names, self._layers)
            if isinstance(pages, WholePages)
        ]
        if not whole:
            return ""
        kinds = []
        for name, cache in whole:
            module = self._config.compilation_config.static_forward_context[name]
            backend = type(module.impl).__name__
            isa = getattr(module, "isa", "")
            kinds.append(f"{backend} {isa} {cache.dtype} {list(cache.shape[1:])}")
        return f"{self._config.cache_config.cache_dtype}: " + "; ".join(kinds)

    def _loading(self, load: Load, until: float) -> Loading:
        return Loading(load, self._spaces, self._layers, self._page, self._options, until)

    def _close_open(self) -> None:
        for loading in self._open:
            self._lost[-1] |= loading.close()
        self._open.clear()

    def _save(self, saves: Sequence[Save]) -> None:
        spaces, saver = self._spaces, self._saver
        if spaces is None or saver is None:
            return
        lost = set().union(*self._lost)
        taken = []
        for save in saves:
            if spaces.is_silent or lost.intersection(save.pages.tolist()):
                self._done(save, 0)
            else:
                taken.append(self._take(save))
        held = sum(one.nbytes for one in taken)
        if taken and not saver.submit(lambda: self._store(taken, spaces), held):
            for one in taken:
                self._done(one.save, 0)
            if not self._said_full:
                log.warning("prefixd is slower than this server computes: not all of it is stored")
            self._said_full = True

    def _take(self, save: Save) -> Taken:
        if save.begin == save.end:
            return Taken(save, [])
        pages = torch.from_numpy(save.pages[save.begin // self._page :].astype("int64"))
        layers = [layer.take(pages) for layer in self._layers]
        return Taken(save, layers, copied(self._layers[0].cache.device))

    def _store(self, taken: Sequence[Taken], spaces: Spaces) -> None:
        for one in taken:
            end = 0
            try:
                end = store(one, spaces, self._layers, self._options)
            finally:
                self._done(one.save, end)

    def _done(self, save: Save, end: int) -> None:
        if self._reports:
            with self._saved_lock:
                self._saved[save.number] = end

    def _refuse(self) -> None:
        name = self._options.model_name or self._config.model_config.model
        log.warning("prefixd does not hold caches of %s: %s", name, self._why_not)
        self._refusal = prefixd.connect(
            self._options.address, token_file=self._options.token_file
        )
        self._refusal.not_shared(str(name), self._why_not)


class _Loader:
    """A thread that fills pages beside the engine's steps, one request after another."""

    def __init__(self, device: torch.device) -> None:
        self._beside = Beside(device)
        self._waiting: queue.SimpleQueue[tuple[str, Any, Any] | None] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[tuple[str, set[int]]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="prefixd-loader", daemon=True).start()

    def submit(self, request_id: str, begin: Any) -> None:
        self._waiting.put((request_id, begin, self._beside.mark()))

    def take(self) -> list[tuple[str, set[int]]]:
        """Returns the requests whose loads ended, and the pages that each left unfilled."""
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
            self._ended.put((request_id, loading.close()))
