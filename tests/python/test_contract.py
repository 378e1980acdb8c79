"""What raises, how long memory lives, and what threads, forks and the end of a process do."""

import gc
import hashlib
import os
import struct
import sys
import threading
import unittest
import weakref

import numpy as np
import prefixd
from support import PATIENCE_MS, DaemonTest, Engine, Tried, run_script


class MistakeTest(DaemonTest):
    """A caller's mistake is an Error with a sentence that names it."""

    def setUp(self):
        super().setUp()
        self.daemon.start()
        self.client = self.attached()
        self.engine = Engine()
        self.space = self.engine.open(self.client)

    def test_an_impossible_space_is_refused_by_name(self):
        for engine, sentence in (
            (Engine(prefixd.mlx_affine(8, 48)), "group_size of mlx_affine 48"),
            (Engine(prefixd.mlx_affine(7, 64)), "7"),
            (Engine(prefixd.q8_0(), dim=40), r"layer 0, format 0 \(q8_0.*\): keys: .*head_dim 40"),
            (Engine(prefixd.raw("int8")), "dtype is 'int8'"),
            (Engine(layers=0), "groups is 0"),
        ):
            with self.assertRaisesRegex(prefixd.Error, sentence):
                engine.open(self.client)
        layer = prefixd.FullLayer(1, 64, 64, [prefixd.raw()])
        with self.assertRaisesRegex(prefixd.Error, "page_layout is 'columns'"):
            self.client.open_space(model="m", layers=[layer], page_layout="columns")
        with self.assertRaisesRegex(prefixd.Error, "weights is a digest of 3 bytes"):
            self.client.open_space(model="m", layers=[layer], weights=b"abc")

    def test_tokens_and_limits_that_are_none(self):
        for tokens in ([-1], [1 << 32], ["a"], None, [1.5], np.zeros((2, 2), np.uint32)):
            with self.assertRaisesRegex(prefixd.Error, "tokens: "):
                self.space.acquire(tokens)
        with self.assertRaisesRegex(prefixd.Error, "max_cached_tokens is -1"):
            self.space.acquire([1], max_cached_tokens=-1)
        with self.assertRaisesRegex(prefixd.Error, "none of mlx_affine/8/64"):
            self.space.acquire([1], readable=["mlx_affine/2/64"])
        with self.assertRaisesRegex(prefixd.Error, "turn ends at token 9 of 2"):
            self.space.reserve([1, 2], turn_ends=[9])
        with self.assertRaisesRegex(prefixd.Error, "content: a digest of 1 bytes"):
            self.space.match([1], content=[prefixd.Content(0, 1, b"x")])
        with self.assertRaises(prefixd.Error):  # the daemon's own
            self.space.match([1, 2], content=[prefixd.Content(5, 1, bytes(32))])

    def test_arrays_that_do_not_fit(self):
        key, value = self.engine.cache(100)[0]
        with self.space.reserve(self.engine.tokens(100)) as plan:
            for sentence, arguments in (
                ("layer 2, the space has 2", {"layer": 2}),
                ("layer -1", {"layer": -1}),
                ("key is 2 arrays, the format has codes, scales, biases", {"key": key[:2]}),
                ("rows of 17 uint32, the format has rows of 64 bytes", {"key": _wider(key)}),
                ("must be \\[1, 2, tokens, row\\]", {"value": [a[:, :1] for a in value]}),
                ("100 tokens of K and 99 of V", {"value": [a[:, :, :99] for a in value]}),
                ("from 50 on, the plan has 100", {"begin": 50}),
                ("parts have 100, 99, 100 tokens", {"key": [key[0], key[1][:, :, :99], key[2]]}),
            ):
                with self.assertRaisesRegex(prefixd.Error, sentence):
                    plan.write_packed(**{"layer": 0, "key": key, "value": value, **arguments})
            with self.assertRaisesRegex(prefixd.Error, "must be a multiple of 64 or 100"):
                plan.commit(70)
            with self.assertRaisesRegex(prefixd.Error, "0 of them are written in layer 0"):
                plan.commit(64)
            with self.assertRaisesRegex(prefixd.Error, "up to token 101"):
                plan.commit(101)

    def test_a_nul_in_a_text_is_no_end_of_it(self):
        layers = [prefixd.FullLayer(1, 64, 64, [prefixd.raw()])]
        for mistake in (
            lambda: self.client.open_space(model="m\0n", layers=layers),
            lambda: self.client.open_space(model="m", layers=layers, salt="a\0b"),
            lambda: self.client.open_space(
                model="m", layers=layers, rope=prefixd.Rope(scaling="yarn\0")
            ),
            lambda: prefixd.connect(self.daemon.address + "\0"),
            lambda: prefixd.connect(self.daemon.address, name="worker\0"),
            lambda: prefixd.digest_file(str(self.folder) + "/tokenizer\0.json"),
        ):
            with self.assertRaisesRegex(prefixd.Error, "must be without NUL"):
                mistake()

    def test_numbers_that_c_would_take_for_others(self):
        nan, infinity, tokens = float("nan"), float("inf"), self.engine.tokens(100)
        layers = [prefixd.FullLayer(1, 64, 64, [prefixd.raw()])]
        lease, plan = self.space.acquire(tokens), self.space.reserve(tokens)
        content = prefixd.Content(2**32, 1, bytes(32))
        for number in (-1, 0.5, nan, infinity, 2**32, "1"):
            for mistake in (
                lambda: self.client.wait_attached(number),
                lambda: prefixd.connect(self.daemon.address, connect_deadline_ms=number),
                lambda: self.client.open_space(model="m", layers=layers, block_tokens=number),
                lambda: self.client.open_space(
                    model="m", layers=[prefixd.FullLayer(number, 64, 64, [prefixd.raw()])]
                ),
                lambda: self.space.match(tokens, deadline_ms=number),
                lambda: self.space.acquire(tokens, max_cached_tokens=number),
                lambda: self.space.acquire(tokens, load_deadline_ms=number),
                lambda: self.space.acquire(tokens, wait_pending_ms=number),
                lambda: self.space.reserve(tokens, deadline_ms=number),
                lambda: lease.wait(0, number),
                lambda: lease.wait_all(number),
                lambda: lease.gather(0, number),
                lambda: plan.commit(100, deadline_ms=number),
            ):
                with self.assertRaisesRegex(prefixd.Error, "must be a whole number from 0 to"):
                    mistake()
        for mistake in (
            lambda: prefixd.connect(self.daemon.address, staging_bytes=-5),
            lambda: prefixd.connect(self.daemon.address, staging_bytes=2**64),
            lambda: self.space.match(tokens, content=[content]),
            lambda: self.space.acquire(tokens, prefill_tokens_per_s=nan),
            lambda: lease.release(used_tokens=1, first_token_ms=infinity),
        ):
            with self.assertRaisesRegex(prefixd.Error, "must be a (whole|finite) number"):
                mistake()

    def test_floats_of_another_type_are_not_taken_for_the_bits_of_the_format(self):
        for name, others, bits in (
            ("bfloat16", (np.float16, np.float32), (np.uint16, "V2")),
            ("float16", ("V2", ">f2"), (np.float16, np.uint16)),
            ("float32", ("V4", "c8"), (np.float32, np.uint32)),
        ):
            engine = Engine(prefixd.raw(name))
            space = engine.open(self.client, model=name)
            (key,), value = engine.cache(50)[0]
            with space.reserve(engine.tokens(50)) as plan:
                for other in others:
                    with self.assertRaisesRegex(prefixd.Error, "key codes is"):
                        plan.write_packed(0, key=key.view(other), value=value)
                for same_bits in bits:
                    self.assertTrue(plan.write_packed(0, key=key.view(same_bits), value=value))
            engine.store(space, 50)
            with space.acquire(engine.tokens(50)) as lease:
                self.assertEqual(lease.wait_all(), 50)
                with self.assertRaisesRegex(prefixd.Error, "key codes is"):
                    out = np.empty_like(key).view(others[0]), np.empty_like(value[0])
                    lease.gather(0, 50, out=out)

    def test_arrays_that_cannot_be_filled(self):
        self.engine.store(self.space, 100)
        key, value = self.engine.cache(100)[0]
        with self.space.acquire(self.engine.tokens(100)) as lease:
            lease.wait_all()
            frozen = [a.copy() for a in key]
            frozen[1].flags.writeable = False
            with self.assertRaisesRegex(
                prefixd.Error, "key scales is not an array that can be written"
            ):
                lease.gather(0, 100, out=(frozen, [a.copy() for a in value]))
            with self.assertRaisesRegex(prefixd.Error, "room for 100 and 100, not for 50"):
                lease.gather(0, 50, out=([a.copy() for a in key], [a.copy() for a in value]))
            with self.assertRaisesRegex(prefixd.Error, "layer 7, the space has 2"):
                lease.gather(7, 1)
            self.assertIsNone(
                lease.gather(0, 101), "more than the lease has is no mistake of types"
            )

    def test_a_lease_or_a_plan_that_was_let_go(self):
        lease = self.space.acquire(self.engine.tokens(10))
        lease.release()
        lease.release()
        self.assertEqual(lease.restorable_tokens, 0)
        for call in (lambda: lease.gather(0, 1), lease.wait_all, lambda: lease.blocks(0)):
            with self.assertRaisesRegex(prefixd.Error, "the lease was released"):
                call()
        plan = self.space.reserve(self.engine.tokens(10))
        plan.abandon()
        self.assertEqual((plan.missing, plan.commit(10).error), ((), "plan: abandoned"))

    def test_digests(self):
        file = self.folder / "tokenizer.json"
        file.write_bytes(b"tokens")
        self.assertEqual(prefixd.digest_file(file), hashlib.sha256(b"tokens").digest())
        header = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
        checkpoint = struct.pack("<Q", len(header)) + header + b"\1\2\3\4"
        (self.folder / "model.safetensors").write_bytes(checkpoint)
        self.assertEqual(len(prefixd.digest_checkpoint(self.folder)), 32)
        with self.assertRaisesRegex(prefixd.Error, "nonexistent"):
            prefixd.digest_file("/nonexistent")


def _wider(arrays):
    return [np.pad(arrays[0], ((0, 0),) * 3 + ((0, 1),)), *arrays[1:]]


class LifetimeTest(DaemonTest):
    def test_blocks_are_the_pages_themselves_and_read_only(self):
        self.daemon.start()
        engine = Engine(prefixd.mlx_affine(8, 64, "bfloat16", value_bits=4))
        space = engine.open(self.attached())
        engine.store(space, 150)
        with space.acquire(engine.tokens(150), max_cached_tokens=149) as lease:
            lease.wait_all()
            for layer, want in enumerate(engine.cache(150)):
                blocks = lease.blocks(layer)
                self.assertEqual(
                    [(b.begin, b.tokens) for b in blocks], [(0, 64), (64, 64), (128, 21)]
                )
                for block in blocks:
                    self.assertIsNotNone(block.arena_offset)
                    for got, whole in zip(block.key + block.value, want[0] + want[1]):
                        cut = whole[:, :, block.begin : block.begin + block.tokens]
                        self.assertEqual((got.dtype, got.tobytes()), (whole.dtype, cut.tobytes()))
                        with self.assertRaises(ValueError):
                            got[...] = 0
                        with self.assertRaises(ValueError):
                            got.flags.writeable = True

    def test_a_view_keeps_its_page_when_the_lease_is_released(self):
        self.daemon.start()
        engine = Engine(heads=8, dim=128)
        client = self.attached()
        space = engine.open(client)
        engine.store(space, 128)
        lease = space.acquire(engine.tokens(128))
        lease.wait_all()
        held = weakref.ref(lease._held)
        view = lease.blocks(1)[1].value[0][0, :, 3:]
        want = engine.cache(128)[1][1][0][0, :, 67:128].tobytes()
        lease.release()
        del lease
        gc.collect()
        self.assertIsNotNone(held())
        for seed in range(2, 27):  # twice what the daemon has room for
            Engine(heads=8, dim=128, seed=seed).store(space, 640)
        self.assertGreater(client.stats.stored_tokens * space.payload_bytes_per_token, 64 << 20)
        self.assertLess(space.match(Engine(seed=2).tokens(640)).restorable_tokens, 640, "evicted")
        self.assertEqual(view.tobytes(), want)
        del view
        gc.collect()
        self.assertIsNone(held())

    def test_space_and_client_may_go_first(self):
        self.daemon.start()
        engine = Engine()
        client = self.attached()
        space = engine.open(client)
        engine.store(space, 100)
        lease = space.acquire(engine.tokens(100))
        client.close()
        space.close()
        self.assertEqual(space.match(engine.tokens(100)).error, "space: closed")
        self.assertEqual(client.error, "client: closed")
        self.assertEqual(lease.wait_all(), 100)
        self.assertIsNotNone(lease.gather(0, 100))
        lease.release()

    def test_a_client_closed_under_a_call_lives_until_the_call_is_over(self):
        client = self.connect()
        held = weakref.ref(client._held)
        before = sys.getrefcount(client._held)
        came = []
        waiting = threading.Thread(target=lambda: came.append(client.wait_attached(PATIENCE_MS)))
        waiting.start()
        while waiting.is_alive() and sys.getrefcount(client._held) == before:  # not in the call yet
            pass
        client.close()
        self.assertIsNotNone(held())
        self.daemon.start()
        waiting.join()
        self.assertEqual((came, held()), ([True], None))

    def test_a_space_closed_under_a_call_in_another_thread_is_harmless(self):
        self.daemon.start()
        client = self.attached()
        engine = Engine()
        for _ in range(20):
            space = engine.open(client)

            def ask(space=space):
                while space.match(engine.tokens(50)).error != "space: closed":
                    pass

            asking = [Tried(ask) for _ in range(4)]
            space.close()
            for thread in asking:
                thread.join()


_HOLDING = """
import sys, prefixd
from support import Engine
engine = Engine()
client = prefixd.connect(sys.argv[1])
assert client.wait_attached(60_000), client.error
space = engine.open(client)
engine.store(space, 150)
lease = space.acquire(engine.tokens(150), deadline_ms=60_000)
assert lease.wait_all() == 150
view = lease.blocks(0)[0].key[0]
plan = space.reserve(engine.tokens(300), deadline_ms=60_000)
"""


class ProcessTest(DaemonTest):
    def check(self, script: str, output: str) -> None:
        self.daemon.start()
        ended = run_script(_HOLDING + script, self.daemon.address)
        self.assertEqual((ended.returncode, ended.stdout, ended.stderr), (0, output, ""))

    def test_a_process_may_end_with_everything_open(self):
        self.check("print('end')", "end\n")

    def test_a_process_may_end_while_a_thread_waits(self):
        self.check(
            "import threading\n"
            "nobody = prefixd.connect('unix:///nonexistent/prefixd.sock')\n"
            "threading.Thread(target=nobody.wait_attached, args=(60000,), daemon=True).start()\n"
            "print('end')",
            "end\n",
        )

    def test_a_forked_child_has_no_cache_and_its_parent_keeps_its_own(self):
        self.check(
            """
import os
child = os.fork()
if child == 0:
    again = space.acquire(engine.tokens(150))
    assert again.wait_all() == 0 and "fork" in again.error, again.error
    assert "fork" in client.error and "fork" in prefixd.connect(sys.argv[1]).error
    assert lease.restorable_tokens == 0 and space.reserve([1, 2]).missing == ()
    lease.release(); plan.abandon(); space.close(); client.close()
    del lease, view, plan, space, client, again
    print("child", flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert space.acquire(engine.tokens(150), deadline_ms=60_000).wait_all() == 150
print("parent")
""",
            "child\nparent\n",
        )


class ForkTest(DaemonTest):
    """A child that the parent gives up on after a time: it must not hang."""

    def test_a_child_of_fork_connects_while_a_thread_of_its_parent_does(self):
        ended = run_script(_FORKED_WHILE_CONNECTING)
        self.assertEqual((ended.returncode, ended.stdout, ended.stderr), (0, "connected\n", ""))

    def test_a_client_that_is_gone_leaves_nothing_for_fork(self):
        ended = run_script(_HOOKS_COUNTED, self.daemon.address)
        self.assertEqual((ended.returncode, ended.stdout, ended.stderr), (0, "0\n", ""))


_FORKED_WHILE_CONNECTING = """
import os, signal, threading, prefixd
holding, never = threading.Event(), threading.Event()

def hold():
    with prefixd._abi._lock:
        holding.set()
        never.wait()

threading.Thread(target=hold, daemon=True).start()
holding.wait()
child = os.fork()
if child == 0:
    signal.alarm(20)
    assert prefixd.connect().error.startswith("client: ")
    print("connected", flush=True)
    os._exit(0)
os._exit(os.waitpid(child, 0)[1])
"""

_HOOKS_COUNTED = """
import os, sys
hooks = []
os.register_at_fork = lambda **hook: hooks.append(hook)
import prefixd
before = len(hooks)
for _ in range(5):
    prefixd.connect(sys.argv[1], library="/nonexistent/libprefixd.so")
print(len(hooks) - before)
"""


class ThreadTest(DaemonTest):
    def test_a_space_is_for_all_threads(self):
        self.daemon.start()
        engine = Engine()
        space = engine.open(self.attached())
        engine.store(space, 150)
        want = engine.cache(150)[1][0][0].tobytes()
        wrong = []

        def work():
            for _ in range(20):
                with space.acquire(engine.tokens(150), deadline_ms=20_000) as lease:
                    got = lease.gather(1, lease.wait_all())
                    if got is None or got[0][0].tobytes() != want:
                        wrong.append(lease.error)

        for thread in [Tried(work) for _ in range(4)]:
            thread.join()
        self.assertEqual(wrong, [])


class TypesTest(unittest.TestCase):
    def test_a_kind_that_a_newer_library_adds_is_none(self):
        info = prefixd._abi.MatchInfo(kind=9)
        lease = prefixd._lease.Lease(prefixd._abi.Library("/nonexistent"), None, info, "", [])
        self.assertEqual((lease.match_kind, lease.match.kind), ("none", "none"))

    def test_the_package_says_that_it_is_typed(self):
        self.assertTrue(os.path.exists(os.path.join(os.path.dirname(prefixd.__file__), "py.typed")))
