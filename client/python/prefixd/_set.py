"""One request in several spaces: a draft beside its target, or the ranks of a model."""

from __future__ import annotations

import ctypes
from typing import Iterable, Sequence

from . import _abi
from ._errors import Error
from ._formats import Content, Format
from ._lease import Lease
from ._space import Formats, Space, Tokens, _nothing_asked, _packed, _set_loading
from ._trace import follow


def acquire_set(
    spaces: Sequence[Space],
    tokens: Tokens,
    *,
    content: Iterable[Content] = (),
    max_cached_tokens: int | None = None,
    deadline_ms: int | None = None,
    load_deadline_ms: int | None = None,
    prefill_tokens_per_s: float = 0.0,
    wait_pending_ms: int = 0,
    readable: Formats | list[Formats | None] | None = None,
    request_id: str = "",
) -> list[Lease]:
    """Looks the tokens up in all the spaces in one round trip. Returns a lease in each. All leases
    begin at one length, the longest that can be restored in every space. The spaces are of one
    client.

    A lease may shrink alone while it loads. The least that wait_all() of any lease returned in the
    end is valid in all spaces, except with sliding or state layers, where a shorter length is 0
    tokens.

    `readable`: as in Space.acquire(), one value for all spaces; or a list with one entry for each
    space, None for all formats. Several formats for all spaces are a tuple or a set.
    """
    packed = _packed(tokens)
    content = list(content)
    infos = (_abi.MatchInfo * len(spaces))(*(_abi.MatchInfo() for _ in spaces))
    pointers = (ctypes.c_void_p * len(spaces))()
    if not spaces:
        return []
    lib = spaces[0]._lib
    if any(space._lib is not lib for space in spaces):
        raise Error("acquire_set: the spaces are of several clients")
    reads = _one_each(readable, len(spaces))
    status, sentence = _abi.OK, ""
    held = [space._held for space in spaces]  # keeps the handles until the call returns
    if not _nothing_asked(packed, max_cached_tokens):
        lookups = [
            space._lookup(content, max_cached_tokens, deadline_ms, formats, request_id)
            for space, formats in zip(spaces, reads)
        ]
        for lookup in lookups:
            _set_loading(lookup, load_deadline_ms, prefill_tokens_per_s, wait_pending_ms)
        members = (_abi.SetMember * len(spaces))(
            *(
                _abi.SetMember(space=handle and handle.pointer, lookup=ctypes.pointer(lookup))
                for handle, lookup in zip(held, lookups)
            )
        )
        follow(lib)
        status = lib.acquire_set(
            ctypes.addressof(members),
            len(spaces),
            packed,
            len(packed) // 4,
            pointers,
            ctypes.addressof(infos),
        )
        sentence = lib.error() if status != _abi.OK else ""
    return [
        space._lease(pointer, info, status, sentence)
        for space, pointer, info in zip(spaces, pointers, infos)
    ]


def _one_each(
    readable: Formats | list[Formats | None] | None, count: int
) -> Sequence[Formats | None]:
    if isinstance(readable, list):
        if len(readable) != count:
            raise Error(f"acquire_set: readable has {len(readable)} entries for {count} spaces")
        return readable
    once = readable if readable is None or isinstance(readable, (int, str, Format)) else tuple(readable)
    return [once] * count
