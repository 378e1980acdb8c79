"""Carries one layer of a cache between the model's tensors and prefixd's pages: RowPages for K and
V, StatePages for the states of linear attention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Union

import numpy as np
import torch
from transformers.cache_utils import DynamicLayer

from .. import FullLayer, Layer, Lease, Plan, SlidingLayer, StateLayer
from ..engine import rows
from ..engine.formats import RAW, TensorFormat, as_format
from ..engine.spaces import Unsupported
from ..engine.tensors import DTYPES, bytes_of, to_host
from .geometry import RowShape, StateShape
from .paged_layers import PagedLayer
from .rows import Packed, Rows, Shorter
from .windows import Run, WindowLayer


@dataclass(frozen=True)
class RowPages:
    shape: RowShape
    ladder: tuple[TensorFormat, ...]  # finest first
    block_tokens: int

    def layer(self) -> Layer:
        shape, dtype = self.shape, DTYPES[self.shape.dtype]
        heads_and_dims = (shape.kv_heads, shape.key_dim, shape.value_dim)
        formats = [as_format(form, dtype) for form in self.ladder]
        if shape.window:
            return SlidingLayer(*heads_and_dims, formats, window=shape.window)
        return FullLayer(*heads_and_dims, formats)

    def take(self, layer: Any, row: int, pad: int, sequences: int) -> Rows:
        """Returns what a layer of a cache of so many sequences holds of number `row`, behind `pad`
        columns of padding."""
        if self.shape.window:
            if not getattr(layer, "sliding_window", 0) == self.shape.window:
                raise Unsupported(f"a layer keeps no window of {self.shape.window} tokens")
        elif not isinstance(layer, DynamicLayer) or hasattr(layer, "sliding_window"):
            raise Unsupported(f"a layer keeps a {type(layer).__name__}, not every row")
        if isinstance(layer, PagedLayer) and layer.table is not None:
            runs = layer.paged_runs
        elif isinstance(layer, WindowLayer):
            runs = layer.runs
        elif not layer.is_initialized or layer.keys is None:
            runs = []
        else:
            runs = [(layer.get_seq_length() - layer.keys.shape[-2], layer.keys, layer.values)]
        for _, keys, _ in runs:
            if keys.shape[0] != sequences:
                raise Unsupported(f"it holds {keys.shape[0]} sequences, not {sequences}")
        return Rows([run for one in runs if (run := self._of_row(one, row, pad)) is not None])

    def needs(self, count: int) -> tuple[int, int]:
        """Returns the tokens [begin, end) whose rows a cache after `count` tokens has."""
        return (max(count - self.shape.window, 0) if self.shape.window else 0, count)

    def wanted(self, begin: int, end: int, ends: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yields the blocks of tokens [begin, end) to write. `ends`: where sequences end. A lookup
        may also want all but the last token of one."""
        if not self.shape.window:
            yield begin, end
            return
        needs = [self.needs(at - less) for at in ends for less in (0, 1) if at > less]
        for first in range(begin, end, self.block_tokens):
            behind = min(first + self.block_tokens, end)
            if any(need[0] < behind and first < need[1] for need in needs):
                yield first, behind

    def gather(self, lease: Lease, layer: int, count: int) -> Rows:
        """Returns the rows of needs(count). Raises Shorter if the lease has lost some."""
        return self.gather_rows(lease, layer, *self.needs(count))

    def gather_rows(self, lease: Lease, layer: int, begin: int, end: int) -> Rows:
        shape = self.shape
        found = rows.gather(
            lease,
            layer,
            begin,
            end,
            heads=shape.kv_heads,
            dims=(shape.key_dim, shape.value_dim),
            ladder=self.ladder,
            dtype=shape.dtype,
            device=shape.device,
        )
        if found is None:
            raise Shorter(f"layer {layer} has no tokens {begin} to {end} by now {lease.error}")
        return Rows([(begin, *found)], self._packed(lease, layer, begin, end))

    def write(
        self, plan: Plan, layer: int, begin: int, end: int, held: Rows, form: TensorFormat
    ) -> bool:
        """Writes the rows of tokens [begin, end) in `form`. Returns False if some are gone."""
        packed = held.packed
        if packed is not None and packed.form == form and begin <= packed.begin < end:
            stop = min(packed.end, end)
            if not self._write_cut(plan, layer, begin, packed.begin, held):
                return False
            key, value = (
                tuple(plane[:, :, : stop - packed.begin] for plane in side)
                for side in (packed.key, packed.value)
            )
            plan.write_packed(layer, packed.begin, key=key, value=value)
            begin = stop
        return self._write_cut(plan, layer, begin, end, held)

    def _of_row(self, run: Run, row: int, pad: int) -> Run | None:
        at, keys, values = run
        shape = self.shape
        wanted = ((shape.kv_heads, shape.key_dim), (shape.kv_heads, shape.value_dim))
        if keys.dtype != shape.dtype or wanted != tuple((t.shape[1], t.shape[3]) for t in run[1:]):
            raise Unsupported(f"its keys are {keys.dtype} {list(keys.shape)} now")
        first = max(pad - at, 0)  # columns of padding among these
        if first >= keys.shape[2]:
            return None
        return at + first - pad, keys[row : row + 1, :, first:], values[row : row + 1, :, first:]

    @staticmethod
    def _write_cut(plan: Plan, layer: int, begin: int, end: int, held: Rows) -> bool:
        if begin == end:
            return True
        found = held.cut(begin, end)
        if found is None:
            return False
        rows.write(plan, layer, begin, found)
        return True

    def _packed(self, lease: Lease, layer: int, begin: int, end: int) -> Packed | None:
        """Returns the last block of tokens [begin, end) as it is stored, if it is unfinished and
        quantized."""
        first = max(end - end % self.block_tokens, begin)
        for run_begin, run_end, index in lease.runs(layer) if first < end else ():
            form = self.ladder[index]
            first = max(first, run_begin)
            if first < end <= run_end and form != RAW:
                found = lease.gather(layer, end - first, begin=first)
                if found is None:
                    raise Shorter(f"layer {layer} cannot be copied: {lease.error}")
                return Packed(first, end, *found, form)
        return None


@dataclass(frozen=True)
class StatePages:
    shape: StateShape

    def layer(self) -> Layer:
        return StateLayer(self.shape.nbytes)

    def take(self, layer: Any, row: int) -> list[torch.Tensor] | None:
        """Returns copies of the states of sequence `row`, which the model changes in place; None
        where they are not as the model's."""
        found = []
        for one in self.shape.tensors:
            tensor = getattr(layer, one.kind)[one.index]
            if tensor is None or tensor.dtype != one.dtype or tensor.shape[1:] != one.shape[1:]:
                return None
            found.append(tensor[row : row + 1].clone())
        return found

    def gather(self, lease: Lease, layer: int) -> list[torch.Tensor]:
        state = lease.state(layer)
        if state is None:
            raise Shorter(f"layer {layer} has no state by now")
        found, at = [], 0
        for one in self.shape.tensors:
            host = torch.from_numpy(state[at : at + one.nbytes]).view(one.dtype).view(one.shape)
            found.append(host.to(one.device))
            at += one.nbytes
        return found

    def restore(self, layer: Any, states: Sequence[torch.Tensor]) -> None:
        for one, tensor in zip(self.shape.tensors, states, strict=True):
            layer.lazy_initialization(**{one.kind: tensor, "state_idx": one.index})
            getattr(layer, one.kind)[one.index].copy_(tensor)
        for index, previous in enumerate(self.shape.previous):
            layer.has_previous_state[index] = previous

    @staticmethod
    def write(plan: Plan, layer: int, tokens: int, states: Sequence[torch.Tensor]) -> bool:
        parts = [bytes_of(to_host(tensor)) for tensor in states]
        return plan.put_state(layer, tokens, np.concatenate(parts))


Pages = Union[RowPages, StatePages]
Piece = Union[Rows, list[torch.Tensor]]
