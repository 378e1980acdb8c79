"""Loading: the pages of one request, filled from prefixd layer by layer."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import torch

import prefixd

from .messages import Load
from .options import Options
from .pages import LayerPages
from .spaces import Spaces

log = logging.getLogger("vllm.prefixd")


class Loading:
    """Holds a lease until close(). A load that gives less than it should is no error: close()
    says which pages are not filled, and vLLM computes them. `until`: no page is waited for beyond
    that time, by time.monotonic()."""

    def __init__(
        self,
        load: Load,
        spaces: Spaces | None,
        layers: Sequence[LayerPages],
        page: int,
        options: Options,
        until: float,
    ) -> None:
        self.load = load
        self._layers, self._page = layers, page
        self._end = load.end  # up to which token pages are filled
        self._filled: set[int] = set()
        self._spaces = spaces
        self._lease: prefixd.Lease | None = None
        try:
            self._lease = self._acquire(options, until)
        except Exception as error:
            self._lose(error)

    def fill(self, layer: int) -> None:
        """Fills the pages of a layer, once."""
        if layer in self._filled:
            return
        try:
            self._fill(layer)
        except Exception as error:
            self._lose(error)
        self._filled.add(layer)

    def _fill(self, layer: int) -> None:
        load, lease = self.load, self._lease
        if lease is None or self._end <= load.begin:
            return
        self._shorten(lease.wait(layer))
        while self._end > load.begin:
            pages = load.pages[load.begin // self._page : self._end // self._page]
            which = torch.from_numpy(pages.astype("int64"))
            if self._layers[layer].fill(lease, layer, load.begin, self._end, which):
                return
            before = self._end
            self._shorten(lease.wait(layer))
            if self._end == before:
                self._end = load.begin

    def fill_all(self) -> None:
        for layer in range(len(self._layers)):
            self.fill(layer)

    def close(self) -> set[int]:
        """Gives the lease back. Returns the pages that are not filled."""
        if len(self._filled) < len(self._layers):
            self._end = self.load.begin
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.release(used_tokens=self._end if self._end > self.load.begin else 0)
        return set(self.load.pages[max(self._end, self.load.begin) // self._page :].tolist())

    def _acquire(self, options: Options, until: float) -> prefixd.Lease | None:
        load, spaces = self.load, self._spaces
        opened = None if spaces is None or spaces.is_silent else spaces.of(load.prompt.salt, load.prompt.adapter)
        left_ms = int((until - time.monotonic()) * 1000)
        if spaces is None or not opened or left_ms <= 0:
            self._end = load.begin
            return None
        lease = opened[0].acquire(
            load.prompt.tokens,
            content=load.prompt.content,
            max_cached_tokens=load.end,
            deadline_ms=options.lookup_deadline_ms,
            load_deadline_ms=left_ms,
            request_id=load.request_id,
        )
        spaces.heard("" if opened[0].error else lease.error)
        self._shorten(lease.restorable_tokens)
        return lease

    def _lose(self, error: Exception) -> None:
        """Gives all of it up: whatever went wrong, the request is computed."""
        log.warning("a load ended unexpectedly: %s: %s", type(error).__name__, error)
        self._end = self.load.begin

    def _shorten(self, tokens: int) -> None:
        end = tokens // self._page * self._page
        self._end = max(min(self._end, end), self.load.begin)
