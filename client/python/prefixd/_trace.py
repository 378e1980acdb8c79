"""To which trace the calls belong: what trace() names, else OpenTelemetry's current span."""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Iterator

from . import _abi

_NONE = ("", "")
_given: ContextVar[tuple[str, str] | None] = ContextVar("prefixd_trace", default=None)
_told = threading.local()  # what the library was last told of this thread


@contextmanager
def trace(traceparent: str, tracestate: str = "") -> Iterator[None]:
    """Within it, the calls of this thread or asyncio task belong to the trace that these headers
    (W3C Trace Context) of the engine's request name: a daemon that exports spans puts its own below.
    What is not well formed is as if it were not there; an empty `traceparent` means no trace.

    Not needed where OpenTelemetry's Python API is in use: without it calls belong to its current
    span.
    """
    token = _given.set((traceparent, tracestate) if traceparent else _NONE)
    try:
        yield
    finally:
        _given.reset(token)


def follow(lib: _abi.Library) -> None:
    """Tells the library to which trace the next call of this thread belongs."""
    named = _given.get()
    if named is None:
        named = _current()
    if getattr(_told, "last", (lib, _NONE)) == (lib, named):
        return
    _told.last = lib, named
    lib.set_trace(*(_header(text) for text in named))


def _header(text: str) -> bytes:
    return text.encode(errors="replace").replace(b"\0", b"?")


def _current() -> tuple[str, str]:
    """The context of OpenTelemetry's current span, if this process uses OpenTelemetry."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return _NONE
    try:
        context = api.get_current_span().get_span_context()
        if not context.is_valid:
            return _NONE
        ids = f"{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
        return f"00-{ids}", context.trace_state.to_header()
    except (AttributeError, TypeError, ValueError):  # another package's span, or half imported
        return _NONE
