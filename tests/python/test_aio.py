"""prefixd.aio: calls are awaited, the event loop never waits, and what is cancelled goes back."""

from __future__ import annotations

import asyncio
import inspect
import re
import signal
import threading
import time
import typing
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import prefixd
import prefixd.aio
from prefixd.aio import _client as options
from prefixd.aio._threads import Threads, Turns
from support import PACKAGE, PATIENCE_MS, DaemonTest, Engine, same

PATIENCE_S = PATIENCE_MS / 1000
LONG_MS = PATIENCE_MS  # nobody waits that long: what blocked the loop would fail


class Gate:
    """A call that blocks its thread until the loop opens it."""

    def __init__(self, result: object = None) -> None:
        self.open = threading.Event()
        self.entered = threading.Event()
        self.calls = 0
        self._result = result

    def __call__(self, *_: object, **__: object) -> object:
        self.calls += 1
        self.entered.set()
        if not self.open.wait(PATIENCE_S):
            raise AssertionError("the loop was blocked by this call")
        return self._result


async def until(holds: typing.Callable[[], bool]) -> None:
    """Returns once the condition holds, with the loop running."""
    end = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > end:
            raise AssertionError("never")
        await asyncio.sleep(0)


class ThreadsTest(unittest.IsolatedAsyncioTestCase):
    def threads(self, count: int) -> Threads:
        made = Threads(count)
        self.addCleanup(made.close)
        return made

    async def test_the_loop_runs_while_a_call_blocks(self):
        gate = Gate(7)
        call = asyncio.create_task(self.threads(1).run(gate))
        await until(gate.entered.is_set)
        gate.open.set()
        self.assertEqual(await call, 7)

    async def test_what_a_cancelled_call_gives_goes_back(self):
        gate, given = Gate("lease"), []
        call = asyncio.create_task(self.threads(1).run(gate, given.append))
        await until(gate.entered.is_set)
        call.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await call
        self.assertEqual(given, [], "it raises before its thread is done")
        gate.open.set()
        await until(lambda: given == ["lease"])

    async def test_what_came_just_before_the_call_was_cancelled_goes_back_too(self):
        gate, given, threads = Gate("lease"), [], self.threads(1)
        gate.open.set()
        call = asyncio.create_task(threads.run(gate, given.append))
        await asyncio.sleep(0)  # the task submits the call, and the loop is not entered until it is over
        with ThreadPoolExecutor(1) as other:
            other.submit(threads.submit(lambda: None).result).result(PATIENCE_S)
        call.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await call
        await until(lambda: given == ["lease"])

    async def test_a_cancelled_call_that_waited_for_its_turn_is_not_made(self):
        threads, first, second = self.threads(1), Gate(), Gate()
        calls = [asyncio.create_task(threads.run(gate)) for gate in (first, second)]
        await until(first.entered.is_set)
        calls[1].cancel()
        with self.assertRaises(asyncio.CancelledError):
            await calls[1]
        first.open.set()
        await calls[0]
        await threads.run(lambda: None)
        self.assertEqual(second.calls, 0)

    async def test_no_more_calls_run_at_a_time_than_there_are_threads(self):
        threads, gate = self.threads(3), Gate()
        calls = [asyncio.create_task(threads.run(gate)) for _ in range(20)]
        await until(lambda: gate.calls == 3)
        self.assertEqual((len(threads._pool._threads), gate.calls), (3, 3))
        gate.open.set()
        await asyncio.gather(*calls)
        self.assertEqual(gate.calls, 20)

    async def test_calls_on_one_object_run_one_at_a_time_also_behind_a_cancelled_one(self):
        turns, first, second = Turns(self.threads(4)), Gate(), Gate()
        cancelled = asyncio.create_task(turns.run(first))
        await until(first.entered.is_set)
        cancelled.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await cancelled
        other = asyncio.create_task(turns.run(second))
        for _ in range(100):
            await asyncio.sleep(0)
        self.assertEqual(second.calls, 0)
        first.open.set()
        await until(second.entered.is_set)
        second.open.set()
        await other

    async def test_no_thread_is_a_callers_mistake(self):
        with self.assertRaisesRegex(prefixd.Error, "threads is 0"):
            prefixd.aio.connect("unix:///none", threads=0)


class OptionsTest(unittest.TestCase):
    def test_calls_take_the_options_of_the_plain_ones(self):
        for ours, plain in (
            (options.ConnectOptions, prefixd.connect),
            (options.SpaceOptions, prefixd.Client.open_space),
            (options.LookupOptions, prefixd.Space.match),
            (options.LookupOptions, prefixd.Space.prefetch),
            (options.AcquireOptions, prefixd.Space.acquire),
            (options.AcquireOptions, prefixd.acquire_set),
            (options.ReserveOptions, prefixd.Space.reserve),
        ):
            with self.subTest(plain=plain.__qualname__):
                named = inspect.signature(plain).parameters.values()
                keywords = {p.name for p in named if p.kind is p.KEYWORD_ONLY} - {"model", "layers"}
                self.assertEqual(keywords, set(ours.__annotations__))

    def test_leases_and_plans_have_the_calls_of_the_plain_ones(self):
        for ours, plain in (
            (prefixd.aio.Lease, prefixd.Lease),
            (prefixd.aio.Plan, prefixd.Plan),
            (prefixd.aio.Space, prefixd.Space),
            (prefixd.aio.Client, prefixd.Client),
        ):
            unlike = {"stored_format", "address"}  # for gather_batch(); of the caller
            names = {name for name in dir(plain) if not name.startswith("_")} - unlike
            self.assertEqual(names - set(dir(ours)), set(), plain)
            for name in names & set(vars(plain)):
                call, awaited = getattr(plain, name), getattr(ours, name, None)
                if inspect.iscoroutinefunction(awaited) and "options" not in arguments(awaited):
                    self.assertEqual(arguments(call), arguments(awaited), name)


class AioTest(DaemonTest, unittest.IsolatedAsyncioTestCase):
    def stopped(self) -> None:
        """Stops the daemon's process: it answers nobody until it goes on."""
        self.daemon.process.send_signal(signal.SIGSTOP)
        self.addCleanup(self.goes_on)
        threads = Path(f"/proc/{self.daemon.process.pid}/task")
        end = time.monotonic() + PATIENCE_S
        while any(" T " not in (one / "stat").read_text() for one in threads.iterdir()):
            self.assertLess(time.monotonic(), end, "it does not stop")

    def goes_on(self) -> None:
        self.daemon.process.send_signal(signal.SIGCONT)

    async def opened(self, engine: Engine, threads: int = 4) -> prefixd.aio.Space:
        """A space of a client that is attached, and has the first 500 tokens stored."""
        self.daemon.start()
        client = await prefixd.aio.connect(self.daemon.address, threads=threads)
        self.addAsyncCleanup(client.close)
        self.assertTrue(await client.wait_attached(PATIENCE_MS), client.error)
        space = await client.open_space(**identity(engine))
        self.assertEqual(engine.store(space.plain, 500), 500)
        return space

    async def test_the_program_of_the_readme_stores_and_restores_bit_for_bit(self):
        text = (PACKAGE / "README.md").read_text()
        (program,) = re.findall(r"## asyncio\n.*?```python\n(.*?)```", text, re.S)
        names: dict[str, typing.Any] = {}
        exec(program, names)
        self.daemon.start()
        with self.connect() as client:
            self.assertTrue(client.wait_attached(PATIENCE_MS))
        engines = [Engine(seed=seed) for seed in range(1, 6)]
        requests = [(engine.tokens(300), engine.cache(300)) for engine in engines]
        cold = await names["main"](self.daemon.address, identity(engines[0]), requests)
        self.assertEqual([n for n, _ in cold], [0] * 5)
        warm = await names["main"](self.daemon.address, identity(engines[0]), requests)
        self.assertEqual([n for n, _ in warm], [299] * 5)
        for engine, (n, found) in zip(engines, warm):
            self.assertTrue(same(found, engine.cache(n)))

    async def test_a_hanging_daemon_does_not_stop_the_loop(self):
        engine = Engine()
        space = await self.opened(engine)
        self.stopped()
        coming = asyncio.create_task(
            space._acquired(engine.tokens(500), {"deadline_ms": LONG_MS, "max_cached_tokens": 499})
        )
        matching = asyncio.create_task(space.match(engine.tokens(500), deadline_ms=LONG_MS))
        for _ in range(100):
            await asyncio.sleep(0)
        self.assertFalse(coming.done() or matching.done())
        self.goes_on()  # which a loop that waits would never come to
        async with await coming as lease:
            self.assertEqual(await lease.wait_all(), 499)
        self.assertEqual((await matching).matched_tokens, 500)

    async def test_a_cancelled_acquire_gives_its_lease_back(self):
        engine = Engine()
        space = await self.opened(engine)
        entered, released = threading.Event(), threading.Event()
        acquire, release = space.plain.acquire, prefixd.Lease.release

        def acquiring(*given: typing.Any, **more: typing.Any) -> prefixd.Lease:
            entered.set()
            return acquire(*given, **more)

        def releasing(lease: prefixd.Lease, **more: typing.Any) -> None:
            release(lease, **more)
            released.set()

        async def serve() -> None:
            async with space.acquire(engine.tokens(500), deadline_ms=LONG_MS):
                self.fail("the daemon answered while it was stopped")

        with (
            mock.patch.object(space.plain, "acquire", acquiring),
            mock.patch.object(prefixd.Lease, "release", releasing),
        ):
            self.stopped()
            serving = asyncio.create_task(serve())
            await until(entered.is_set)
            serving.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await serving
            self.assertFalse(released.is_set())
            self.goes_on()
            await until(released.is_set)
        await self.nothing_is_held()

    async def nothing_is_held(self) -> None:
        end = time.monotonic() + PATIENCE_S
        while True:
            status = await asyncio.to_thread(self.daemon.ctl, "status")
            if status["leases"] == status["reservations"] == 0:
                return
            self.assertLess(time.monotonic(), end, status)

    async def test_leaving_with_an_error_gives_leases_and_plans_back(self):
        engine = Engine()
        space = await self.opened(engine)
        with self.assertRaises(KeyError):
            async with space.acquire(engine.tokens(500)) as lease, space.reserve(engine.tokens(900)) as plan:
                self.assertEqual(await lease.wait_all(), 500)
                self.assertTrue(plan.missing)
                raise KeyError
        with self.assertRaisesRegex(prefixd.Error, "was released"):
            await lease.wait_all()
        self.assertEqual(plan.missing, ())
        await self.nothing_is_held()

    async def test_ranks_are_looked_up_together(self):
        engine = Engine()
        space = await self.opened(engine)
        leases = await prefixd.aio.acquire_set([space, space], engine.tokens(500))
        self.assertEqual([await lease.wait_all() for lease in leases], [500, 500])
        self.assertEqual(await prefixd.aio.acquire_set([], engine.tokens(500)), [])

    async def test_without_a_daemon_there_are_no_tokens_and_no_exception(self):
        engine = Engine()
        async with prefixd.aio.connect(self.daemon.address, connect_deadline_ms=1) as client:
            self.assertFalse(client.attached)
            self.assertTrue(client.error)
            space = await client.open_space(**identity(engine))
            async with space.acquire(engine.tokens(500)) as lease:
                self.assertEqual(await lease.wait_all(), 0)
            async with space.reserve(engine.tokens(500)) as plan:
                self.assertEqual((await plan.commit(0)).stored_tokens, 0)

    async def test_after_close_calls_are_refused_and_leases_can_be_given_back(self):
        engine = Engine()
        space = await self.opened(engine)
        client = await prefixd.aio.connect(self.daemon.address)
        other = await client.open_space(**identity(engine))
        lease = await other.acquire(engine.tokens(500))
        await client.close()
        await client.close()
        with self.assertRaisesRegex(prefixd.Error, "the client was closed"):
            await other.match(engine.tokens(500))
        lease.release()
        other.close()
        self.assertEqual((await space.match(engine.tokens(500))).matched_tokens, 500)
        await self.nothing_is_held()


def arguments(call: typing.Callable[..., object]) -> dict[str, tuple[object, object]]:
    named = inspect.signature(call).parameters
    return {name: (one.kind, one.default) for name, one in named.items()}


def identity(engine: Engine) -> dict[str, typing.Any]:
    layer = prefixd.FullLayer(engine.heads, engine.dim, engine.dim, engine.formats)
    return dict(
        model="tiny",
        weights=bytes([1]) * 32,
        tokenizer=bytes([2]) * 32,
        rope=prefixd.Rope(theta=10_000, rotary_dim=engine.dim),
        layers=[layer] * engine.layers,
    )


if __name__ == "__main__":
    unittest.main()
