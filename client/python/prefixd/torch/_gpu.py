"""A GPU as libprefixd_cuda.so knows it, one for each device of this process."""

from __future__ import annotations

import ctypes
import threading
import weakref

import torch

from .. import _abi, _cuda
from .._errors import Error
from .._lease import Lease

_PAUSE_US = 100_000  # a slab of a large arena keeps CUDA's calls waiting for some 10 ms
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
        self._lock = threading.Lock()
        self._pinned: weakref.WeakValueDictionary[int, Pinned] = weakref.WeakValueDictionary()

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
        self, lease: Lease, *, background: bool = False, pause_us: int = 0
    ) -> Pinned | None:
        """Pins the daemon's memory, so that loads read it where it lies: what has pages now, and
        what gets some later, within a second. prefixd knows what is pinned. `lease`: any that is read in place; it may be
        released then. Returns None where no memory is shared."""
        arena = _arena_of(lease)
        return None if arena is None else self._pin(lease, arena, background, pause_us)

    def pin_once(self, lease: Lease) -> Pinned | None:
        """pin() on a thread, once for each mapping: whoever asks for one that is pinned gets the
        same object. Hold it, and let the last one go when leases have another mapping. While a
        slab is pinned, some milliseconds, other CUDA calls of the process wait."""
        arena = _arena_of(lease)
        if arena is None:
            return None
        with self._lock:
            pinned = self._pinned.get(arena.base)
            if pinned is None:
                pinned = self._pin(lease, arena, True, _PAUSE_US)
                self._pinned[pinned.base] = pinned
            else:
                lease._lib.drop_arena(ctypes.byref(arena))
        return pinned

    def _pin(self, lease: Lease, arena: _abi.Arena, background: bool, pause_us: int) -> Pinned:
        options = _cuda.PinOptions(
            slab_bytes=arena.slab_bytes,
            background=background,
            pause_us=pause_us,
            service=arena.service,
            service_stride=arena.service_stride,
            tell=arena.tell,
            teller=arena.teller,
        )
        return Pinned(self, lease._lib, arena, options)


class Pinned:
    """The daemon's memory, pinned. unpin() once nothing on the GPU reads it any more; when the
    object is gone, or the process ends, that waits for the GPU."""

    def __init__(
        self, gpu: Gpu, lib: _abi.Library, arena: _abi.Arena, options: _cuda.PinOptions
    ) -> None:
        self._gpu = gpu
        self.base: int = arena.base
        pointer = gpu.lib.pin(gpu.pointer, arena.base, arena.bytes, ctypes.byref(options))
        if not pointer:
            why = gpu.lib.error()
            lib.drop_arena(ctypes.byref(arena))
            raise Error(f"pin: {why}")
        self._pointer: int | None = pointer
        self._end = weakref.finalize(self, _unpin, gpu, pointer, lib, arena)

    def progress(self) -> tuple[int, int, str]:
        """Returns the bytes that are pinned, those that have memory, and why some were refused."""
        state = _cuda.PinState()
        self._gpu.lib.pin_progress(self._pointer, ctypes.byref(state))
        return state.pinned_bytes, state.bytes, state.why_refused.decode(errors="replace")

    def unpin(self) -> None:
        self._pointer = None
        self._end()


def _arena_of(lease: Lease) -> _abi.Arena | None:
    arena = _abi.Arena()
    absent = lease._lib.lease_arena(lease._pages("pin").pointer, ctypes.byref(arena))
    return None if absent else arena


def _unpin(gpu: Gpu, pointer: int, lib: _abi.Library, arena: _abi.Arena) -> None:
    torch.cuda.synchronize(gpu.device)
    gpu.lib.unpin(pointer)
    lib.drop_arena(ctypes.byref(arena))  # the library reads the mapping until here


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
