"""Cache layers whose prefix stays in prefixd's pages: nothing of it is copied while attention is
prefixd's own (attention.py). Whatever else wants the rows gets a copy of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from transformers.cache_utils import DynamicLayer

from ..torch import Table
from .rows import Rows
from .windows import Run, WindowLayer

_KNOWN_WITHOUT_ROWS = {
    torch.Tensor.shape.__get__,  # type: ignore[attr-defined]
    torch.Tensor.dtype.__get__,  # type: ignore[attr-defined]
    torch.Tensor.device.__get__,  # type: ignore[attr-defined]
    torch.Tensor.ndim.__get__,  # type: ignore[attr-defined]
    torch.Tensor.requires_grad.__get__,  # type: ignore[attr-defined]
    torch.Tensor.size,
    torch.Tensor.dim,
}


class PagedTensor(torch.Tensor):
    """Stands for the keys or values that attention is to see. Attention of prefixd reads the pages
    of `layer`; any operation of PyTorch gets the rows, copied once."""

    layer: Paged
    side: int

    @staticmethod
    def of(layer: Paged, side: int, shape: tuple[int, ...], like: torch.Tensor) -> PagedTensor:
        made = torch.Tensor._make_wrapper_subclass(
            PagedTensor, shape, dtype=like.dtype, device=like.device
        )
        made.layer, made.side = layer, side
        return made

    @functools.cached_property
    def rows(self) -> torch.Tensor:
        return self.layer.seen_rows()[self.side]

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            if func in _KNOWN_WITHOUT_ROWS:
                return func(*args, **(kwargs or {}))
            return func(*_with_rows(args), **_with_rows(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return func(*_with_rows(args), **_with_rows(kwargs or {}))


def _with_rows(value: Any) -> Any:
    if isinstance(value, PagedTensor):
        return value.rows
    if isinstance(value, (list, tuple)):
        return type(value)(map(_with_rows, value))
    if isinstance(value, dict):
        return {name: _with_rows(one) for name, one in value.items()}
    return value


class Paged:
    """What the two kinds of layers below have in common. copy_out() makes one an ordinary layer,
    for beams, batches and crops."""

    _table: Table | None = None
    _copy: Callable[[], Rows]
    _tail: Rows
    _dtype: torch.dtype
    _window: int = 0

    def hold(
        self, table: Table, tail: Rows, copy: Callable[[], Rows], dtype: torch.dtype
    ) -> None:
        """Goes on after the tokens of `table`. tail: the rows of its unfinished last block. copy:
        copies out the rows that the leased pages have of the layer."""
        self._table, self._tail, self._copy, self._dtype = table, tail, copy, dtype
        self.is_initialized = True
        self.dtype, self.device = dtype, table.device
        self.cumulative_length = table.tokens

    @property
    def window(self) -> int:
        """Tokens that a token attends on; 0: all."""
        return self._window

    @property
    def table(self) -> Table | None:
        return self._table

    @property
    def keys(self) -> torch.Tensor | None:
        return self._keys if self._table is None else self.all_rows()[1]

    @keys.setter
    def keys(self, keys: torch.Tensor | None) -> None:
        self._keys = keys

    @property
    def values(self) -> torch.Tensor | None:
        return self._values if self._table is None else self.all_rows()[2]

    @values.setter
    def values(self, values: torch.Tensor | None) -> None:
        self._values = values

    @property
    def paged_runs(self) -> list[Run]:
        """The rows that saving needs: those behind the last whole block of the leased pages."""
        assert self._table is not None
        own = self._own()
        if not self._tail.runs:
            return [(self._table.leased_tokens, *own)]
        begin, keys, values = self._tail.runs[0]
        return [(begin, torch.cat([keys, own[0]], -2), torch.cat([values, own[1]], -2))]

    def all_rows(self) -> Run:
        """Returns a copy of the rows that are here: the position of the first, keys, values."""
        assert self._table is not None
        begin, keys, values = self._copy().runs[0]
        own = self._own()
        return begin, torch.cat([keys, own[0]], -2), torch.cat([values, own[1]], -2)

    def seen_rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns copies of the keys and values that the last tokens attend on."""
        _, keys, values = self.all_rows()
        return keys[:, :, -self._seen :], values[:, :, -self._seen :]

    def _own(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns a copy of the rows behind the leased ones."""
        assert self._table is not None
        key, value = self._table.own_rows()
        return key[None], value[None]

    def copy_out(self, device: torch.device | None = None) -> None:
        """Makes the layer an ordinary one, on the device if the model has moved there."""
        if self._table is not None:
            begin, keys, values = self.all_rows()
            self._table = None
            self.keys, self.values = keys.to(device), values.to(device)
            self.device = self.keys.device
            self.cumulative_length = begin + keys.shape[-2]

    def get_seq_length(self) -> int:
        if self._table is None:
            return super().get_seq_length()  # type: ignore[misc]
        return self._table.tokens

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        table = self._table
        others = key_states.dtype != self._dtype or key_states.device != self.device
        if table is None or key_states.shape[0] != 1 or others:
            self.copy_out(key_states.device)
            return super().update(key_states, value_states, *args, **kwargs)  # type: ignore[misc]
        table.append(key_states[0].detach(), value_states[0].detach())
        self.cumulative_length = table.tokens
        new = key_states.shape[-2]
        self._seen = min(self._window - 1 + new, table.tokens) if self._window else table.tokens
        keys, values = (
            PagedTensor.of(self, side, (*one.shape[:2], self._seen, one.shape[3]), one)
            for side, one in enumerate((key_states, value_states))
        )
        return keys, values


def _copies_out(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.copy_out()
        return getattr(super(Paged, self), name)(*args, **kwargs)

    method.__name__ = name
    return method


for _name in (
    "batch_repeat_interleave",
    "batch_select_indices",
    "crop",
    "offload",
    "prefetch",
    "reorder_cache",
    "reset",
):
    setattr(Paged, _name, _copies_out(_name))


class PagedLayer(Paged, DynamicLayer):
    pass


class PagedWindowLayer(Paged, WindowLayer):
    def __init__(self, sliding_window: int, block_tokens: int) -> None:
        super().__init__(sliding_window, block_tokens)
        self._window = sliding_window

    @property
    def runs(self) -> list[Run]:
        return super().runs if self._table is None else self.paged_runs

    def activate_past_recording(self) -> None:
        self.copy_out()
        super().activate_past_recording()
