"""A space: lookups and storing in the caches of one identity."""

from __future__ import annotations

import ctypes
from array import array
from typing import Any, Callable, Iterable, Sequence, Union

import numpy as np
from numpy.typing import NDArray

from . import _abi
from ._errors import Error
from ._formats import Content, Format, Layer, SharedLayer, SlidingLayer, StateLayer
from ._lease import Lease, Match, match_of
from ._numbers import UINT32, _ms, _number, _real
from ._plan import Plan
from ._planes import tensors_of
from ._trace import follow

Tokens = Union[Sequence[int], NDArray[Any]]
Formats = Union[int, str, Format, Iterable[Union[int, str, Format]]]

_UINT32 = np.dtype(np.uint32)
# Copying a struct takes a quarter of the time of making one.
_NO_LOOKUP, _NO_MATCH = bytes(_abi.Lookup()), bytes(_abi.MatchInfo())


class Space:
    """A thread-safe space. It keeps its client's session alive until it is closed or collected."""

    def __init__(
        self,
        lib: _abi.Library,
        pointer: int | None,
        layers: Sequence[Layer],
        page_layout: str,
        error: str,
    ) -> None:
        self._lib = lib
        self._held: _abi.Handle | None = _abi.Handle(lib, pointer, "close_space")
        self._error = error
        self.layers = tuple(layers)
        known: dict[Layer, Any] = {}
        own = [
            known.get(layer) or known.setdefault(layer, tensors_of(lib, layer, page_layout))
            for layer in self.layers
        ]
        self._tensors = [own[_owner(self.layers, at)] for at in range(len(own))]
        self._states = [
            layer.state_bytes if isinstance(layer, StateLayer) else 0 for layer in self.layers
        ]
        owners = [self.layers[_owner(self.layers, at)] for at in range(len(own))]
        self._windows = [
            layer.window if isinstance(layer, SlidingLayer) else 0 for layer in owners
        ]

    def __repr__(self) -> str:
        if self._held is None:
            return "<prefixd.Space closed>"
        state = f", {self.error}" if self.error else ""
        return f"<prefixd.Space {self.id or 'not open yet'}, {len(self.layers)} layers{state}>"

    @property
    def error(self) -> str:
        """Why the space has no cache, for good; "" while a daemon may serve it."""
        return self._error or self._lib.why_absent

    @property
    def block_tokens(self) -> int:
        return int(self._facts().block_tokens)

    @property
    def payload_bytes_per_token(self) -> int:
        """Payload bytes of a token in the first format of each layer, without padding."""
        return int(self._facts().payload_bytes_per_token)

    @property
    def id(self) -> str:
        """The space id in hex; "" until a daemon has opened the space."""
        return str(self._facts().id, "ascii")

    def match(
        self,
        tokens: Tokens,
        *,
        content: Iterable[Content] = (),
        max_cached_tokens: int | None = None,
        deadline_ms: int | None = None,
        readable: Formats | None = None,
        request_id: str = "",
    ) -> Match:
        """Looks the tokens up. Changes nothing."""
        packed = _packed(tokens)
        info = _abi.MatchInfo.from_buffer_copy(_NO_MATCH)
        if _nothing_asked(packed, max_cached_tokens):
            return Match()
        lookup = self._lookup(content, max_cached_tokens, deadline_ms, readable, request_id)
        status = self._ask(self._lib.match, packed, lookup, info)
        return match_of(info, self._told(status, self._lib.error()))

    def prefetch(
        self,
        tokens: Tokens,
        *,
        content: Iterable[Content] = (),
        max_cached_tokens: int | None = None,
        deadline_ms: int | None = None,
        readable: Formats | None = None,
        request_id: str = "",
    ) -> int:
        """Tells the daemon that a request with these tokens is queued. The daemon reads what is on
        SSD into its RAM, behind what others wait for. Returns the tokens that will be there; holds
        nothing."""
        packed = _packed(tokens)
        if _nothing_asked(packed, max_cached_tokens):
            return 0
        lookup = self._lookup(content, max_cached_tokens, deadline_ms, readable, request_id)
        there = ctypes.c_uint32(0)
        self._ask(self._lib.prefetch, packed, lookup, there)
        return there.value

    def acquire(
        self,
        tokens: Tokens,
        *,
        content: Iterable[Content] = (),
        max_cached_tokens: int | None = None,
        deadline_ms: int | None = None,
        load_deadline_ms: int | None = None,
        prefill_tokens_per_s: float = 0.0,
        wait_pending_ms: int = 0,
        readable: Formats | None = None,
        request_id: str = "",
    ) -> Lease:
        """Looks the tokens up, leases what is there and starts loading it.

        An engine that needs logits asks for `max_cached_tokens` of len(tokens) - 1. `readable`: formats
        that the engine takes, by name or by index into the layers' formats; default: all. A layer
        with fewer formats reads its last one for an index beyond. `wait_pending_ms`: how long to
        wait while another worker computes tokens of this request.
        """
        packed = _packed(tokens)
        info = _abi.MatchInfo.from_buffer_copy(_NO_MATCH)
        if _nothing_asked(packed, max_cached_tokens):
            return Lease(self._lib, None, info, "", self._tensors, self._states, self._windows)
        lookup = self._lookup(content, max_cached_tokens, deadline_ms, readable, request_id)
        _set_loading(lookup, load_deadline_ms, prefill_tokens_per_s, wait_pending_ms)
        space = self._held
        follow(self._lib)
        pointer = self._lib.acquire(
            space and space.pointer,
            packed,
            len(packed) // 4,
            ctypes.addressof(lookup),
            ctypes.addressof(info),
        )
        status = self._lib.last_status()
        sentence = self._lib.error() if status != _abi.OK else ""
        return self._lease(pointer, info, status, sentence)

    def reserve(
        self,
        tokens: Tokens,
        *,
        content: Iterable[Content] = (),
        turn_ends: Sequence[int] = (),
        writable: Formats | None = None,
        readable: Formats | None = None,
        coarser: Formats = (),
        deadline_ms: int | None = None,
    ) -> Plan:
        """Asks which of the tokens the cache lacks, and announces that this worker will store them.

        `writable`: the one format that write_packed() will bring, by name or index; default: the
        first. A layer with fewer formats takes its last one for an index beyond. `readable`: a
        block that is here in one of these formats is not written; default: all. `coarser`: formats
        that write_packed() can bring instead while the daemon advises it; Plan.formats says which
        one it must bring.
        """
        packed = _packed(tokens)
        ends = _packed(turn_ends)
        end_count = len(ends) // 4
        items = _content_array(content)
        write_format = self._write_format(writable)
        options = _abi.ReserveOptions(
            content=items,
            content_count=0 if items is None else len(items),
            deadline_ms=_ms("reserve: deadline_ms", deadline_ms),
            write_format=write_format,
            turn_ends=(ctypes.c_uint32 * end_count).from_buffer_copy(ends),
            turn_end_count=end_count,
            readable=self._mask(readable),
            coarser_formats=self._mask(coarser) if coarser else 0,
        )
        space = self._held
        follow(self._lib)
        pointer = self._lib.reserve(
            space and space.pointer, packed, len(packed) // 4, ctypes.addressof(options)
        )
        status, sentence = self._lib.last_status(), self._lib.error()
        plan = Plan(self._lib, pointer, self._error, self._tensors, write_format, len(packed) // 4)
        if status != _abi.OK:
            plan.error = self._told(status, sentence)
        return plan

    def close(self) -> None:
        """Closes the space. Leases and plans stay; lookups find nothing any more."""
        self._held = None
        self._error = self._error or "space: closed"

    def _lease(
        self, pointer: int | None, info: _abi.MatchInfo, status: int, sentence: str
    ) -> Lease:
        lease = Lease(self._lib, pointer, info, self._error, self._tensors, self._states, self._windows)
        if status != _abi.OK:
            lease.error = self._told(status, sentence)
        return lease

    def _told(self, status: int, sentence: str) -> str:
        """Returns why a call gave nothing. Raises Error if it is the caller's mistake."""
        if status == _abi.OK:
            return ""
        if status == _abi.INVALID_ARGUMENT:
            raise Error(sentence)
        return self.error or sentence

    def _facts(self) -> _abi.SpaceFacts:
        facts = _abi.SpaceFacts()
        space = self._held
        self._lib.describe_space(space and space.pointer, ctypes.addressof(facts))
        return facts

    def _ask(self, function: Callable[..., int], packed: bytes, lookup: _abi.Lookup, out: Any) -> int:
        space = self._held
        follow(self._lib)
        return function(
            space and space.pointer,
            packed,
            len(packed) // 4,
            ctypes.addressof(lookup),
            ctypes.addressof(out),
        )

    def _lookup(
        self,
        content: Iterable[Content],
        max_cached_tokens: int | None,
        deadline_ms: int | None,
        readable: Formats | None,
        request_id: str,
    ) -> _abi.Lookup:
        lookup = _abi.Lookup.from_buffer_copy(_NO_LOOKUP)
        lookup.max_cached_tokens = UINT32 if max_cached_tokens is None else int(max_cached_tokens)
        if deadline_ms is not None:
            lookup.deadline_ms = _ms("deadline_ms", deadline_ms)
        if request_id:
            lookup.request_id = request_id.encode(errors="replace")
        if readable is not None:
            lookup.readable = self._mask(readable)
        items = _content_array(content) if content else None
        if items is not None:
            lookup.content, lookup.content_count = items, len(items)
        return lookup

    def _write_format(self, writable: Formats | None) -> int:
        if writable is None:
            return 0
        formats = [writable] if isinstance(writable, (int, str, Format)) else list(writable)
        if len(formats) != 1:
            raise Error(f"reserve: {len(formats)} writable formats, write_packed() brings one")
        return self._format_index(formats[0])

    def _mask(self, formats: Formats | None) -> int:
        """Returns the formats as a bit mask; 0 = all."""
        if formats is None:
            return 0
        formats = [formats] if isinstance(formats, (int, str, Format)) else list(formats)
        if not formats:
            raise Error("readable: no format named")
        return sum({1 << self._format_index(format) for format in formats})

    def _format_index(self, format: int | str | Format) -> int:
        count = max(len(layer.formats) for layer in self.layers)
        if isinstance(format, int):
            if not 0 <= format < count:
                raise Error(f"format {format}, the space has {count}")
            return format
        name = format.name if isinstance(format, Format) else format
        places = {
            index
            for layer in self.layers
            for index, known in enumerate(layer.formats)
            if known.name == name
        }
        if len(places) != 1:
            names = sorted({known.name for layer in self.layers for known in layer.formats})
            what = "is none of" if not places else "stands at different places in the layers, of"
            raise Error(f"format {name!r} {what} {', '.join(names)}")
        return places.pop()


def _owner(layers: Sequence[Layer], at: int) -> int:
    """Returns the layer whose K and V layer `at` reads: itself unless it shares another's."""
    layer = layers[at]
    if isinstance(layer, SharedLayer) and 0 <= layer.reads < len(layers):
        return layer.reads
    return at


def _set_loading(
    lookup: _abi.Lookup,
    load_deadline_ms: int | None,
    prefill_tokens_per_s: float,
    wait_pending_ms: int,
) -> None:
    if load_deadline_ms is not None:
        lookup.load_deadline_ms = _ms("load_deadline_ms", load_deadline_ms)
    if prefill_tokens_per_s:
        lookup.prefill_tokens_per_s = _real("prefill_tokens_per_s", prefill_tokens_per_s)
    if wait_pending_ms:
        lookup.wait_pending_ms = _number("wait_pending_ms", wait_pending_ms, 0, UINT32)


def _packed(tokens: Tokens) -> bytes:
    """Returns the tokens as 32 bits each, which ctypes takes as a pointer at no further cost."""
    if isinstance(tokens, np.ndarray):
        if tokens.dtype is _UINT32 and tokens.ndim == 1:
            return tokens.tobytes()
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            raise Error(f"tokens: {list(tokens.shape)} of {tokens.dtype}, must be a list of ids")
        tokens = tokens.tolist()
    try:
        return array("I", tokens).tobytes()
    except (TypeError, ValueError, OverflowError) as error:
        raise Error(f"tokens: must be integers of 32 bits: {error}") from None


def _nothing_asked(packed: bytes, most: int | None) -> bool:
    """True if no token is asked for. Raises if max_cached_tokens is no number of tokens."""
    if not packed:
        return True  # even if max_cached_tokens is len(tokens) - 1, which is -1
    return most is not None and _number("max_cached_tokens", most, 0, UINT32) == 0


def _content_array(content: Iterable[Content]) -> Any:
    items = list(content) if content else []
    if not items:
        return None
    structs = (_abi.Content * len(items))()
    for struct, item in zip(structs, items):
        if len(item.digest) != 32:
            raise Error(f"content: a digest of {len(item.digest)} bytes, must be 32")
        for name in ("start", "length", "item_offset"):
            setattr(struct, name, _number(f"content: {name}", getattr(item, name), 0, UINT32))
        struct.digest[:] = item.digest
    return structs
