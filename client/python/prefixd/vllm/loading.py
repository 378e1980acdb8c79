"""Loading: the pages of one request, filled from prefixd layer by layer."""

from __future__ import annotations

import logging
import time

import prefixd

from ..engine.pinning import Pinning
from .layout import Layout
from .messages import Load
from .options import Options
from .spaces import Spaces

log = logging.getLogger("vllm.prefixd")


class Loading:
    """Holds a lease until close(). A load that gives less than it should is no error: close()
    says which pages are not filled, and vLLM computes them. Windows and states are right at the
    end of the load alone: it gives all of them or fails. `until`: no page is waited for beyond that
    time, by time.monotonic()."""

    def __init__(
        self,
        load: Load,
        spaces: Spaces | None,
        layout: Layout,
        options: Options,
        until: float,
        pinning: Pinning | None = None,
    ) -> None:
        self.load = load
        self._layout = layout
        self._end = load.end  # up to which token pages are filled
        self._filled: set[int] = set()
        self._spaces = spaces
        self._lease: prefixd.Lease | None = None
        try:
            self._lease = self._acquire(options, until)
            if self._lease is not None and pinning is not None:
                pinning.pin(self._lease)
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
            if self._layout.fill(lease, layer, load.pages, load.begin, self._end):
                return
            before = self._end
            self._shorten(lease.wait(layer))
            if self._end == before:
                self._end = load.begin

    def fill_all(self) -> None:
        for layer in range(len(self._layout.layers)):
            self.fill(layer)

    def close(self) -> set[int]:
        """Gives the lease back. Returns the pages that are not filled; if one of several groups
        has the request, or if it is right as a whole alone, `failed` says all."""
        load = self.load
        if len(self._filled) < len(self._layout.layers):
            self._end = load.begin
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.release(used_tokens=self._end if self._end > load.begin else 0)
        if not self._layout.groups.cuts_anywhere:
            return set()
        return set(load.pages[0][max(self._end, load.begin) // self._layout.groups.page :].tolist())

    @property
    def failed(self) -> bool:
        """True if the request is to be computed from its beginning."""
        return self._end < self.load.end and not self._layout.groups.cuts_anywhere

    def _acquire(self, options: Options, until: float) -> prefixd.Lease | None:
        load, spaces = self.load, self._spaces
        opened = (
            None
            if spaces is None or spaces.is_silent
            else spaces.of(load.prompt.salt, load.prompt.adapter)
        )
        left_ms = int((until - time.monotonic()) * 1000)
        if spaces is None or not opened or left_ms <= 0:
            self._end = load.begin
            return None
        with prefixd.trace(*load.prompt.trace):
            lease = opened[0].acquire(
                load.prompt.tokens,
                content=load.prompt.content,
                max_cached_tokens=load.end,
                readable=0,
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
        groups = self._layout.groups
        end = tokens // groups.page * groups.page
        if not groups.cuts_anywhere and end < self.load.end:
            end = 0
        self._end = max(min(self._end, end), self.load.begin)
