"""A GPU as libprefixd_cuda.so knows it, one for each device of this process."""

from __future__ import annotations

import ctypes
import threading

import torch

from .. import _cuda
from .._client import Client
from .._errors import Error
from .._lease import Lease

_lock = threading.Lock()
_gpus: dict[int, Gpu] = {}


class Gpu:
    """Thread-safe. gpu() gives it; it lives as long as the process."""

    def __init__(self, index: int) -> None:
        self.lib = _cuda.library()
        if self.lib.why_absent:
            raise Error(f"gpu: {self.lib.why_absent}")
        self.device = torch.device("cuda", index)
        torch.cuda.init()  # type: ignore[no-untyped-call]
        pointer = self.lib.open(ctypes.byref(_cuda.Options(device=index)))
        if not pointer:
            raise Error(f"gpu: {self.lib.error()}")
        self.pointer: int = pointer
        self._keeps = False

    def __repr__(self) -> str:
        return f"<prefixd.torch.Gpu {self.device}>"

    @property
    def keeps_pages(self) -> bool:
        return self._keeps

    def keep_pages(self, budget_bytes: int) -> None:
        """Reserves device memory for pages that stay there, shared by all leases: what one load
        brought, a later one finds. Once for each GPU. Raises Error if it does not have the room."""
        if self.lib.keep_pages(self.pointer, budget_bytes):
            raise Error(f"keep_pages: {self.lib.error()}")
        self._keeps = True

    def forget_pages(self) -> None:
        """No page that is kept now is found again."""
        self.lib.forget_pages(self.pointer)

    def page_counts(self) -> dict[str, int]:
        """Returns what keep_pages() has been worth: hits, misses, bytes, evictions."""
        counts = _cuda.PageCounts()
        self.lib.page_state(self.pointer, ctypes.byref(counts))
        return {field[0]: getattr(counts, field[0]) for field in counts._fields_[1:]}

    def pin(
        self, client: Client, lease: Lease, *, background: bool = False, pause_us: int = 0
    ) -> Pinned | None:
        """Pins the daemon's memory, so that loads read it where it lies. `lease`: any of the
        client's that is read in place; its pages stay leased until the memory is unpinned. Returns
        None where no memory is shared. Pinning allocates the whole arena."""
        entries = [
            one
            for layer in range(len(lease._layers))
            if lease._layers[layer]
            for one in lease._table(lease._pages("pin"), layer)
            if one.units and one.arena_offset != 2**64 - 1
        ]
        if not entries:
            return None
        options = _cuda.PinOptions(background=background, pause_us=pause_us)
        return Pinned(
            self,
            lease,
            entries[0].units - entries[0].arena_offset,
            client.stats.arena_bytes,
            options,
        )


class Pinned:
    """The daemon's memory, pinned. unpin() once nothing on the GPU reads it any more."""

    def __init__(
        self, gpu: Gpu, lease: Lease, base: int, size: int, options: _cuda.PinOptions
    ) -> None:
        self._gpu = gpu
        self._held = lease._pages("pin")  # keeps the mapping
        self._pointer = gpu.lib.pin(gpu.pointer, base, size, ctypes.byref(options))
        if not self._pointer:
            raise Error(f"pin: {gpu.lib.error()}")

    def progress(self) -> tuple[int, int, str]:
        """Returns the bytes that are pinned, those of the arena, and why some were refused."""
        state = _cuda.PinState()
        self._gpu.lib.pin_progress(self._pointer, ctypes.byref(state))
        return state.pinned_bytes, state.bytes, state.why_refused.decode(errors="replace")

    def unpin(self) -> None:
        if self._pointer:
            torch.cuda.synchronize(self._gpu.device)
            self._gpu.lib.unpin(self._pointer)
            self._pointer = None
            del self._held


def gpu(device: torch.device | int | str = 0) -> Gpu:
    """Returns the GPU of a device. Raises Error where there is none, or no libprefixd_cuda.so."""
    index = device if isinstance(device, int) else torch.device(device).index
    if index is None:
        index = torch.cuda.current_device()
    with _lock, torch.cuda.device(index):
        if index not in _gpus:
            _gpus[index] = Gpu(index)
        return _gpus[index]


def why_no_gpu(device: torch.device | int | str = 0) -> str:
    """Returns why gpu() raises; "" if it does not."""
    try:
        gpu(device)
    except (Error, RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        return str(error)
    return ""
