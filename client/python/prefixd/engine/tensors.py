"""Tensors between a model's device and NumPy arrays, which prefixd reads and fills in place."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}

Ready = Callable[[], None]
"""Waits, on any thread, until a device has done what it was told by then."""


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor in host memory: itself, or a copy that came through pinned memory. Waits
    for what its device still computes of it on the current stream."""
    if tensor.device.type == "cpu":
        return tensor
    if tensor.device.type != "cuda":
        return tensor.cpu()
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    torch.cuda.current_stream(tensor.device).synchronize()
    return host


def to_host_behind(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor in host memory: itself, or for a GPU pinned memory that is filled once
    copied() of its device says so. The copy is ordered behind what the current stream was told so
    far, and nothing on that stream waits for it."""
    if tensor.device.type != "cuda":
        return to_host(tensor)
    stream = _copies(tensor.device)
    stream.wait_stream(torch.cuda.current_stream(tensor.device))
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    with torch.cuda.stream(stream):
        host.copy_(tensor, non_blocking=True)
    tensor.record_stream(stream)
    return host


def copied(device: torch.device) -> Ready:
    """Returns what waits until all copies of to_host_behind() so far have arrived."""
    if device.type != "cuda":
        return lambda: None
    return _copies(device).record_event().synchronize


def computed(device: torch.device) -> Ready:
    """Returns what waits for all that the current stream was told so far."""
    if device.type != "cuda":
        return lambda: None
    return torch.cuda.current_stream(device).record_event().synchronize


def room(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Returns host memory to fill for to_device(). Its contents mean nothing yet."""
    return torch.empty(shape, dtype=dtype, pin_memory=device.type == "cuda")


def to_device(host: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Returns what room() gave, on the device. On the CPU it is the same tensor. A copy to a GPU is
    ordered before what the current stream does next; PyTorch keeps pinned memory until then."""
    return host if device.type == "cpu" else host.to(device, non_blocking=True)


def index_on(device: torch.device, index: torch.Tensor) -> torch.Tensor:
    """Returns an index from host memory on the device. Does not wait for the device, which copies
    of memory that is not pinned do."""
    if device.type != "cuda" or index.device.type != "cpu":
        return index.to(device)
    return index.pin_memory().to(device, non_blocking=True)


def as_numpy(tensor: torch.Tensor) -> NDArray[Any]:
    """Returns a view of a tensor in host memory. NumPy has no bfloat16: its bits are uint16."""
    tensor = tensor.detach()
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def bits_of(tensor: torch.Tensor) -> NDArray[Any]:
    """Returns a view of the bits of the elements of a tensor in host memory, of any type."""
    return tensor.detach().view(_BITS[tensor.element_size()]).numpy()


def bytes_of(tensor: torch.Tensor) -> NDArray[np.uint8]:
    """Returns the bytes of a tensor in host memory, in the order of its elements."""
    return as_numpy(tensor.detach().contiguous().flatten().view(torch.uint8))


class Beside:
    """Lets a thread work on a device beside the thread that runs the model, on a stream of its own.
    On the CPU there is nothing to order."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def mark(self) -> torch.cuda.Event | None:
        """Notes what the calling thread's current stream was told so far."""
        if self._stream is None:
            return None
        return torch.cuda.current_stream(self._device).record_event()

    @contextlib.contextmanager
    def after(self, mark: torch.cuda.Event | None) -> Iterator[None]:
        """What the block tells the device comes behind the mark, and is done when it ends."""
        if self._stream is None or mark is None:
            yield
            return
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(mark)
            try:
                yield
            finally:
                self._stream.synchronize()


@functools.cache
def _copies(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
