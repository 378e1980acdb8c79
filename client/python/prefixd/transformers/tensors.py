"""Tensors between a model's device and NumPy arrays, which prefixd reads and fills in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


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


def room(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Returns host memory to fill for to_device(). Its contents mean nothing yet."""
    return torch.empty(shape, dtype=dtype, pin_memory=device.type == "cuda")


def to_device(host: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Returns what room() gave, on the device. On the CPU it is the same tensor. A copy to a GPU is
    ordered before what the current stream does next; PyTorch keeps pinned memory until then."""
    return host if device.type == "cpu" else host.to(device, non_blocking=True)


def as_numpy(tensor: torch.Tensor) -> NDArray[Any]:
    """Returns a view of a tensor in host memory. NumPy has no bfloat16: its bits are uint16."""
    tensor = tensor.detach()
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def bytes_of(tensor: torch.Tensor) -> NDArray[np.uint8]:
    """Returns the bytes of a tensor in host memory, in the order of its elements."""
    return as_numpy(tensor.detach().contiguous().flatten().view(torch.uint8))
