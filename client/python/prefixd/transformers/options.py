"""How caches are stored, and how long prefixd may take."""

from __future__ import annotations

from dataclasses import dataclass

from ..engine import formats
from ..engine.formats import BITS, GROUP_SIZES, RAW, TensorFormat


@dataclass(frozen=True)
class Options:
    """`Options()` stores K and V bit for bit as the model computes them.

    bits: store K and V quantized by MLX's affine rule, to 2, 3, 4, 5, 6 or 8 bits. The model
      computes on the dequantized rows. value_bits: bits of V, if not as K. group_size: 32, 64, 128.
    min_quantize_tokens: sequences shorter than that are stored raw.
    read: bits of quantized pages of other processes that this one accepts, at `group_size`.
    salt: caches are shared only under the same salt. model_name: for people; default: the name of
      the folder. Processes share under one name.
    deadline_ms: of a lookup, and again of what is asked before storing. load_deadline_ms: of pages
      that prefixd reads from SSD. store_deadline_ms: of each step of storing; the first late step
      ends it. wait_pending_ms: how long a lookup waits while another worker computes its tokens.
    pin: with a model on a GPU, pin the daemon's memory in the background, so that pages come
      straight from there: about twice as fast.
    write_behind: store() returns at once, a thread stores.
    """

    bits: int | None = None
    value_bits: int | None = None
    group_size: int = 64
    min_quantize_tokens: int = 0
    read: tuple[int, ...] = ()
    salt: str = ""
    model_name: str = ""
    deadline_ms: int = 200
    load_deadline_ms: int = 2000
    store_deadline_ms: int = 2000
    wait_pending_ms: int = 0
    pin: bool = True
    write_behind: bool = False

    def __post_init__(self) -> None:
        for name in ("bits", "value_bits"):
            if getattr(self, name) not in (None, *BITS):
                text = ", ".join(map(str, BITS))
                raise ValueError(f"{name}: {getattr(self, name)}, must be one of {text}")
        if self.group_size not in GROUP_SIZES:
            text = ", ".join(map(str, GROUP_SIZES))
            raise ValueError(f"group_size: {self.group_size}, must be one of {text}")
        if self.value_bits is not None and self.bits is None:
            raise ValueError("value_bits without bits")
        for bits in self.read:
            if TensorFormat(bits, self.group_size) not in self.ladder:
                text = ", ".join(form.bits_text for form in self.ladder[1:])
                raise ValueError(f"read: {bits} bits, must be of {text}")

    @property
    def written(self) -> TensorFormat:
        """The format of this process's pages."""
        if self.bits is None:
            return RAW
        return formats.quantized(self.bits, self.group_size, self.value_bits)

    @property
    def ladder(self) -> tuple[TensorFormat, ...]:
        """The formats of the space, finest first."""
        group = TensorFormat(8, self.group_size) if self.bits is None else self.written
        return formats.ladder(group)

    @property
    def readable(self) -> tuple[TensorFormat, ...]:
        """The formats that this process takes: raw rows, its own format, what `read` adds."""
        others = tuple(TensorFormat(bits, self.group_size) for bits in self.read)
        return tuple(f for f in self.ladder if f in (RAW, self.written, *others))
