"""The threads of a client, what a cancelled call leaves behind, and results that are entered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from .._errors import Error

_R = TypeVar("_R")


class _Enterable(Protocol):
    async def __aenter__(self) -> Any: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


_E = TypeVar("_E", bound=_Enterable)


class Threads:
    """Runs calls that block, so many at a time. Used by one event loop."""

    def __init__(self, count: int) -> None:
        if count < 1:
            raise Error(f"connect: threads is {count}, must be at least 1")
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="prefixd-aio")

    def submit(self, call: Callable[[], _R]) -> Future[_R]:
        """`call` sees the caller's context variables, its trace among them."""
        try:
            return self._pool.submit(copy_context().run, call)
        except RuntimeError:  # after close()
            raise Error("the client was closed") from None

    async def run(
        self, call: Callable[[], _R], give_back: Callable[[_R], object] | None = None
    ) -> _R:
        """Returns what `call` returns. If this is cancelled, a call that has not begun is not made,
        and what another returns is passed to `give_back`."""
        job = self.submit(call)
        try:
            return await asyncio.wrap_future(job)
        except asyncio.CancelledError:
            if give_back is not None:
                taken_back = give_back
                job.add_done_callback(lambda done: _give_back(done, taken_back))
            raise

    def close(self) -> None:
        """Takes no more calls. Threads end after those that were taken."""
        self._pool.shutdown(wait=False)


def _give_back(job: Future[_R], give_back: Callable[[_R], object]) -> None:
    if not job.cancelled() and job.exception() is None:
        give_back(job.result())


class Turns:
    """Runs the calls on one object, which is for one thread at a time."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._turn = asyncio.Lock()
        self._last: Future[Any] | None = None

    async def run(self, call: Callable[[], _R]) -> _R:
        """As Threads.run(), once the last call has ended, also if it was cancelled."""
        async with self._turn:
            if self._last is not None and not self._last.done():
                await asyncio.wait([asyncio.wrap_future(self._last)])
            job = self._last = self._threads.submit(call)
            return await asyncio.wrap_future(job)


class Opening(Generic[_E], Awaitable[_E]):
    """What is being opened: `await` gives it, `async with` gives it and closes it at the end."""

    def __init__(self, opened: Coroutine[Any, Any, _E]) -> None:
        self._coming = opened
        self._open: _E | None = None

    def __await__(self) -> Generator[Any, Any, _E]:
        return self._coming.__await__()

    async def __aenter__(self) -> _E:
        self._open = await self._coming
        await self._open.__aenter__()
        return self._open

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._open is not None:
            await self._open.__aexit__(kind, error, trace)
