"""Formats of K and V, layers, RoPE and content, and their ctypes structs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Sequence, TypeVar, Union

import numpy as np

from . import _abi
from ._errors import Error
from ._numbers import _number

_DTYPES: dict[str, tuple[int, np.dtype[Any]]] = {
    "float32": (1, np.dtype(np.float32)),
    "float16": (2, np.dtype(np.float16)),
    "bfloat16": (3, np.dtype(np.uint16)),  # NumPy has no bfloat16: uint16 holds its bits
}
_CODECS = {
    "raw": 1,
    "mlx_affine": 2,
    "q4_0": 3,
    "q4_1": 4,
    "q5_0": 5,
    "q5_1": 6,
    "q8_0": 7,
    "mxfp4": 8,
    "mxfp8": 9,
    "nvfp4": 10,
}
_BLOCK_FLOATS = ("mxfp4", "mxfp8", "nvfp4")
_ROWS, _TILED_PAGES, _TRANSPOSED = 1, 2, 3
_TILED = ("q8_0", "q4_0", "q4_1")


@dataclass(frozen=True)
class TensorFormat:
    """The format of K or V. `dtype` is the type of raw elements, or of MLX's scales and biases."""

    codec: str
    dtype: str = ""
    bits: int = 0
    group_size: int = 0

    @property
    def name(self) -> str:
        """The name: "mlx_affine/8/64", "raw/bfloat16", "q8_0"."""
        if self.codec == "mlx_affine":
            return f"mlx_affine/{self.bits}/{self.group_size}"
        return f"{self.codec}/{self.dtype}" if self.codec == "raw" else self.codec

    @property
    def part_names(self) -> tuple[str, ...]:
        if self.codec in _BLOCK_FLOATS:
            return ("codes", "scales")
        return ("codes", "scales", "biases") if self.codec == "mlx_affine" else ("codes",)

    def part_dtypes(self) -> tuple[np.dtype[Any], ...]:
        """Returns the types of the arrays that gather() returns."""
        if self.codec == "raw":
            return (_DTYPES[self.dtype][1],)
        if self.codec == "mlx_affine":
            element = _DTYPES[self.dtype][1]
            return (np.dtype(np.uint32), element, element)
        if self.codec in _BLOCK_FLOATS:
            return (np.dtype(np.uint32), np.dtype(np.uint8))
        return (np.dtype(np.uint8),)

    @property
    def has_tiled(self) -> bool:
        """True if pages in this format have the layout "tiled"."""
        return self.codec in _TILED or self.codec == "mlx_affine" and self.bits in (4, 8)

    def layout_of(self, page_layout: str, is_value: bool) -> int:
        """Returns this format's layout (PREFIXD_ROWS ...) in a space with pages of
        `page_layout`."""
        if page_layout == "tiled" and self.has_tiled:
            return _TILED_PAGES
        return _TRANSPOSED if page_layout == "transposed" and is_value else _ROWS

    def as_struct(self, layout: int = _ROWS) -> _abi.TensorFormat:
        return _abi.TensorFormat(
            codec=_known(_CODECS, self.codec, "codec"),
            dtype=_known(_DTYPES, self.dtype, "dtype")[0] if self.dtype else 0,
            bits=_fits(self.bits, 8, "bits"),
            layout=layout,
            group_size=_fits(self.group_size, 16, "group_size"),
        )


@dataclass(frozen=True)
class Format:
    """How a layer's K and V are packed: a rung of its ladder of formats."""

    key: TensorFormat
    value: TensorFormat

    @property
    def name(self) -> str:
        """K's name if V has the same, else both: "mlx_affine/8/64+mlx_affine/4/64"."""
        if self.key.name == self.value.name:
            return self.key.name
        return f"{self.key.name}+{self.value.name}"


@dataclass(frozen=True)
class FullLayer:
    """A layer whose tokens attend on all tokens before. `formats`: 1 to 4, finest first.

    `values`: "stored"; "none" = the layer has keys only, and value_dim is 0; "key" = values are the
    first value_dim elements of the keys (MLA). If values are not stored, value arrays are an empty
    tuple.
    """

    kv_heads: int
    key_dim: int
    value_dim: int
    formats: Sequence[Format]
    values: str = "stored"

    def __post_init__(self) -> None:
        object.__setattr__(self, "formats", tuple(self.formats))


@dataclass(frozen=True)
class SlidingLayer:
    """A layer whose tokens attend on the last `window` tokens, and on the first `sink_tokens`."""

    kv_heads: int
    key_dim: int
    value_dim: int
    formats: Sequence[Format]
    window: int
    sink_tokens: int = 0
    values: str = "stored"

    def __post_init__(self) -> None:
        object.__setattr__(self, "formats", tuple(self.formats))


@dataclass(frozen=True)
class StateLayer:
    """A recurrent layer: one state of `state_bytes` bytes, valid at one exact number of tokens."""

    state_bytes: int

    @property
    def formats(self) -> tuple[Format, ...]:
        return ()


@dataclass(frozen=True)
class SharedLayer:
    """A layer without a cache of its own. It attends on the keys and values of layer `reads`, which
    are written once, there. gather(), blocks() and runs() of it are those of layer `reads`."""

    reads: int

    @property
    def formats(self) -> tuple[Format, ...]:
        return ()


Layer = Union[FullLayer, SlidingLayer, StateLayer, SharedLayer]
VALUES = {"stored": 1, "none": 2, "key": 3}


@dataclass(frozen=True)
class Rope:
    theta: float = 0.0
    rotary_dim: int = 0
    scaling: str = ""
    scaling_params: Sequence[float] = ()
    interleaved: bool = False
    key_before_rope: bool = False


@dataclass(frozen=True)
class Content:
    """Non-token input, such as an image, under tokens [start, start + length)."""

    start: int
    length: int
    digest: bytes  # 32 bytes: digest of the input
    item_offset: int = 0


def mlx_affine(
    bits: int,
    group_size: int = 64,
    dtype: str = "float16",
    *,
    value_bits: int | None = None,
    value_group_size: int | None = None,
) -> Format:
    """Returns MLX's affine quantization of K and V. V is like K unless told. `dtype`: type of
    scales and biases."""
    return Format(
        TensorFormat("mlx_affine", dtype, bits, group_size),
        TensorFormat(
            "mlx_affine",
            dtype,
            bits if value_bits is None else value_bits,
            group_size if value_group_size is None else value_group_size,
        ),
    )


def raw(dtype: str = "float16") -> Format:
    """Returns the format of elements as they are: float32, float16 or bfloat16."""
    return Format(TensorFormat("raw", dtype), TensorFormat("raw", dtype))


def _ggml(codec: str, value: Union[Format, None]) -> Format:
    key = TensorFormat(codec)
    return Format(key, key if value is None else value.value)


def q4_0(value: Format | None = None) -> Format:
    """Returns ggml's q4_0 for K, and for V unless `value` gives V another format."""
    return _ggml("q4_0", value)


def q4_1(value: Format | None = None) -> Format:
    return _ggml("q4_1", value)


def q5_0(value: Format | None = None) -> Format:
    return _ggml("q5_0", value)


def q5_1(value: Format | None = None) -> Format:
    return _ggml("q5_1", value)


def q8_0(value: Format | None = None) -> Format:
    return _ggml("q8_0", value)


def _block_float(codec: str, value: Union[Format, None]) -> Format:
    key = TensorFormat(codec)
    return Format(key, key if value is None else value.value)


def mxfp4(value: Format | None = None) -> Format:
    """Returns MLX's mode mxfp4 for K, and for V unless `value` gives V another format: codes as
    uint32 and one scale byte for each 32 elements."""
    return _block_float("mxfp4", value)


def mxfp8(value: Format | None = None) -> Format:
    return _block_float("mxfp8", value)


def nvfp4(value: Format | None = None) -> Format:
    """Like mxfp4() with one scale byte for each 16 elements; no global scale."""
    return _block_float("nvfp4", value)


def pair(key: Format, value: Format) -> Format:
    """Returns K's format of `key` and V's format of `value`."""
    return Format(key.key, value.value)


_T = TypeVar("_T")


def _known(table: dict[str, _T], name: str, what: str) -> _T:
    if name not in table:
        raise Error(f"format: {what} is {name!r}, must be one of {', '.join(table)}")
    return table[name]


def _fits(number: int, bits: int, what: str) -> int:
    return _number(f"format: {what}", number, 0, (1 << bits) - 1)
