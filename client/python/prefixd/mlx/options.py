"""A server's options about quantized caches and about prefixd, and their checks.

Two ways to have quantized bytes in prefixd:

- ``--kv-bits``: the engine's own. It computes on quantized K and V, and saves those bytes.
- ``--kv-cache-quantization``: saved quantized, computed in full precision.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field

from ..engine import formats
from ..engine.formats import BITS, GROUP_SIZES, RAW, TensorFormat

__all__ = [
    "BITS",
    "GROUP_SIZES",
    "RAW",
    "Flags",
    "OptionError",
    "Options",
    "TensorFormat",
    "parse",
]


class OptionError(ValueError):
    """A wrong option, in a sentence for the command line."""


@dataclass(frozen=True)
class Options:
    """How caches are saved and given back. `Options()` saves full precision as it is."""

    kv_bits: int | None = None  # bits of the engine's own caches; None: not quantized
    kv_group_size: int = 64
    quantized_kv_start: int = 0
    store_bits: int | None = None  # bits of caches that are quantized only to be saved
    store_value_bits: int | None = None  # bits of V; None: as K
    store_group_size: int = 64
    min_quantize_tokens: int = 256
    read: tuple[TensorFormat, ...] = ()  # further formats that a full-precision engine accepts
    max_kv_size: int | None = None  # tokens that a model without caches of its own keeps
    deadline_ms: int = 200  # deadline of a lookup
    wait_pending_ms: int = 0  # wait of a lookup while another worker computes its tokens
    load_deadline_ms: int = 10_000
    store_deadline_ms: int = 2000  # deadline of each step of a save; the first late step ends it
    salt: str = ""
    model_name: str = ""  # "": the last name of the path of the model

    def __post_init__(self) -> None:
        _check_format("kv_bits", self.kv_bits, "kv_group_size", self.kv_group_size)
        _check_format("store_bits", self.store_bits, "store_group_size", self.store_group_size)
        _check_format(
            "store_value_bits", self.store_value_bits, "store_group_size", self.store_group_size
        )
        if self.kv_bits is not None and self.store_bits is not None:
            raise OptionError(
                "kv_bits and store_bits: the engine's caches are quantized already, one of the two"
            )
        if self.kv_bits is not None and self.read:
            raise OptionError("read: an engine with kv_bits reads its own format and raw rows only")
        for form in self.read:
            if form not in self.ladder:
                names = ", ".join(f"{f.bits_text}/{f.group_size}" for f in self.ladder[1:])
                raise OptionError(f"read: {form.bits_text}/{form.group_size}, one of {names}")
        _check_not_negative("quantized_kv_start", self.quantized_kv_start)
        _check_not_negative("min_quantize_tokens", self.min_quantize_tokens)

    @property
    def quantized(self) -> TensorFormat:
        """The format of this server's quantized pages; RAW if it writes none."""
        if self.kv_bits is not None:
            return TensorFormat(self.kv_bits, self.kv_group_size)
        if self.store_bits is not None:
            return formats.quantized(
                self.store_bits, self.store_group_size, self.store_value_bits
            )
        return RAW

    @property
    def ladder(self) -> tuple[TensorFormat, ...]:
        """The formats of the space, finest first. Servers that share must have them in common."""
        return formats.ladder(self.quantized)

    @property
    def readable(self) -> tuple[TensorFormat, ...]:
        """The formats that this server can be given: raw rows, its own format, what `read` adds."""
        return tuple(f for f in self.ladder if f in (RAW, self.quantized, *self.read))

    def check_head_dim(self, head_dim: int) -> None:
        group_size = self.quantized.group_size
        if group_size and head_dim % group_size:
            raise OptionError(f"group_size {group_size} does not divide head_dim {head_dim}")

    def store_format(self, tokens: int) -> TensorFormat:
        """Returns the format in which all full-precision rows of an entry of `tokens` are saved."""
        if self.store_bits is None or tokens < self.min_quantize_tokens:
            return RAW
        return self.quantized

    def describe(self, head_dim: int, item_bytes: int = 2) -> str:
        """Returns the start-up line."""
        quantized = self.quantized
        if not quantized.bits:
            return "KV cache quantization disabled"
        sides = (quantized, quantized.of_value)
        kept = sum(side.row_bytes(head_dim, item_bytes) for side in sides)
        saved = 1 - kept / (2 * RAW.row_bytes(head_dim, item_bytes))
        return (
            f"KV cache quantization enabled: {quantized.bits_text}-bit, "
            f"group_size={quantized.group_size} (~{saved:.0%} memory savings)"
        )


def _check_format(bits_name: str, bits: int | None, group_name: str, group_size: int) -> None:
    if bits is not None and bits not in BITS:
        raise OptionError(f"{bits_name}: {bits}, one of {', '.join(map(str, BITS))}")
    if group_size not in GROUP_SIZES:
        raise OptionError(f"{group_name}: {group_size}, one of {', '.join(map(str, GROUP_SIZES))}")


def _check_not_negative(name: str, value: int) -> None:
    if value < 0:
        raise OptionError(f"{name}: {value}, at least 0")


def _parse_read(text: str) -> tuple[TensorFormat, ...]:
    """Parses "8" or "8,4": bits of quantized pages that are accepted, at group size 64."""
    try:
        return tuple(TensorFormat(int(bits), 64) for bits in text.split(",") if bits)
    except ValueError:
        raise OptionError(f"--prefixd-read: {text}, a list of bits such as 8,4") from None


@dataclass(frozen=True)
class Flags:
    """The command line: prefixd's options, and arguments that mlx_lm.server gets unchanged."""

    address: str
    worker_name: str
    staging_bytes: int
    options: Options
    required: bool  # do not serve a model whose caches are not shared
    warnings: tuple[str, ...] = ()
    server_arguments: list[str] = field(default_factory=list)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m prefixd.mlx.server",
        description="mlx_lm.server whose prompt cache is prefixd. Other flags are mlx_lm.server's.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--prefixd", default="unix:///run/prefixd/prefixd.sock", metavar="ADDRESS")
    add("--prefixd-name", default="mlx-server", help="of this worker, for people")
    add("--prefixd-model-name", default="", help="servers share under one name; the digests too")
    add("--prefixd-salt", default="", help="caches are shared only under the same salt")
    required = "serve no model whose caches are not shared, and not without prefixd"
    add("--prefixd-required", action="store_true", help=required)
    add("--prefixd-deadline-ms", type=int, default=200, help="of a lookup (default: 200)")
    waits = "wait so long while another server computes what is asked for (default: 0)"
    add("--prefixd-wait-pending-ms", type=int, default=0, help=waits)
    add("--prefixd-load-deadline-ms", type=int, default=10_000)
    add("--prefixd-store-deadline-ms", type=int, default=2000, help="of a step of a save")
    add("--prefixd-staging-bytes", type=int, default=0, help="0: the library's default")
    add("--prefixd-read", default="", metavar="BITS", help="8,4: also accept those, dequantized")
    add("--kv-bits", type=int, help=f"the engine quantizes its caches: one of {BITS}")
    add("--kv-group-size", type=int, help=f"one of {GROUP_SIZES} (default: 64)")
    add("--quantized-kv-start", type=int, help="tokens from which it does (default: 0)")
    rotates = "tokens that are kept, the first 4 among them; ignored with --kv-bits"
    add("--max-kv-size", type=int, help=rotates)
    quantization = "--kv-cache-quantization"
    add(quantization, action="store_true", help="save quantized, compute in full precision")
    add(f"{quantization}-bits", metavar="BITS", help="of K and V, or 8,4 (default: 8)")
    add(f"{quantization}-group-size", type=int, help="(default: 64)")
    add("--kv-cache-min-quantize-tokens", type=int, help="shorter ones stay raw (default: 256)")
    return parser


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _check_company(seen: argparse.Namespace) -> None:
    """Raises OptionError for a flag that means nothing without another one."""
    for name, wanted in (
        ("kv_group_size", "kv_bits"),
        ("quantized_kv_start", "kv_bits"),
        ("kv_cache_quantization_bits", "kv_cache_quantization"),
        ("kv_cache_quantization_group_size", "kv_cache_quantization"),
        ("kv_cache_min_quantize_tokens", "kv_cache_quantization"),
    ):
        given = getattr(seen, wanted)
        if getattr(seen, name) is not None and (given is None or given is False):
            flag, other = (f"--{n.replace('_', '-')}" for n in (name, wanted))
            raise OptionError(f"{flag} without {other}")


def _parse_store_bits(text: str | None) -> tuple[int, int | None]:
    """Parses "8", or "8,4": bits of K and of V; V's are None if they are not given."""
    try:
        key, *value = [int(bits) for bits in (text or "8").split(",")]
    except ValueError:
        key, value = 0, [0, 0]
    if len(value) > 1:
        raise OptionError(f"--kv-cache-quantization-bits: {text}, bits such as 8, or 8,4")
    return key, value[0] if value else None


def parse(arguments: list[str]) -> Flags:
    """Parses the command line. Raises OptionError with a sentence for whoever typed it."""
    seen, rest = _parser().parse_known_args(arguments)
    _check_company(seen)
    store_bits, store_value_bits = _parse_store_bits(seen.kv_cache_quantization_bits)
    if seen.max_kv_size is not None and seen.max_kv_size < 1:
        raise OptionError(f"--max-kv-size: {seen.max_kv_size}, at least 1")
    options = Options(
        kv_bits=seen.kv_bits,
        kv_group_size=_or(seen.kv_group_size, 64),
        quantized_kv_start=_or(seen.quantized_kv_start, 0),
        store_bits=store_bits if seen.kv_cache_quantization else None,
        store_value_bits=store_value_bits if seen.kv_cache_quantization else None,
        store_group_size=_or(seen.kv_cache_quantization_group_size, 64),
        min_quantize_tokens=_or(seen.kv_cache_min_quantize_tokens, 256),
        read=_parse_read(seen.prefixd_read),
        max_kv_size=seen.max_kv_size if seen.kv_bits is None else None,
        deadline_ms=seen.prefixd_deadline_ms,
        wait_pending_ms=seen.prefixd_wait_pending_ms,
        load_deadline_ms=seen.prefixd_load_deadline_ms,
        store_deadline_ms=seen.prefixd_store_deadline_ms,
        salt=seen.prefixd_salt,
        model_name=seen.prefixd_model_name,
    )
    if options.kv_bits is not None:
        rest += ["--kv-bits", str(options.kv_bits)]
        rest += ["--kv-group-size", str(options.kv_group_size)]
        rest += ["--quantized-kv-start", str(options.quantized_kv_start)]
    warnings: tuple[str, ...] = ()
    if seen.max_kv_size is not None and seen.kv_bits is not None:
        warnings = (f"--max-kv-size {seen.max_kv_size} ignored: quantized caches do not rotate",)
    return Flags(
        address=seen.prefixd,
        worker_name=seen.prefixd_name,
        staging_bytes=seen.prefixd_staging_bytes,
        options=options,
        required=seen.prefixd_required,
        warnings=warnings,
        server_arguments=rest,
    )
