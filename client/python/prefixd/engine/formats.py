"""The formats in which adapters store rows, and the ladder of formats that their spaces have in
common."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .._formats import Format, mlx_affine, raw

BITS = (2, 3, 4, 5, 6, 8)
GROUP_SIZES = (32, 64, 128)
_USUAL_BITS = (8, 6, 4)


@dataclass(frozen=True)
class TensorFormat:
    """How a layer's K and V are packed. `bits` 0: raw, as the model computes them."""

    bits: int = 0  # bits of K
    group_size: int = 0
    value_bits: int = 0  # bits of V; 0: as K

    @property
    def of_value(self) -> TensorFormat:
        """The format of V, as that of a K."""
        return TensorFormat(self.value_bits or self.bits, self.group_size)

    @property
    def bits_text(self) -> str:
        """ "8", or "8,4" where V has other bits than K."""
        return f"{self.bits},{self.value_bits}" if self.value_bits else str(self.bits)

    def row_bytes(self, dim: int, item_bytes: int) -> int:
        """Returns the bytes of one token's row of one head of K: codes, scales and biases."""
        if not self.bits:
            return dim * item_bytes
        return dim * self.bits // 8 + 2 * item_bytes * (dim // self.group_size)


RAW = TensorFormat()


def quantized(bits: int, group_size: int, value_bits: int | None = None) -> TensorFormat:
    """Returns the format of so many bits for K and for V. `value_bits` None: as K."""
    other = value_bits or bits
    return TensorFormat(bits, group_size, 0 if other == bits else other)


def ladder(written: TensorFormat) -> tuple[TensorFormat, ...]:
    """Returns the formats of a space, finest first, for a worker that writes `written`.

    Workers that share must have them in common. The usual formats are in it whether this worker
    uses them or not, so that a worker keeps its space when its bits change.
    """
    group = written.group_size or 64
    if written.bits in (0, *_USUAL_BITS) and not written.value_bits:
        return (RAW, *(TensorFormat(bits, group) for bits in _USUAL_BITS))
    return (RAW, written)


def fitting(formats: Iterable[TensorFormat], dims: Iterable[int]) -> tuple[TensorFormat, ...]:
    """Returns the formats whose groups divide rows of every width in `dims`."""
    widths = set(dims)
    return tuple(
        form for form in formats if form == RAW or all(dim % form.group_size == 0 for dim in widths)
    )


def as_format(form: TensorFormat, dtype: str) -> Format:
    """Returns K's and V's format of a space. `dtype`: of raw elements, scales and biases."""
    if form == RAW:
        return raw(dtype)
    value_bits = form.value_bits or form.bits
    return mlx_affine(form.bits, form.group_size, dtype, value_bits=value_bits)
