"""Options: what kv_connector_extra_config may say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

DEFAULT_ADDRESS = "unix:///run/prefixd/prefixd.sock"
_FORMATS = {"raw": None, "8": (8, 8), "8,4": (8, 4), "4": (4, 4)}


class OptionError(ValueError):
    """A key or value of kv_connector_extra_config that does not exist."""


@dataclass(frozen=True)
class Options:
    """`address`, `token_file`, `name`: as of prefixd.connect(). `salt`: servers with different ones
    share nothing; so do requests with a different `cache_salt`. `format`: how rows are stored:
    "raw", or quantized to "8", "8,4" (K, V) or "4" bits. `rows`: store the rows of tokens, if
    vLLM's pages can be taken apart; else whole pages, as they are. Deadlines in ms:
    `lookup_deadline_ms` of a lookup, `load_deadline_ms` of the pages of one request,
    `store_deadline_ms` of one save. `async_load_bytes`: loads of so many bytes and more run beside
    the engine's steps, smaller ones within one. `save_queue_bytes`: rows that may wait to be
    stored; what does not fit is not stored. `model_name`: for people; default: the name of the
    model's folder. `pin`: with pages on a GPU, pin the daemon's memory in the background, so that
    loads read it where it lies. `start`: where nobody listens at `address`, the program "prefixd" on the PATH is
    started with its own defaults; it goes on when vLLM ends."""

    address: str = DEFAULT_ADDRESS
    token_file: str | None = None
    name: str = ""
    salt: str = ""
    format: str = "raw"
    rows: bool = True
    lookup_deadline_ms: int = 200
    load_deadline_ms: int = 2000
    store_deadline_ms: int = 10000
    async_load_bytes: int = 32 << 20
    save_queue_bytes: int = 1 << 30
    model_name: str = ""
    pin: bool = True
    start: bool = False

    @staticmethod
    def of(said: Mapping[str, Any]) -> Options:
        """Returns the options. Raises OptionError for an unknown key or a value of another type."""
        check_options(Options, said, "kv_connector_extra_config")
        options = Options(**said)
        if options.format not in _FORMATS:
            names = ", ".join(map(repr, _FORMATS))
            raise OptionError(f"format is {options.format!r}, must be one of {names}")
        if options.bits is not None and not options.rows:
            raise OptionError(
                f"format is {options.format!r}, must be 'raw' where rows is false: "
                "whole pages are stored as they are"
            )
        return options

    @property
    def bits(self) -> tuple[int, int] | None:
        """Bits of K and of V; None: raw."""
        return _FORMATS[self.format]


def check_options(kind: type, said: Mapping[str, Any], where: str) -> None:
    """Raises OptionError for a key that is no field of the dataclass `kind`, or a value of another
    type than the field's default. `where`: what the user wrote them in."""
    known = {field.name: field.default for field in fields(kind)}
    for name, value in said.items():
        if name not in known:
            raise OptionError(f"{where}: {name!r} is none of {', '.join(known)}")
        _check(name, value, known[name])


def _check(name: str, value: Any, default: Any) -> None:
    wanted = str if default is None else type(default)
    if not isinstance(value, wanted) or isinstance(value, bool) != (wanted is bool):
        if not (default is None and value is None):
            raise OptionError(f"{name} is {value!r}, must be of type {wanted.__name__}")
    if wanted is int and value < 0:
        raise OptionError(f"{name} is {value}, must not be negative")
