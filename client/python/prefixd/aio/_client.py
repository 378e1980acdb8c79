"""The client and its spaces, whose calls are awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TypedDict, Unpack

from .. import _client, _lease, _plan, _set, _space
from .._errors import Error
from .._formats import Content, Layer, Rope
from .._space import Formats, Tokens
from ._lease import Lease, Plan
from ._threads import Opening, Threads

THREADS = 8


class ConnectOptions(TypedDict, total=False):
    """Those of prefixd.connect()."""

    name: str
    engine: str
    connect_deadline_ms: int | None
    arena: bool
    staging_bytes: int | None
    token_file: _client.Path | str | None
    library: _client.Path | None
    start: bool | None


class SpaceOptions(TypedDict, total=False):
    """Those of prefixd.Client.open_space()."""

    weights: bytes | None
    tokenizer: bytes | None
    adapter: bytes | None
    rope: Rope | None
    page_layout: str
    draft_of: bytes | None
    tensor_parallel: tuple[int, int]
    pipeline_parallel: tuple[int, int]
    salt: str
    block_tokens: int


class LookupOptions(TypedDict, total=False):
    """Those of prefixd.Space.match() and prefetch()."""

    content: Iterable[Content]
    max_cached_tokens: int | None
    deadline_ms: int | None
    readable: Formats | None
    request_id: str


class AcquireOptions(LookupOptions, total=False):
    """Those of prefixd.Space.acquire()."""

    load_deadline_ms: int | None
    prefill_tokens_per_s: float
    wait_pending_ms: int


class ReserveOptions(TypedDict, total=False):
    """Those of prefixd.Space.reserve()."""

    content: Iterable[Content]
    turn_ends: Sequence[int]
    writable: Formats | None
    readable: Formats | None
    coarser: Formats
    deadline_ms: int | None


class Client:
    """A connection, as prefixd.Client. Leaving `async with`, or close(), ends the session, once its
    spaces, leases and plans are gone too."""

    def __init__(self, threads: Threads, plain: _client.Client) -> None:
        self.plain = plain
        self._threads = threads

    def __repr__(self) -> str:
        return f"<prefixd.aio.Client over {self.plain!r}>"

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Waits for the calls that were made before, by their deadlines. Calls after it, on the
        client and on what came from it, raise Error; leases and plans can still be given back."""
        try:
            closed = self._threads.submit(self.plain.close)
        except Error:
            return  # it is closed
        self._threads.close()
        await asyncio.wait([asyncio.wrap_future(closed)])

    @property
    def attached(self) -> bool:
        return self.plain.attached

    @property
    def error(self) -> str:
        return self.plain.error

    @property
    def stats(self) -> _client.Stats:
        return self.plain.stats

    async def wait_attached(self, deadline_ms: int) -> bool:
        return await self._threads.run(lambda: self.plain.wait_attached(deadline_ms))

    async def not_shared(self, model: str, reason: str) -> None:
        await self._threads.run(lambda: self.plain.not_shared(model, reason))

    async def open_space(
        self, *, model: str, layers: Sequence[Layer], **options: Unpack[SpaceOptions]
    ) -> Space:
        plain = await self._threads.run(
            lambda: self.plain.open_space(model=model, layers=layers, **options),
            _space.Space.close,
        )
        return Space(self._threads, plain)


class Space:
    """A space, as prefixd.Space."""

    def __init__(self, threads: Threads, plain: _space.Space) -> None:
        self.plain = plain
        self._threads = threads

    def __repr__(self) -> str:
        return f"<prefixd.aio.Space over {self.plain!r}>"

    @property
    def error(self) -> str:
        return self.plain.error

    @property
    def layers(self) -> tuple[Layer, ...]:
        return self.plain.layers

    @property
    def block_tokens(self) -> int:
        return self.plain.block_tokens

    @property
    def payload_bytes_per_token(self) -> int:
        return self.plain.payload_bytes_per_token

    @property
    def id(self) -> str:
        return self.plain.id

    async def match(self, tokens: Tokens, **options: Unpack[LookupOptions]) -> _lease.Match:
        return await self._threads.run(lambda: self.plain.match(tokens, **options))

    async def prefetch(self, tokens: Tokens, **options: Unpack[LookupOptions]) -> int:
        return await self._threads.run(lambda: self.plain.prefetch(tokens, **options))

    def acquire(self, tokens: Tokens, **options: Unpack[AcquireOptions]) -> Opening[Lease]:
        """`async with space.acquire(tokens) as lease`, or `lease = await space.acquire(tokens)`."""
        return Opening(self._acquired(tokens, options))

    def reserve(self, tokens: Tokens, **options: Unpack[ReserveOptions]) -> Opening[Plan]:
        """`async with space.reserve(tokens) as plan`, or `plan = await space.reserve(tokens)`."""
        return Opening(self._reserved(tokens, options))

    def close(self) -> None:
        self.plain.close()

    async def _acquired(self, tokens: Tokens, options: AcquireOptions) -> Lease:
        plain = await self._threads.run(
            lambda: self.plain.acquire(tokens, **options), _lease.Lease.release
        )
        return Lease(self._threads, plain)

    async def _reserved(self, tokens: Tokens, options: ReserveOptions) -> Plan:
        plain = await self._threads.run(
            lambda: self.plain.reserve(tokens, **options), _plan.Plan.abandon
        )
        return Plan(self._threads, plain)


def connect(
    address: str = _client.DEFAULT_ADDRESS,
    *,
    threads: int = THREADS,
    **options: Unpack[ConnectOptions],
) -> Opening[Client]:
    """`async with connect(...) as client`, or `client = await connect(...)`.

    `threads`: how many calls run at a time; threads are made as they are needed."""
    return Opening(_connected(address, Threads(threads), options))


async def _connected(address: str, threads: Threads, options: ConnectOptions) -> Client:
    try:
        plain = await threads.run(
            lambda: _client.connect(address, **options), _client.Client.close
        )
    except BaseException:
        threads.close()
        raise
    return Client(threads, plain)


async def acquire_set(
    spaces: Sequence[Space], tokens: Tokens, **options: Unpack[AcquireOptions]
) -> list[Lease]:
    """As prefixd.acquire_set(), with the same `readable` for all spaces."""
    if not spaces:
        return []
    threads = spaces[0]._threads
    plain = await threads.run(
        lambda: _set.acquire_set([space.plain for space in spaces], tokens, **options),
        _release_all,
    )
    return [Lease(threads, lease) for lease in plain]


def _release_all(leases: list[_lease.Lease]) -> None:
    for lease in leases:
        lease.release()
