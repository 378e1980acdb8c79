"""libprefixd_cuda.so by ctypes: its structs and its functions (client/include/prefixd/cuda.h).

`library()` gives the functions, without the prefix; if the library cannot be loaded, `why_absent`
says why and no function is there. ctypes lets other threads run during every call.
"""

from __future__ import annotations

import ctypes
import functools
import os
from ctypes import POINTER, c_char_p, c_float, c_int32, c_int64, c_size_t
from ctypes import c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any, Callable

from ._abi import Block, Format, PageName, Planes, TensorFormat, _Sized

ABI_VERSION = 6

F8 = 16  # dtype of a Tensor: float8_e4m3fn
VALUES_KEY_PREFIX = 3  # V is the first elements of K, which pages hold alone


class Options(_Sized):
    _fields_ = [
        ("size", c_size_t),
        ("device", c_int32),
        ("copy_threads", c_uint32),
        ("bounce_bytes", c_uint64),
    ]


class PinOptions(_Sized):
    _fields_ = [
        ("size", c_size_t),
        ("slab_bytes", c_uint64),
        ("slice_bytes", c_uint64),
        ("pause_us", c_uint32),
        ("background", c_uint32),
        ("service", c_void_p),
        ("service_stride", c_uint64),
        ("tell", c_void_p),
        ("teller", c_void_p),
    ]


class PinState(_Sized):
    _fields_ = [
        ("size", c_size_t),
        ("bytes", c_uint64),
        ("pinned_bytes", c_uint64),
        ("slice_bytes", c_uint64),
        ("slices", c_uint32),
        ("pinned_slices", c_uint32),
        ("refused_slices", c_uint32),
        ("finished", c_uint32),
        ("why_refused", ctypes.c_char * 128),
    ]


class Tensor(_Sized):
    _fields_ = [
        ("size", c_size_t),
        ("data", c_void_p),
        ("dtype", c_uint32),
        ("block_tokens", c_uint32),
        ("block_stride", c_int64),
        ("token_stride", c_int64),
        ("head_stride", c_int64),
        ("split", c_uint32),
        ("reserved", c_uint32),
        ("split_stride", c_int64),
        ("scale", c_float),
        ("reserved2", c_uint32),
    ]


class PageCounts(_Sized):
    _fields_ = [("size", c_size_t)] + [
        (name, c_uint64)
        for name in (
            "budget_bytes",
            "used_bytes",
            "in_use_bytes",
            "pages",
            "hits",
            "hit_bytes",
            "misses",
            "missed_bytes",
            "evictions",
            "evicted_bytes",
            "no_room",
        )
    ]


class LoadLayer(_Sized):
    _fields_ = [
        ("size", c_size_t),
        ("blocks", POINTER(Block)),
        ("block_count", c_size_t),
        ("formats", POINTER(Format)),
        ("format_count", c_uint32),
        ("kv_heads", c_uint32),
        ("key_dim", c_uint32),
        ("value_dim", c_uint32),
        ("key", POINTER(Tensor)),
        ("value", POINTER(Tensor)),
        ("pages", POINTER(c_void_p)),
        ("names", POINTER(PageName)),
        ("resident", POINTER(c_void_p)),
        ("values", c_uint32),
        ("reserved", c_uint32),
    ]


class LoadOptions(_Sized):
    _fields_ = [
        ("size", c_size_t),
        ("layers", POINTER(LoadLayer)),
        ("layer_count", c_uint32),
        ("begin", c_uint32),
        ("count", c_uint32),
        ("table_count", c_uint32),
        ("table", POINTER(c_int32)),
        ("stream", c_void_p),
        ("after", c_void_p),
    ]


class LoadCounts(_Sized):
    _fields_ = [
        ("size", c_size_t),
        ("pinned_bytes", c_uint64),
        ("bounced_bytes", c_uint64),
        ("kept_bytes", c_uint64),
    ]


class QuantizeOptions(_Sized):
    _fields_ = [
        ("size", c_size_t),
        ("rows", POINTER(Tensor)),
        ("format", TensorFormat),
        ("value", c_uint32),
        ("kv_heads", c_uint32),
        ("dim", c_uint32),
        ("begin", c_uint32),
        ("count", c_uint32),
        ("table", POINTER(c_int32)),
        ("table_count", c_uint32),
        ("page_tokens", c_uint32),
        ("pages", POINTER(c_void_p)),
        ("page_count", c_uint32),
        ("first_slot", c_uint32),
        ("unit_stride", c_uint64),
    ]


class AttentionOptions(_Sized):
    _fields_ = [
        ("size", c_size_t),
        ("formats", POINTER(Format)),
        ("format_count", c_uint32),
        ("query_rows", c_uint32),
        ("query_heads", c_uint32),
        ("kv_heads", c_uint32),
        ("key_dim", c_uint32),
        ("value_dim", c_uint32),
        ("scale", c_float),
        ("window", c_uint32),
        ("sink_tokens", c_uint32),
        ("soft_cap", c_float),
        ("precise", c_uint32),
        ("early", c_uint32),
        ("values", c_uint32),
    ]


class Sequence(ctypes.Structure):
    _fields_ = [
        ("blocks", POINTER(Block)),
        ("block_count", c_size_t),
        ("first_position", c_uint32),
        ("reserved", c_uint32),
    ]


class Heads(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("dtype", c_uint32),
        ("reserved", c_uint32),
        ("sequence_stride", c_int64),
        ("row_stride", c_int64),
        ("head_stride", c_int64),
    ]


_STRUCT = c_void_p  # pointer to a struct that may grow: byref() or an address
_HANDLE = c_void_p
# name: (result type, argument types)
_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "abi_version": (c_uint32, ()),
    "last_error": (c_char_p, ()),
    "open": (_HANDLE, (_STRUCT,)),
    "close": (None, (_HANDLE,)),
    "alloc_host": (c_void_p, (_HANDLE, c_size_t)),
    "free_host": (None, (_HANDLE, c_void_p)),
    "pin": (_HANDLE, (_HANDLE, c_void_p, c_uint64, _STRUCT)),
    "unpin": (None, (_HANDLE,)),
    "pin_progress": (None, (_HANDLE, _STRUCT)),
    "keep_pages": (c_int32, (_HANDLE, c_uint64)),
    "forget_pages": (None, (_HANDLE,)),
    "page_state": (c_int32, (_HANDLE, _STRUCT)),
    "load_begin": (_HANDLE, (_HANDLE, _STRUCT)),
    "load_wait": (c_int32, (_HANDLE, c_uint32, c_void_p)),
    "load_ready": (c_int32, (_HANDLE, c_uint32)),
    "load_keep": (c_int32, (_HANDLE, c_void_p)),
    "load_end": (c_int32, (_HANDLE, _STRUCT)),
    "quantize": (c_int32, (_HANDLE, _STRUCT, c_void_p)),
    "unit_bytes": (c_uint64, (POINTER(TensorFormat), c_uint32, c_uint32)),
    "planes": (
        c_int32,
        (POINTER(TensorFormat), c_uint32, c_uint32, c_void_p, POINTER(Planes)),
    ),
    "attention_new": (_HANDLE, (_HANDLE, _STRUCT)),
    "attention_rows": (c_uint32, (_HANDLE, _STRUCT)),
    "attention_free": (None, (_HANDLE,)),
    "attention_set": (c_int32, (_HANDLE, POINTER(Sequence), c_uint32, c_void_p)),
    "attend": (
        c_int32,
        (_HANDLE, c_uint32, POINTER(Heads), POINTER(Heads), c_void_p, c_void_p),
    ),
}


class Library:
    """The functions of one libprefixd_cuda.so. If it is absent, `why_absent` says why."""

    # Set by _load(). Handles are addresses, None for NULL.
    last_error: Callable[[], bytes]
    open: Callable[..., int | None]
    close: Callable[..., None]
    alloc_host: Callable[..., int | None]
    free_host: Callable[..., None]
    pin: Callable[..., int | None]
    unpin: Callable[..., None]
    pin_progress: Callable[..., None]
    keep_pages: Callable[..., int]
    forget_pages: Callable[..., None]
    page_state: Callable[..., int]
    load_begin: Callable[..., int | None]
    load_wait: Callable[..., int]
    load_ready: Callable[..., int]
    load_keep: Callable[..., int]
    load_end: Callable[..., int]
    quantize: Callable[..., int]
    unit_bytes: Callable[..., int]
    planes: Callable[..., int]
    attention_new: Callable[..., int | None]
    attention_rows: Callable[..., int]
    attention_free: Callable[..., None]
    attention_set: Callable[..., int]
    attend: Callable[..., int]

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.why_absent = ""
        try:
            self._load(os.fspath(path) if path is not None else _find())
        except (OSError, AttributeError) as error:
            self.why_absent = f"libprefixd_cuda: {error}"

    def _load(self, path: str) -> None:
        library = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL | os.RTLD_DEEPBIND)
        functions: dict[str, Callable[..., Any]] = {}
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(library, f"prefixd_cuda_{name}")
            function.restype, function.argtypes = result, arguments
            functions[name] = function
        version = functions["abi_version"]()
        if version < ABI_VERSION:
            raise OSError(f"{path} is of version {version}, this package wants {ABI_VERSION}")
        vars(self).update(functions)

    def error(self) -> str:
        """Returns the error message of this thread's last call."""
        return self.why_absent or self.last_error().decode(errors="replace")


@functools.cache
def library() -> Library:
    return Library()


def _find() -> str:
    given = os.environ.get("PREFIXD_CUDA_LIBRARY")
    if given:
        return given
    bundled = Path(__file__).with_name("libprefixd_cuda.so.1")
    return str(bundled) if bundled.exists() else "libprefixd_cuda.so.1"
