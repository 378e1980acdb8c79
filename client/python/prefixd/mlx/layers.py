"""LayerPages: one layer's rows between the engine's tensors and prefixd's pages, one copy each
way."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import prefixd

from .convert import Rows, Tensors, to_numpy
from .geometry import DTYPES, LayerShape
from .options import RAW, TensorFormat


class Shorter(Exception):
    """A lease no longer has what it had: the request is computed in full."""


@dataclass(frozen=True)
class LayerPages:
    shape: LayerShape
    ladder: tuple[TensorFormat, ...]  # finest first

    def layer(self) -> prefixd.FullLayer:
        return prefixd.FullLayer(
            kv_heads=self.shape.kv_heads,
            key_dim=self.shape.key_dim,
            value_dim=self.shape.value_dim,
            formats=[self._format(form) for form in self.ladder],
        )

    def names(self, forms: Iterable[TensorFormat]) -> list[str]:
        """Of formats of the ladder, as acquire() and reserve() want them."""
        return [self._format(form).name for form in forms]

    def bytes_per_token(self, form: TensorFormat) -> int:
        shape, item = self.shape, self.shape.dtype.size
        return shape.kv_heads * sum(
            form.row_bytes(d, item) for d in (shape.key_dim, shape.value_dim)
        )

    def gather(self, lease: prefixd.Lease, layer: int, count: int) -> list[Rows]:
        """Tokens [0, count) as runs of one format each, bit for bit as they were stored."""
        runs = [run for run in lease.runs(layer) if run[0] < count]
        if not runs or runs[-1][1] < count:
            raise Shorter(f"layer {layer} has fewer than {count} tokens by now")
        return [
            self._run(lease, layer, begin, min(end, count), self.ladder[form])
            for begin, end, form in runs
        ]

    def write(self, plan: prefixd.Plan, layer: int, begin: int, rows: Rows) -> None:
        """Rows from token `begin` on. Requires: in the plan's format."""
        plan.write_packed(
            layer,
            begin,
            key=[to_numpy(tensor) for tensor in rows.key],
            value=[to_numpy(tensor) for tensor in rows.value],
        )

    def _format(self, form: TensorFormat) -> prefixd.Format:
        dtype = DTYPES[self.shape.dtype]
        if form == RAW:
            return prefixd.raw(dtype)
        return prefixd.mlx_affine(form.bits, form.group_size, dtype)

    def _run(
        self, lease: prefixd.Lease, layer: int, begin: int, end: int, form: TensorFormat
    ) -> Rows:
        sides = [
            self._room(dim, end - begin, form) for dim in (self.shape.key_dim, self.shape.value_dim)
        ]
        key_out, value_out = ([np.array(t, copy=False) for t in side] for side in sides)
        if lease.gather(layer, end - begin, begin=begin, out=(key_out, value_out)) is None:
            raise Shorter(f"layer {layer} cannot be copied: {lease.error}")
        key, value = (self._typed(side, form) for side in sides)
        return Rows(key, value, form)

    def _room(self, dim: int, tokens: int, form: TensorFormat) -> list[mx.array]:
        """MLX's own memory to be written into; its contents mean nothing yet."""
        heads = (1, self.shape.kv_heads, tokens)
        element = mx.uint16 if self.shape.dtype == mx.bfloat16 else self.shape.dtype
        if form == RAW:
            room = [mx.zeros((*heads, dim), element)]
        else:
            groups = (*heads, dim // form.group_size)
            room = [mx.zeros((*heads, dim * form.bits // 32), mx.uint32)]
            room += [mx.zeros(groups, element), mx.zeros(groups, element)]
        mx.eval(room)
        return room

    def _typed(self, side: list[mx.array], form: TensorFormat) -> Tensors:
        """The same bits as the model's data type."""
        dtype = self.shape.dtype
        return tuple(t if t.dtype in (mx.uint32, dtype) else t.view(dtype) for t in side)
