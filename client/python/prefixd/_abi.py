"""libprefixd.so by ctypes: its structs, its functions, and stand-ins for them if it is absent.

A `Library` has one attribute for each function of prefixd.h and prefixd_llama.h, without the
prefix. If the library cannot be loaded, or was in use before a fork(), each attribute is a function
that gives nothing, so callers need not ask whether there is a library. ctypes lets other threads
run during every call except those of `_QUICK`, which never wait.
"""

from __future__ import annotations

import ctypes
import os
import threading
from ctypes import POINTER, c_char_p, c_double, c_float, c_int32, c_size_t, c_uint8
from ctypes import c_uint16, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any, Callable

ABI_VERSION = 16
OK, INVALID_ARGUMENT, NOT_FOUND, UNAVAILABLE = 0, 1, 2, 3
DEADLINE, EXHAUSTED, FAILED_PRECONDITION, INTERNAL = 4, 5, 6, 7


class _Sized(ctypes.Structure):
    """A struct that begins with its own size."""

    def __init__(self, **members: Any) -> None:
        super().__init__(size=ctypes.sizeof(self), **members)


class Options(_Sized):
    _fields_ = [
        ("size", c_size_t),
        ("address", c_char_p),
        ("name", c_char_p),
        ("connect_deadline_ms", c_uint32),
        ("no_arena", c_uint32),
        ("no_staging", c_uint32),
        ("reserved", c_uint32),
        ("staging_bytes", c_uint64),
        ("token_file", c_char_p),
        ("engine", c_char_p),
    ]


class Counts(_Sized):
    _fields_ = [("size", c_size_t)] + [
        (name, c_uint64)
        for name in (
            "lookups",
            "failed_lookups",
            "requested_tokens",
            "restorable_tokens",
            "gathered_bytes",
            "stored_tokens",
            "duplicate_tokens",
            "failed_commits",
            "attached",
            "arena_bytes",
            "staging_bytes",
        )
    ]


class TensorFormat(ctypes.Structure):
    _fields_ = [
        ("codec", c_uint8),
        ("dtype", c_uint8),
        ("bits", c_uint8),
        ("layout", c_uint8),
        ("group_size", c_uint16),
        ("reserved2", c_uint16),
    ]


class Format(ctypes.Structure):
    _fields_ = [("key", TensorFormat), ("value", TensorFormat)]


class Row(ctypes.Structure):
    _fields_ = [("codes", c_uint32), ("scales", c_uint32), ("biases", c_uint32)]


class Layer(_Sized):
    _fields_ = [
        ("size", c_size_t),
        ("kv_heads", c_uint32),
        ("key_dim", c_uint32),
        ("value_dim", c_uint32),
        ("format_count", c_uint32),
        ("formats", POINTER(Format)),
        ("kind", c_uint32),
        ("window", c_uint32),
        ("sink_tokens", c_uint32),
        ("values", c_uint32),
        ("state_bytes", c_uint64),
        ("shared", c_uint32),
        ("reads_layer", c_uint32),
    ]


class Rope(_Sized):
    _fields_ = [
        ("size", c_size_t),
        ("theta", c_double),
        ("scaling", c_char_p),
        ("scaling_params", POINTER(c_double)),
        ("scaling_param_count", c_uint32),
        ("rotary_dim", c_uint32),
        ("interleaved", c_uint32),
        ("key_before_rope", c_uint32),
    ]


class SpaceSpec(_Sized):
    _fields_ = [
        ("size", c_size_t),
        ("model", c_char_p),
        ("weights_digest", c_char_p),
        ("adapter_digest", c_char_p),
        ("tokenizer_digest", c_char_p),
        ("target_digest", c_char_p),
        ("draft", c_uint32),
        ("tensor_parallel", c_uint32),
        ("pipeline_parallel", c_uint32),
        ("tensor_rank", c_uint32),
        ("pipeline_rank", c_uint32),
        ("block_tokens", c_uint32),
        ("layer_count", c_uint32),
        ("reserved", c_uint32),
        ("rope", POINTER(Rope)),
        ("salt", c_char_p),
        ("layers", POINTER(Layer)),
    ]


class SpaceFacts(_Sized):
    _fields_ = [
        ("size", c_size_t),
        ("block_tokens", c_uint32),
        ("layer_count", c_uint32),
        ("payload_bytes_per_token", c_uint64),
        ("id", ctypes.c_char * 72),
    ]


class Content(ctypes.Structure):
    _fields_ = [
        ("start", c_uint32),
        ("length", c_uint32),
        ("item_offset", c_uint32),
        ("digest", c_uint8 * 32),
    ]


class Lookup(_Sized):
    _fields_ = [
        ("size", c_size_t),
        ("content", POINTER(Content)),
        ("content_count", c_uint32),
        ("max_cached_tokens", c_uint32),
        ("deadline_ms", c_uint32),
        ("load_deadline_ms", c_uint32),
        ("readable", c_uint64),
        ("prefill_tokens_per_s", c_double),
        ("wait_pending_ms", c_uint32),
        ("request_id", c_char_p),
    ]


class MatchInfo(_Sized):
    _fields_ = [
        ("size", c_size_t),
        ("kind", c_uint32),
        ("matched_tokens", c_uint32),
        ("restorable_tokens", c_uint32),
        ("pending_tokens", c_uint32),
        ("in_place", c_uint32),
        ("reserved", c_uint32),
        ("ram_bytes", c_uint64),
        ("ssd_bytes", c_uint64),
        ("estimated_load_us", c_uint64),
        ("why_shorter", ctypes.c_char * 128),
        ("remote_bytes", c_uint64),
    ]


class SetMember(_Sized):
    _fields_ = [("size", c_size_t), ("space", c_void_p), ("lookup", POINTER(Lookup))]


class Planes(_Sized):
    _fields_ = [
        ("size", c_size_t),
        ("codes", c_void_p),
        ("scales", c_void_p),
        ("biases", c_void_p),
        ("codes_head_stride", c_size_t),
        ("codes_token_stride", c_size_t),
        ("scales_head_stride", c_size_t),
        ("scales_token_stride", c_size_t),
    ]


class Rows(_Sized):
    _fields_ = [
        ("size", c_size_t),
        ("data", c_void_p),
        ("dtype", c_uint32),
        ("reserved", c_uint32),
        ("head_stride", c_size_t),
        ("token_stride", c_size_t),
    ]


class Block(ctypes.Structure):
    _fields_ = [
        ("units", c_void_p),
        ("arena_offset", c_uint64),
        ("page_tokens", c_uint32),
        ("tokens", c_uint32),
        ("format", c_uint32),
    ]


class StoredRun(ctypes.Structure):
    _fields_ = [
        ("begin", c_uint32),
        ("end", c_uint32),
        ("format", c_uint32),
        ("reserved", c_uint32),
    ]


class PageName(ctypes.Structure):
    _fields_ = [("high", c_uint64), ("low", c_uint64)]


class Arena(_Sized):
    _fields_ = [
        ("size", c_size_t),
        ("base", c_void_p),
        ("bytes", c_uint64),
        ("slab_bytes", c_uint64),
        ("service", c_void_p),
        ("service_stride", c_uint64),
        ("mapping", c_void_p),
        ("tell", c_void_p),
        ("teller", c_void_p),
    ]


NONE_USED = 2**32 - 1


class Used(_Sized):
    _fields_ = [
        ("size", c_size_t),
        ("used_tokens", c_uint32),
        ("first_token_us", c_uint64),
        ("prefill_tokens_per_s", c_double),
    ]


class ReserveOptions(_Sized):
    _fields_ = [
        ("size", c_size_t),
        ("content", POINTER(Content)),
        ("content_count", c_uint32),
        ("deadline_ms", c_uint32),
        ("write_format", c_uint32),
        ("turn_end_count", c_uint32),
        ("turn_ends", POINTER(c_uint32)),
        ("readable", c_uint64),
        ("coarser_formats", c_uint64),
    ]


class Run(ctypes.Structure):
    _fields_ = [("begin", c_uint32), ("end", c_uint32)]


class CommitOptions(_Sized):
    _fields_ = [("size", c_size_t), ("sequence_end", c_uint32), ("deadline_ms", c_uint32)]


class CommitInfo(_Sized):
    _fields_ = [("size", c_size_t), ("stored_tokens", c_uint32), ("duplicate_tokens", c_uint32)]


class AttendOptions(_Sized):
    _fields_ = [
        ("size", c_size_t),
        ("query_rows", c_uint32),
        ("query_heads", c_uint32),
        ("kv_heads", c_uint32),
        ("key_dim", c_uint32),
        ("value_dim", c_uint32),
        ("first_position", c_uint32),
        ("scale", c_float),
        ("threads", c_uint32),
        ("query_row_stride", c_size_t),
        ("query_head_stride", c_size_t),
        ("out_row_stride", c_size_t),
        ("out_head_stride", c_size_t),
        ("window", c_uint32),
        ("sink_tokens", c_uint32),
    ]


class LlamaSpec(_Sized):
    _fields_ = [
        ("size", c_size_t),
        ("gguf", c_char_p),
        ("adapters", c_char_p),
        ("salt", c_char_p),
        ("state", c_void_p),
        ("state_bytes", c_size_t),
        ("context_tokens", c_uint32),
        ("build", c_char_p),
    ]


class LlamaStoreOptions(_Sized):
    _fields_ = [
        ("size", c_size_t),
        ("deadline_ms", c_uint32),
        ("turn_end_count", c_uint32),
        ("turn_ends", POINTER(c_uint32)),
    ]


_STRUCT = c_void_p  # pointer to a struct that may grow: byref() or an address
_HANDLE = c_void_p
# name: (result type, argument types, result of an absent library)
_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...], Any]] = {
    "abi_version": (c_uint32, (), 0),
    "last_error": (c_char_p, (), b""),
    "last_status": (c_int32, (), UNAVAILABLE),
    "attach": (_HANDLE, (_STRUCT,), None),
    "detach": (None, (_HANDLE,), None),
    "attached": (c_int32, (_HANDLE, c_uint32), 0),
    "not_shared": (c_int32, (_HANDLE, c_char_p, c_char_p), UNAVAILABLE),
    "stats": (None, (_HANDLE, _STRUCT), None),
    "set_trace": (c_int32, (c_char_p, c_char_p), UNAVAILABLE),
    "digest_checkpoint": (c_int32, (c_char_p, c_char_p), UNAVAILABLE),
    "digest_file": (c_int32, (c_char_p, c_char_p), UNAVAILABLE),
    "row_bytes": (Row, (POINTER(TensorFormat), c_uint32), None),
    "open_space": (_HANDLE, (_HANDLE, _STRUCT), None),
    "close_space": (None, (_HANDLE,), None),
    "describe_space": (None, (_HANDLE, _STRUCT), None),
    "match": (c_int32, (_HANDLE, c_void_p, c_size_t, _STRUCT, _STRUCT), UNAVAILABLE),
    "prefetch": (c_int32, (_HANDLE, c_void_p, c_size_t, _STRUCT, _STRUCT), UNAVAILABLE),
    "acquire": (_HANDLE, (_HANDLE, c_void_p, c_size_t, _STRUCT, _STRUCT), None),
    "acquire_set": (
        c_int32,
        (_STRUCT, c_size_t, c_void_p, c_size_t, POINTER(c_void_p), _STRUCT),
        UNAVAILABLE,
    ),
    "restorable_tokens": (c_uint32, (_HANDLE,), 0),
    "wait": (c_uint32, (_HANDLE, c_uint32, c_uint32), 0),
    "wait_all": (c_uint32, (_HANDLE, c_uint32), 0),
    "gather": (
        c_int32,
        (_HANDLE, c_uint32, c_uint32, c_uint32, _STRUCT, _STRUCT),
        FAILED_PRECONDITION,
    ),
    "gather_rows": (
        c_int32,
        (_HANDLE, c_uint32, c_uint32, c_uint32, _STRUCT, _STRUCT),
        FAILED_PRECONDITION,
    ),
    "get_state": (c_int32, (_HANDLE, c_uint32, c_void_p, c_size_t), FAILED_PRECONDITION),
    "table": (c_size_t, (_HANDLE, c_uint32, POINTER(POINTER(Block))), 0),
    "page_names": (c_size_t, (_HANDLE, c_uint32, POINTER(PageName), c_size_t), 0),
    "lease_arena": (c_int32, (_HANDLE, _STRUCT), UNAVAILABLE),
    "drop_arena": (None, (_STRUCT,), None),
    "stored_runs": (c_size_t, (_HANDLE, c_uint32, POINTER(StoredRun), c_size_t), 0),
    "release": (None, (_HANDLE, _STRUCT), None),
    "reserve": (_HANDLE, (_HANDLE, c_void_p, c_size_t, _STRUCT), None),
    "missing": (c_size_t, (_HANDLE, POINTER(Run), c_size_t), 0),
    "missing_formats": (c_size_t, (_HANDLE, POINTER(c_uint32), c_size_t), 0),
    "write_packed": (
        c_int32,
        (_HANDLE, c_uint32, c_uint32, c_uint32, _STRUCT, _STRUCT),
        UNAVAILABLE,
    ),
    "write_rows": (
        c_int32,
        (_HANDLE, c_uint32, c_uint32, c_uint32, _STRUCT, _STRUCT),
        UNAVAILABLE,
    ),
    "snapshots_wanted": (c_size_t, (_HANDLE, POINTER(c_uint32), c_size_t), 0),
    "put_state": (
        c_int32,
        (_HANDLE, c_uint32, c_uint32, c_void_p, c_size_t),
        UNAVAILABLE,
    ),
    "commit": (c_int32, (_HANDLE, c_uint32, _STRUCT, _STRUCT), UNAVAILABLE),
    "abandon": (None, (_HANDLE,), None),
    "attend": (
        c_int32,
        (c_void_p, c_size_t, c_void_p, c_size_t, c_void_p, c_void_p, _STRUCT),
        UNAVAILABLE,
    ),
    "llama_open": (_HANDLE, (_HANDLE, _STRUCT), None),
    "llama_close": (None, (_HANDLE,), None),
    "llama_space": (_HANDLE, (_HANDLE,), None),
    "llama_state_bytes": (c_size_t, (_HANDLE, c_uint32), 0),
    "llama_fill_state": (c_int32, (_HANDLE, _HANDLE, c_void_p, c_size_t), UNAVAILABLE),
    "llama_store": (
        c_int32,
        (_HANDLE, c_void_p, c_size_t, c_void_p, c_size_t, _STRUCT, _STRUCT),
        UNAVAILABLE,
    ),
}
_QUICK = (
    "abi_version",
    "last_error",
    "last_status",
    "row_bytes",
    "llama_space",
    "missing",
    "missing_formats",
    "set_trace",
    "snapshots_wanted",
)


class Library:
    """The functions of one libprefixd.so. If it is absent, `why_absent` says why."""

    # Set by _load() or _be_absent(). Handles are addresses, None for NULL.
    abi_version: Callable[..., int]
    last_error: Callable[[], bytes]
    last_status: Callable[[], int]
    attach: Callable[..., int | None]
    detach: Callable[..., None]
    attached: Callable[..., int]
    not_shared: Callable[..., int]
    stats: Callable[..., None]
    set_trace: Callable[..., int]
    digest_checkpoint: Callable[..., int]
    digest_file: Callable[..., int]
    row_bytes: Callable[..., Row]
    open_space: Callable[..., int | None]
    close_space: Callable[..., None]
    describe_space: Callable[..., None]
    match: Callable[..., int]
    prefetch: Callable[..., int]
    acquire: Callable[..., int | None]
    acquire_set: Callable[..., int]
    restorable_tokens: Callable[..., int]
    wait: Callable[..., int]
    wait_all: Callable[..., int]
    gather: Callable[..., int]
    gather_rows: Callable[..., int]
    get_state: Callable[..., int]
    table: Callable[..., int]
    page_names: Callable[..., int]
    lease_arena: Callable[..., int]
    drop_arena: Callable[..., None]
    stored_runs: Callable[..., int]
    release: Callable[..., None]
    reserve: Callable[..., int | None]
    missing: Callable[..., int]
    missing_formats: Callable[..., int]
    write_packed: Callable[..., int]
    write_rows: Callable[..., int]
    snapshots_wanted: Callable[..., int]
    put_state: Callable[..., int]
    commit: Callable[..., int]
    abandon: Callable[..., None]
    attend: Callable[..., int]
    llama_open: Callable[..., int | None]
    llama_close: Callable[..., None]
    llama_space: Callable[..., int | None]
    llama_state_bytes: Callable[..., int]
    llama_fill_state: Callable[..., int]
    llama_store: Callable[..., int]

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.why_absent = ""
        self.used = False  # a used library has threads, which a child of fork() lacks
        self._be_absent("not loaded")
        try:
            self._load(os.fspath(path) if path is not None else _find())
        except (OSError, AttributeError) as error:
            self._be_absent(f"libprefixd: {error}")

    def _load(self, path: str) -> None:
        mode = os.RTLD_NOW | os.RTLD_LOCAL | os.RTLD_DEEPBIND
        waits, quick = ctypes.CDLL(path, mode=mode), ctypes.PyDLL(path, mode=mode)
        functions: dict[str, Callable[..., Any]] = {}
        for name, (result, arguments, _) in _FUNCTIONS.items():
            function = getattr(quick if name in _QUICK else waits, f"prefixd_{name}")
            function.restype, function.argtypes = result, arguments
            functions[name] = function
        version = functions["abi_version"]()
        if version < ABI_VERSION:
            raise OSError(f"{path} is of version {version}, this package wants {ABI_VERSION}")
        vars(self).update(functions)
        self.why_absent = ""

    def _be_absent(self, why: str) -> None:
        self.why_absent = why
        for name, (_, _, answer) in _FUNCTIONS.items():
            setattr(self, name, lambda *_, answer=answer: answer)
        self.last_error = lambda: self.why_absent.encode()
        self.row_bytes = lambda *_: Row()

    def forked(self) -> None:
        """Makes a used library absent. Called in a child of fork()."""
        if self.used:
            self._be_absent("libprefixd: in use before fork(): start processes by spawn")

    def error(self) -> str:
        """Returns the error message of this thread's last call."""
        return self.last_error().decode(errors="replace")


class Handle:
    """A C library handle, freed when nothing refers to it. A call in progress refers to it."""

    __slots__ = ("lib", "pointer", "_free", "__weakref__")

    def __init__(self, lib: Library, pointer: int | None, free: str) -> None:
        self.lib = lib
        self.pointer = pointer
        self._free = free

    def __del__(self) -> None:
        if self.pointer:
            getattr(self.lib, self._free)(self.pointer, *self._last_words())

    def _last_words(self) -> tuple[Any, ...]:
        return ()


def _find() -> str:
    given = os.environ.get("PREFIXD_LIBRARY")
    if given:
        return given
    bundled = Path(__file__).with_name("libprefixd.so.1")
    return str(bundled) if bundled.exists() else "libprefixd.so.1"


_libraries: dict[str | None, Library] = {}
_lock = threading.Lock()


def library(path: str | os.PathLike[str] | None = None) -> Library:
    """Returns the library at `path`, or that of PREFIXD_LIBRARY, of this package or of the system.

    Looks again for a library that was absent before.
    """
    key = os.fspath(path) if path is not None else os.environ.get("PREFIXD_LIBRARY")
    with _lock:
        known = _libraries.get(key)
        if known is None or (known.why_absent and not known.used):
            known = _libraries[key] = Library(path)
        return known


def _forked() -> None:
    global _lock
    _lock = threading.Lock()  # a thread that is not in the child may hold the old lock
    for known in _libraries.values():
        known.forked()


os.register_at_fork(after_in_child=_forked)
