"""The connection to the daemon: connect(), spaces, digests, counters."""

from __future__ import annotations

import ctypes
import os
from typing import Any, Callable, NamedTuple, Sequence

from . import _abi
from ._errors import Error
from ._formats import VALUES, Layer, Rope, SharedLayer, SlidingLayer, StateLayer, _known
from ._numbers import UINT32, UINT64, _ms, _number, _text
from ._space import Space
from .engine.own_daemon import StartError, start_if_absent

DEFAULT_ADDRESS = "unix:///run/prefixd/prefixd.sock"
Path = str | os.PathLike[str]
_PAGE_LAYOUTS = ("rows", "tiled", "transposed")
_FULL, _SLIDING, _STATE = 1, 2, 3


class Stats(NamedTuple):
    """Counts since connect(), over all spaces of the client."""

    lookups: int
    failed_lookups: int
    requested_tokens: int
    restorable_tokens: int
    gathered_bytes: int
    stored_tokens: int
    duplicate_tokens: int
    failed_commits: int
    attached: bool
    arena_bytes: int  # mapped bytes of the daemon's memory; 0 = none
    staging_bytes: int  # granted by the daemon
    error: str  # why there is no daemon or no mapping


class Client:
    """Attaches and reconnects by itself. Thread-safe. Create it after fork(): a child has no cache.

    A context manager. close() or the garbage collector ends the session, once the client's spaces,
    leases and plans are gone too.
    """

    def __init__(
        self, lib: _abi.Library, pointer: int | None, address: str, not_started: str = ""
    ) -> None:
        self._lib = lib
        self._not_started = not_started  # why connect() could not start a daemon
        self._held: _abi.Handle | None = _abi.Handle(lib, pointer, "detach")
        self.address = address

    def __repr__(self) -> str:
        return f"<prefixd.Client of {self.address}, {self.error or 'attached'}>"

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._held = None

    def _attached(self, deadline_ms: int) -> bool:
        held = self._held
        return bool(self._lib.attached(held and held.pointer, deadline_ms))

    @property
    def attached(self) -> bool:
        return self._attached(0)

    def wait_attached(self, deadline_ms: int) -> bool:
        """Waits up to `deadline_ms` until attached. Returns whether it is."""
        return self._attached(_number("wait_attached: deadline_ms", deadline_ms, 0, UINT32))

    @property
    def error(self) -> str:
        """Why there is no cache now; "" if there is one."""
        if self._lib.why_absent:
            return self._lib.why_absent
        if self._held is None:
            return "client: closed"
        if self.attached:
            return ""
        counts, why = self._counts()
        if counts.attached:
            return ""
        return self._not_started or why or f"client: no daemon at {self.address}"

    def _counts(self) -> tuple[_abi.Counts, str]:
        """Returns the counts, and why there is no daemon or no mapping of its memory."""
        counts = _abi.Counts()
        held = self._held
        self._lib.stats(held and held.pointer, ctypes.addressof(counts))
        return counts, self._lib.error()

    @property
    def stats(self) -> Stats:
        counts, why_no_mapping = self._counts()
        error = self.error or why_no_mapping
        members = {name: getattr(counts, name) for name in Stats._fields if name != "error"}
        return Stats(**{**members, "attached": bool(counts.attached), "error": error})

    def not_shared(self, model: str, reason: str) -> None:
        """Tells the daemon that this process serves `model` with caches that are not shared, and
        why. `prefixctl status` and `prefixctl sessions` show it while this client is open, also
        with a daemon that comes later. An empty reason takes it back. Texts are cut to 1,024 bytes;
        models after the first 16 are left out. open_space() reports by itself why it refused."""
        name = _text("not_shared: model", model)
        why = reason.encode(errors="replace").replace(b"\0", b"?")  # may be an exception's text
        held = self._held
        status = self._lib.not_shared(held and held.pointer, name, why)
        if status == _abi.INVALID_ARGUMENT:
            raise Error(self._lib.error())

    def open_space(
        self,
        *,
        model: str,
        layers: Sequence[Layer],
        weights: bytes | None = None,
        tokenizer: bytes | None = None,
        adapter: bytes | None = None,
        rope: Rope | None = None,
        page_layout: str = "rows",
        draft_of: bytes | None = None,
        tensor_parallel: tuple[int, int] = (0, 1),
        pipeline_parallel: tuple[int, int] = (0, 1),
        salt: str = "",
        block_tokens: int = 0,
    ) -> Space:
        """Opens the space of the caches with this identity. A space with another value in any field
        is another space.

        Digests have 32 bytes. `draft_of`: digest of the model whose draft this is.
        `tensor_parallel` and `pipeline_parallel`: rank and number of ranks. Raises Error if the
        identity is impossible ("layer 3, format 0 (mlx_affine/8/128/f16): keys: group_size 128
        does not divide head_dim 64"). Without a daemon the space opens all the same, and attaches
        once there is one.

        `page_layout`: the order of the same codes inside a page. "rows" is the layout of MLX and
        ggml, for engines that read blocks() as such arrays. "tiled" is what prefixd's attention
        reads fastest, if a format has it. "transposed" keeps raw values as [dim, tokens]. gather()
        and write_packed() are the same with any.
        """
        if page_layout not in _PAGE_LAYOUTS:
            names = ", ".join(map(repr, _PAGE_LAYOUTS))
            raise Error(f"open_space: page_layout is {page_layout!r}, must be one of {names}")
        structs = _layer_structs(layers, page_layout)
        rope_struct = _rope_struct(rope or Rope())
        spec = _abi.SpaceSpec(
            model=_text("open_space: model", model),
            weights_digest=_digest("weights", weights),
            adapter_digest=_digest("adapter", adapter),
            tokenizer_digest=_digest("tokenizer", tokenizer),
            target_digest=_digest("draft_of", draft_of),
            draft=draft_of is not None,
            tensor_rank=_count("tensor_parallel", tensor_parallel[0]),
            tensor_parallel=_count("tensor_parallel", tensor_parallel[1]),
            pipeline_rank=_count("pipeline_parallel", pipeline_parallel[0]),
            pipeline_parallel=_count("pipeline_parallel", pipeline_parallel[1]),
            block_tokens=_count("block_tokens", block_tokens),
            layer_count=len(structs),
            rope=ctypes.pointer(rope_struct),
            salt=_text("open_space: salt", salt),
            layers=structs,
        )
        held = self._held
        if held is None or not held.pointer:
            return Space(self._lib, None, layers, page_layout, self.error or "client: no memory for it")
        pointer = self._lib.open_space(held.pointer, ctypes.addressof(spec))
        error = "" if pointer else self._lib.error() or self.error
        if error and self._lib.last_status() == _abi.INVALID_ARGUMENT:
            raise Error(error)
        return Space(self._lib, pointer, layers, page_layout, error)


def connect(
    address: str = DEFAULT_ADDRESS,
    *,
    name: str = "",
    engine: str = "",
    connect_deadline_ms: int | None = None,
    arena: bool = True,
    staging_bytes: int | None = None,
    token_file: Path | str | None = None,
    library: Path | None = None,
    start: bool | None = None,
) -> Client:
    """Returns at once and never raises for a missing daemon or library: the client then has no
    cache, and its `error` says why. It attaches by itself once the daemon is there.

    `start`: starts a prefixd if nobody listens at `address`, a unix socket, and waits until it does,
    20 s at most. It goes on when this process ends. Default: if $PREFIXD_START is 1.

    `address`: "unix:///run/prefixd/prefixd.sock" or "127.0.0.1:7777". `name`: name of this worker,
    for people. `engine`: that and its version, "vllm 0.32.0". `connect_deadline_ms`: deadline of the first try, in open_space(). `arena`: read
    pages in the daemon's memory if the daemon shares it. `staging_bytes`: memory that the daemon
    takes pages from; 0 = none. `token_file`: for a TCP address, your copy of the file that
    prefixd's --token-file names, mode 0600; default: $PREFIXD_TOKEN_FILE. `library`: path of
    libprefixd.so; default: that of PREFIXD_LIBRARY, of the package or of the system.
    """
    staging = _number("connect: staging_bytes", staging_bytes or 0, 0, UINT64)
    options = _abi.Options(
        address=_text("connect: address", address),
        name=_text("connect: name", name or f"python-{os.getpid()}"),
        engine=_text("connect: engine", engine),
        connect_deadline_ms=_ms("connect: connect_deadline_ms", connect_deadline_ms),
        no_arena=not arena,
        no_staging=staging_bytes == 0,
        staging_bytes=staging,
        token_file=_text("connect: token_file", os.fsencode(token_file or "")),
    )
    not_started = _start(address) if _wanted(start) else ""
    lib = _abi.library(library)
    lib.used = lib.used or not lib.why_absent  # set before attach(): another thread may fork in it
    pointer = lib.attach(ctypes.addressof(options))
    if not pointer and not lib.why_absent and lib.last_status() == _abi.INVALID_ARGUMENT:
        raise Error(lib.error())
    return Client(lib, pointer, address, not_started)


def _wanted(start: bool | None) -> bool:
    return os.environ.get("PREFIXD_START") == "1" if start is None else start


def _start(address: str) -> str:
    """Starts a prefixd if none listens. Returns why that failed, or ""."""
    try:
        start_if_absent(address)
    except StartError as error:
        return f"client: {error}"
    return ""


def digest_checkpoint(directory: Path) -> bytes:
    """Returns the SHA-256 over the tensors of a checkpoint directory (*.safetensors). The library
    remembers it by inode, size and time. Without the library returns 32 zeros: there is nothing to
    store under them."""
    return _digest_of(lambda lib, path, out: lib.digest_checkpoint(path, out), directory)


def digest_file(path: Path) -> bytes:
    """Returns the SHA-256 of a file. Without the library returns 32 zeros."""
    return _digest_of(lambda lib, path, out: lib.digest_file(path, out), path)


def _digest_of(call: Callable[[_abi.Library, bytes, Any], int], path: Path) -> bytes:
    name = _text("digest: path", os.fsencode(path))
    lib = _abi.library()
    out = ctypes.create_string_buffer(32)
    if call(lib, name, out) != _abi.OK and not lib.why_absent:
        raise Error(lib.error())
    return out.raw


def _digest(name: str, digest: bytes | None) -> bytes | None:
    if digest is not None and len(digest) != 32:
        raise Error(f"open_space: {name} is a digest of {len(digest)} bytes, must be 32")
    return digest


def _count(name: str, value: int) -> int:
    return _number(f"open_space: {name}", value, 0, UINT32)


def _rope_struct(rope: Rope) -> _abi.Rope:
    params = (ctypes.c_double * len(rope.scaling_params))(*rope.scaling_params)
    return _abi.Rope(
        theta=rope.theta,
        scaling=_text("open_space: scaling", rope.scaling),
        scaling_params=params,
        scaling_param_count=len(params),
        rotary_dim=_count("rotary_dim", rope.rotary_dim),
        interleaved=rope.interleaved,
        key_before_rope=rope.key_before_rope,
    )


def _layer_structs(layers: Sequence[Layer], page_layout: str) -> ctypes.Array[_abi.Layer]:
    structs = [_layer_struct(layer, page_layout) for layer in layers]
    return (_abi.Layer * len(structs))(*structs)


def _layer_struct(layer: Layer, page_layout: str) -> _abi.Layer:
    if isinstance(layer, StateLayer):
        state_bytes = _number("open_space: state_bytes", layer.state_bytes, 0, UINT64)
        return _abi.Layer(kind=_STATE, state_bytes=state_bytes)
    if isinstance(layer, SharedLayer):
        return _abi.Layer(shared=1, reads_layer=_count("reads", layer.reads))
    stored = layer.values == "stored"
    formats = (_abi.Format * len(layer.formats))(
        *(
            _abi.Format(
                f.key.as_struct(f.key.layout_of(page_layout, is_value=False)),
                f.value.as_struct(f.value.layout_of(page_layout, is_value=stored)),
            )
            for f in layer.formats
        )
    )
    struct = _abi.Layer(
        kv_heads=_count("kv_heads", layer.kv_heads),
        key_dim=_count("key_dim", layer.key_dim),
        value_dim=_count("value_dim", layer.value_dim),
        format_count=len(formats),
        formats=formats,
        kind=_FULL,
        values=_known(VALUES, layer.values, "values"),
    )
    if isinstance(layer, SlidingLayer):
        struct.kind = _SLIDING
        struct.window = _count("window", layer.window)
        struct.sink_tokens = _count("sink_tokens", layer.sink_tokens)
    return struct
