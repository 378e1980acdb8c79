"""Leases and plans whose calls are awaited."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

from numpy.typing import NDArray

from .. import _lease, _plan
from .._planes import Array, Arrays
from ._threads import Threads, Turns


class Lease:
    """The cached tokens of a request, as prefixd.Lease. Leaving `async with`, or release(), gives
    the pages back; a call that still reads them keeps them until it ends."""

    def __init__(self, threads: Threads, plain: _lease.Lease) -> None:
        self.plain = plain  # for what is not here, such as gather_batch(), in a thread of yours
        self._turns = Turns(threads)

    def __repr__(self) -> str:
        return f"<prefixd.aio.Lease over {self.plain!r}>"

    async def __aenter__(self) -> Lease:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    @property
    def match(self) -> _lease.Match:
        return self.plain.match

    @property
    def match_kind(self) -> str:
        return self.plain.match_kind

    @property
    def reasons(self) -> tuple[_lease.Reason, ...]:
        return self.plain.reasons

    @property
    def error(self) -> str:
        return self.plain.error

    @property
    def restorable_tokens(self) -> int:
        return self.plain.restorable_tokens

    async def wait(self, layer: int, deadline_ms: int | None = None) -> int:
        return await self._turns.run(lambda: self.plain.wait(layer, deadline_ms))

    async def wait_all(self, deadline_ms: int | None = None) -> int:
        return await self._turns.run(lambda: self.plain.wait_all(deadline_ms))

    async def gather(
        self,
        layer: int,
        tokens: int | None = None,
        *,
        begin: int | None = None,
        out: tuple[Arrays, Arrays] | None = None,
    ) -> tuple[_lease.Planes, _lease.Planes] | None:
        return await self._turns.run(lambda: self.plain.gather(layer, tokens, begin=begin, out=out))

    async def gather_rows(
        self,
        layer: int,
        out: tuple[Any, Any],
        *,
        begin: int = 0,
        dtype: str | None = None,
    ) -> bool:
        return await self._turns.run(
            lambda: self.plain.gather_rows(layer, out, begin=begin, dtype=dtype)
        )

    async def state(self, layer: int, out: NDArray[Any] | None = None) -> NDArray[Any] | None:
        return await self._turns.run(lambda: self.plain.state(layer, out))

    async def blocks(self, layer: int) -> list[_lease.Block]:
        return await self._turns.run(lambda: self.plain.blocks(layer))

    async def page_names(self, layer: int) -> list[bytes]:
        return await self._turns.run(lambda: self.plain.page_names(layer))

    async def runs(self, layer: int) -> list[tuple[int, int, int]]:
        return await self._turns.run(lambda: self.plain.runs(layer))

    def release(
        self,
        *,
        used_tokens: int | None = None,
        first_token_ms: float = 0.0,
        prefill_tokens_per_s: float = 0.0,
    ) -> None:
        """As prefixd.Lease.release(), which waits for nobody."""
        self.plain.release(
            used_tokens=used_tokens,
            first_token_ms=first_token_ms,
            prefill_tokens_per_s=prefill_tokens_per_s,
        )


class Plan:
    """A plan to store tokens, as prefixd.Plan. Leaving `async with`, or abandon(), gives up what was
    not committed, once a call that still writes has ended."""

    def __init__(self, threads: Threads, plain: _plan.Plan) -> None:
        self.plain = plain
        self._turns = Turns(threads)

    def __repr__(self) -> str:
        return f"<prefixd.aio.Plan over {self.plain!r}>"

    async def __aenter__(self) -> Plan:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.abandon()

    @property
    def missing(self) -> Sequence[_plan.Run]:
        return self.plain.missing

    @property
    def formats(self) -> Sequence[int]:
        return self.plain.formats

    @property
    def error(self) -> str:
        return self.plain.error

    @property
    def snapshots_wanted(self) -> tuple[int, ...]:
        return self.plain.snapshots_wanted

    async def write_packed(
        self, layer: int, begin: int = 0, *, key: Arrays, value: Arrays = ()
    ) -> bool:
        return await self._turns.run(
            lambda: self.plain.write_packed(layer, begin, key=key, value=value)
        )

    async def write_rows(
        self,
        layer: int,
        begin: int = 0,
        *,
        key: Array,
        value: Array = None,
        dtype: str | None = None,
    ) -> bool:
        return await self._turns.run(
            lambda: self.plain.write_rows(layer, begin, key=key, value=value, dtype=dtype)
        )

    async def put_state(self, layer: int, tokens: int, state: Array) -> bool:
        return await self._turns.run(lambda: self.plain.put_state(layer, tokens, state))

    async def commit(
        self, tokens: int, sequence_end: bool = False, *, deadline_ms: int | None = None
    ) -> _plan.CommitInfo:
        return await self._turns.run(
            lambda: self.plain.commit(tokens, sequence_end, deadline_ms=deadline_ms)
        )

    def abandon(self) -> None:
        """As prefixd.Plan.abandon(), which waits for nobody."""
        self.plain.abandon()
