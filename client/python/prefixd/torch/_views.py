"""Leased pages as tensors in place."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from .. import _abi
from .._errors import Error
from .._lease import Lease, _Held, _unit_bytes
from .._planes import Tensor

_DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "uint16": torch.bfloat16,  # as NumPy, which has none, is given it
    "uint32": torch.uint32,
    "uint8": torch.uint8,
}


class PageTensor(torch.Tensor):
    """A tensor over memory that must not be written. Any operation that would write there raises
    Error; views of it are PageTensors, copies are ordinary tensors."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        for at, argument in enumerate(func._schema.arguments):
            alias = argument.alias_info
            if alias is not None and alias.is_write:
                written = args[at] if at < len(args) else kwargs.get(argument.name)
                for one in written if isinstance(written, (list, tuple)) else (written,):
                    if isinstance(one, cls):
                        raise Error(f"{func}: leased pages cannot be written")
        with torch._C._DisableTorchDispatch():
            out = func(*args, **kwargs)
        aliases = any(one.alias_info is not None for one in func._schema.returns)
        return _wrapped(out) if aliases else out

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"PageTensor({self.clone()!r})"

    def tolist(self) -> Any:
        return self.clone().tolist()

    def __dlpack__(self, **options: Any) -> Any:
        raise Error("dlpack: leased pages cannot be written, and whoever takes them could: clone()")


def _wrapped(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(map(_wrapped, value))
    if type(value) is torch.Tensor:
        return torch.Tensor._make_subclass(PageTensor, value)
    return value


class Block:
    """One layer of one KV block in place, as tensors over the leased page that cannot be written.

    Each is [kv_heads, tokens, row]: codes, scales and biases, of which raw and ggml formats have
    the first alone; codes of MLX's formats are uint32, ggml's uint8. In a tiled page K and V are
    one tensor of bytes each, [kv_heads, unit].

    The tensors keep the page leased: it goes back when the lease is released and they are gone.
    """

    __slots__ = ("begin", "tokens", "format", "key", "value")

    def __init__(
        self, begin: int, entry: _abi.Block, tensors: tuple[Tensor, Tensor], held: _Held
    ) -> None:
        self.begin: int = begin  # position of the block's first token
        self.tokens: int = entry.tokens
        self.format: int = entry.format  # index into the layer's formats
        key, value = tensors
        sizes = [side.heads * _unit_bytes(side, entry.page_tokens) for side in tensors]
        memory = (ctypes.c_ubyte * sum(sizes)).from_address(entry.units)
        setattr(memory, "held", held)  # the storage of the tensors keeps the memory, it the lease
        page = torch.frombuffer(memory, dtype=torch.uint8)
        self.key: tuple[torch.Tensor, ...] = _parts(page[: sizes[0]], key, entry)
        self.value: tuple[torch.Tensor, ...] = _parts(page[sizes[0] :], value, entry)


def blocks(lease: Lease, layer: int) -> list[Block]:
    """Returns the pages of `layer` in place, up to the restorable tokens; copies nothing. Leaves
    out a sliding layer's blocks between its sinks and its window. Waits for the layer."""
    return [Block(*page) for page in lease._leased("blocks", layer)]


def _parts(units: torch.Tensor, tensor: Tensor, entry: _abi.Block) -> tuple[torch.Tensor, ...]:
    if not tensor.parts:
        return ()
    heads = units.view(tensor.heads, -1)
    if tensor.tiled:
        return (_wrapped(heads),)
    slots = entry.page_tokens
    if tensor.transposed:  # each head is [dim, tokens]
        part = tensor.parts[0]
        whole = heads[:, : slots * tensor.row_bytes].view(_DTYPES[part.dtype.name])
        turned = whole.view(tensor.heads, part.row_elements, slots).transpose(1, 2)
        return (_wrapped(turned[:, : entry.tokens]),)
    parts, at = [], 0
    for part in tensor.parts:
        end = at + slots * part.row_bytes
        rows = heads[:, at:end].view(_DTYPES[part.dtype.name])
        rows = rows.view(tensor.heads, slots, part.row_elements)
        parts.append(_wrapped(rows[:, : entry.tokens]))
        at = end
    return tuple(parts)
