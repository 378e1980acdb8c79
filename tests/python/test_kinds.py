"""Spaces whose layers slide or keep a state: what comes back is right for every layer, or nothing."""

import hashlib

import numpy as np
import prefixd
from support import DaemonTest, Engine, same

WINDOW, SINKS, STATE_BYTES, DIM, HEADS = 100, 4, 1000, 64, 2
FORMAT = prefixd.mlx_affine(8, 64, "bfloat16")
FULL = prefixd.FullLayer(HEADS, DIM, DIM, [FORMAT])
SLIDING = prefixd.SlidingLayer(HEADS, DIM, DIM, [FORMAT], window=WINDOW, sink_tokens=SINKS)
STATE = prefixd.StateLayer(STATE_BYTES)


def rows_of(tokens, layer, side):
    """K or V of a layer: bytes that the position, its token and the layer decide."""
    parts = [np.empty((1, HEADS, len(tokens), n), t) for n, t in ((16, "u4"), (1, "u2"), (1, "u2"))]
    for at, token in enumerate(tokens):
        rng = np.random.default_rng([token, at, layer, side])
        for part in parts:
            part[0, :, at] = rng.integers(0, 1 << 16, (HEADS, part.shape[3]))
    return tuple(parts)


def state_of(tokens, layer):
    """The state of a layer after all of these tokens."""
    told = hashlib.sha256(repr((list(tokens), layer)).encode()).digest()
    return np.frombuffer((told * 32)[:STATE_BYTES], np.uint8)


class Kinds(DaemonTest):
    """layers: of the space. Their kinds decide what is written and read."""

    layers = ()

    def setUp(self):
        super().setUp()
        self.daemon.start()
        self.space = self.attached().open_space(
            model="kinds", weights=bytes([3]) * 32, rope=prefixd.Rope(theta=1e4), layers=self.layers
        )
        self.tokens = [i * 37 % 997 for i in range(400)]
        self.rows = {
            layer: (rows_of(self.tokens, layer, 0), rows_of(self.tokens, layer, 1))
            for layer, spec in enumerate(self.layers)
            if spec.formats
        }

    def cut(self, layer, begin, end):
        return tuple(tuple(part[:, :, begin:end] for part in side) for side in self.rows[layer])

    def store(self, count, snapshots=()):
        with self.space.reserve(self.tokens[:count]) as plan:
            for at in snapshots or plan.snapshots_wanted:
                for layer, spec in enumerate(self.layers):
                    if not spec.formats:
                        state = state_of(self.tokens[:at], layer)
                        self.assertTrue(plan.put_state(layer, at, state))
            for begin, end in plan.missing:
                for layer in self.rows:
                    key, value = self.cut(layer, begin, end)
                    self.assertTrue(plan.write_packed(layer, begin, key=key, value=value))
                plan.commit(end)
            self.assertEqual(plan.commit(count, sequence_end=True).error, "")

    def check(self, tokens, limit, restorable):
        """What is restored of at most `limit` tokens is what was stored."""
        with self.space.acquire(tokens, max_cached_tokens=limit) as lease:
            self.assertEqual(lease.wait_all(), restorable)
            for layer, spec in enumerate(self.layers):
                if restorable == 0:
                    continue
                if not spec.formats:
                    wanted = state_of(tokens[:restorable], layer)
                    self.assertEqual(lease.state(layer).tobytes(), wanted.tobytes())
                    continue
                sliding = isinstance(spec, prefixd.SlidingLayer) and restorable > WINDOW + SINKS
                parts = [(0, SINKS), (restorable - WINDOW, restorable)] if sliding else [(0, restorable)]
                for begin, end in parts:
                    got = lease.gather(layer, end - begin, begin=begin)
                    self.assertTrue(same([got], [self.cut(layer, begin, end)]))
            return lease.match


class SlidingTest(Kinds):
    layers = (FULL, SLIDING, SLIDING)

    def test_the_window_and_the_sinks_come_back_wherever_a_sequence_is_cut(self):
        self.store(400)
        for limit in (400, 399, 250, 130, 90):
            self.check(self.tokens, limit, limit)
        with self.space.acquire(self.tokens, max_cached_tokens=WINDOW - 1) as lease:
            self.assertTrue(same([lease.gather(1)], [self.cut(1, 0, WINDOW - 1)]))

    def test_between_sinks_and_window_there_is_nothing(self):
        self.store(400)
        with self.space.acquire(self.tokens) as lease:
            self.assertEqual(lease.wait_all(), 400)
            self.assertIsNone(lease.gather(1, 50, begin=100))
            self.assertTrue(same([lease.gather(0)], [self.cut(0, 0, 400)]))
            self.assertTrue(same([lease.gather(1)], [self.cut(1, 400 - WINDOW, 400)]))
            self.assertTrue(same([lease.gather(1, SINKS)], [self.cut(1, 0, SINKS)]))
            self.assertEqual(lease.runs(0), [(0, 400, 0)])
            self.assertEqual(lease.runs(1), [(0, 64, 0), (256, 400, 0)])
            self.assertEqual([block.begin for block in lease.blocks(1)], [0, 256, 320, 384])
            block = lease.blocks(1)[1]
            self.assertTrue(same([(block.key, block.value)], [self.cut(1, 256, 320)]))
            del block

    def test_a_window_whose_blocks_were_never_written_is_not_restored(self):
        with self.space.reserve(self.tokens) as plan:
            for layer in self.rows:
                begin = 0 if layer == 0 else 256  # without the sinks
                key, value = self.cut(layer, begin, 400)
                plan.write_packed(layer, begin, key=key, value=value)
            plan.commit(400, sequence_end=True)
        match = self.check(self.tokens, 400, 0)
        self.assertEqual([reason.name for reason in match.reasons], ["window_gone"])


class HybridTest(Kinds):
    layers = (FULL, SLIDING, STATE, FULL, STATE)

    def test_an_exact_repeat_is_restored_to_its_last_token_but_one(self):
        self.store(400)
        self.check(self.tokens, 399, 399)

    def test_a_state_is_right_at_its_position_and_nowhere_else(self):
        self.store(400, snapshots=(130, 390))
        for limit, restorable in ((400, 390), (390, 390), (389, 130), (129, 0)):
            match = self.check(self.tokens, limit, restorable)
        self.assertIn("no_state_snapshot", [reason.name for reason in match.reasons])

    def test_positions_are_wanted_where_requests_go_on(self):
        with self.space.reserve(self.tokens, turn_ends=[200]) as plan:
            wanted = plan.snapshots_wanted
        self.assertEqual(list(wanted), sorted(set(wanted)))
        self.assertLessEqual({199, 399}, set(wanted))
        self.assertLessEqual(len(wanted), 64)
        self.assertEqual(plan.snapshots_wanted, (), "after the plan was given up")

    def test_mistakes_are_refused_by_name(self):
        self.store(400, snapshots=(390,))
        with self.space.reserve(self.tokens[:300] + [5] * 50) as plan:
            for sentence, arguments in (
                ("layer 0 keeps a state of 0 bytes, 1000 were given", (0, 350, bytes(1000))),
                ("layer 2 keeps a state of 1000 bytes, 999 were given", (2, 350, bytes(999))),
                ("at token 351, must be 1 to 350", (2, 351, bytes(1000))),
                ("layer 5, the space has 5", (5, 350, bytes(1000))),
            ):
                with self.assertRaisesRegex(prefixd.Error, sentence):
                    plan.put_state(*arguments)
            key, value = self.cut(0, 0, 350)
            with self.assertRaisesRegex(prefixd.Error, "layer 2 keeps a state, put_state"):
                plan.write_packed(2, key=key, value=value)
        with self.space.acquire(self.tokens) as lease:
            self.assertEqual(lease.wait_all(), 390)
            with self.assertRaisesRegex(prefixd.Error, "layer 2 keeps a state, state"):
                lease.gather(2)
            with self.assertRaisesRegex(prefixd.Error, "layer 0 keeps tokens, gather"):
                lease.state(0)
            with self.assertRaisesRegex(prefixd.Error, "out has 10 bytes, must be 1000"):
                lease.state(2, out=np.empty(10, np.uint8))
            out = np.empty(STATE_BYTES, np.uint8)
            self.assertIs(lease.state(2, out=out), out)
        client = self.attached()
        for layer, sentence in (
            (prefixd.SlidingLayer(HEADS, DIM, DIM, [FORMAT], window=0), "window"),
            (prefixd.StateLayer(0), "state_bytes"),
        ):
            with self.assertRaisesRegex(prefixd.Error, sentence):
                client.open_space(model="m", weights=bytes([1]) * 32, layers=[layer])

    def test_without_a_daemon_there_is_no_state_and_nothing_is_raised(self):
        self.daemon.kill()
        client = self.connect(connect_deadline_ms=50)
        space = client.open_space(model="kinds", weights=bytes([3]) * 32, layers=self.layers)
        with space.acquire(self.tokens, deadline_ms=50) as lease:
            self.assertEqual(lease.wait_all(), 0)
            self.assertIsNone(lease.state(2))
        with space.reserve(self.tokens, deadline_ms=50) as plan:
            self.assertEqual(plan.snapshots_wanted, ())
            self.assertFalse(plan.put_state(2, 400, bytes(STATE_BYTES)))


class KeysAloneTest(Kinds):
    layers = (
        prefixd.FullLayer(HEADS, DIM, 0, [FORMAT], values="none"),
        prefixd.FullLayer(HEADS, DIM, 32, [FORMAT], values="key"),
    )

    def test_keys_come_back_and_values_are_neither_asked_for_nor_stored(self):
        with self.space.reserve(self.tokens) as plan:
            for layer in self.rows:
                self.assertTrue(plan.write_packed(layer, key=self.rows[layer][0]))
            self.assertEqual(plan.commit(400, sequence_end=True).stored_tokens, 400)
        with self.space.acquire(self.tokens, max_cached_tokens=333) as lease:
            self.assertEqual(lease.wait_all(), 333)
            for layer in self.rows:
                key, value = lease.gather(layer, 333)
                self.assertEqual(value, ())
                self.assertTrue(same([(key,)], [(self.cut(layer, 0, 333)[0],)]))
                block = lease.blocks(layer)[1]
                self.assertTrue(same([(block.key,)], [(self.cut(layer, 64, 128)[0],)]))
                self.assertEqual(block.value, ())
                del block
        key_bytes = sum(part.nbytes for part in self.cut(0, 0, 1)[0])
        self.assertEqual(self.space.payload_bytes_per_token, 2 * key_bytes)

    def test_what_cannot_be_is_refused_by_name(self):
        client = self.attached()
        for layer, sentence in (
            (prefixd.FullLayer(HEADS, DIM, DIM, [FORMAT], values="none"), "value_dim"),
            (prefixd.FullLayer(HEADS, DIM, DIM + 1, [FORMAT], values="key"), "value"),
            (prefixd.FullLayer(HEADS, DIM, DIM, [FORMAT], values="some"), "values is 'some'"),
        ):
            with self.assertRaisesRegex(prefixd.Error, sentence):
                client.open_space(model="m", weights=bytes([1]) * 32, layers=[layer])


class SharedLayersTest(Kinds):
    layers = (FULL, SLIDING, prefixd.SharedLayer(0), prefixd.SharedLayer(1))

    def test_a_layer_that_shares_reads_what_another_one_stored(self):
        with self.space.reserve(self.tokens) as plan:
            for layer in self.rows:
                key, value = self.cut(layer, 0, 400)
                self.assertTrue(plan.write_packed(layer, key=key, value=value))
            self.assertEqual(plan.commit(400, sequence_end=True).stored_tokens, 400)
        with self.space.acquire(self.tokens) as lease:
            self.assertEqual(lease.wait_all(), 400)
            self.assertTrue(same([lease.gather(2, 400)], [self.cut(0, 0, 400)]))
            self.assertTrue(same([lease.gather(3, 100, begin=300)], [self.cut(1, 300, 400)]))
            self.assertEqual(lease.runs(3), lease.runs(1))

    def test_a_layer_that_is_not_there_is_refused_by_name(self):
        for reads, sentence in ((2, "layer 1"), (1, "layer 1"), (-1, "reads")):
            with self.assertRaisesRegex(prefixd.Error, sentence):
                self.attached().open_space(
                    model="m", weights=bytes([1]) * 32, layers=[FULL, prefixd.SharedLayer(reads)]
                )


class SetTest(Kinds):
    layers = (FULL,)

    def setUp(self):
        super().setUp()
        self.client = self.attached()
        self.target, self.draft = (
            self.client.open_space(model=name, weights=bytes([3]) * 32, layers=self.layers)
            for name in ("target", "draft")
        )

    def store_in(self, space, count):
        self.space = space
        self.store(count)

    def test_all_begin_at_the_length_that_each_has(self):
        self.store_in(self.target, 400)
        self.store_in(self.draft, 200)
        leases = prefixd.acquire_set([self.target, self.draft], self.tokens, max_cached_tokens=399)
        for lease in leases:
            self.assertEqual(lease.error, "")
            self.assertEqual(lease.wait_all(), 200)
            self.assertTrue(same([lease.gather(0, 200)], [self.cut(0, 0, 200)]))
        self.assertIn(("common_length", 199), leases[0].reasons)
        for lease in leases:
            lease.release()

    def test_without_tokens_or_a_daemon_there_are_none(self):
        for tokens, most in (([], None), (self.tokens, 0)):
            leases = prefixd.acquire_set([self.target, self.draft], tokens, max_cached_tokens=most)
            self.assertEqual([lease.wait_all() for lease in leases], [0, 0])
        self.assertEqual(prefixd.acquire_set([], self.tokens), [])
        self.daemon.kill()
        leases = prefixd.acquire_set([self.target, self.draft], self.tokens, deadline_ms=50)
        for lease in leases:
            self.assertEqual(lease.wait_all(), 0)
            self.assertNotEqual(lease.error, "")

    def test_readable_is_one_value_for_all_or_one_for_each_space(self):
        formats = [prefixd.raw("float16"), FORMAT]
        engine = Engine(*formats)
        spaces = [engine.open(self.client, model) for model in ("fine", "coarse")]
        for which, space in enumerate(spaces):
            engine.store(space, 200, format=which)
        for readable, found in (
            (None, 200),
            ((0, 1), 200),
            ([0, 1], 200),
            ([None, (formats[0], 1)], 200),
            ([0, None], 200),
            (1, 0),
            (FORMAT.name, 0),
            ([1, 1], 0),
            ([0, 0], 0),
        ):
            leases = prefixd.acquire_set(spaces, engine.tokens(200), readable=readable)
            self.assertEqual([lease.wait_all() for lease in leases], [found] * 2, readable)
        with self.assertRaisesRegex(prefixd.Error, "readable has 1 entries for 2 spaces"):
            prefixd.acquire_set(spaces, engine.tokens(200), readable=[0])
        with self.assertRaisesRegex(prefixd.Error, "format 2, the space has 2"):
            prefixd.acquire_set(spaces, engine.tokens(200), readable=[0, 2])

    def test_spaces_of_several_clients_are_refused(self):
        other = self.attached().open_space(model="o", weights=bytes([3]) * 32, layers=self.layers)
        with self.assertRaisesRegex(prefixd.Error, "several clients"):
            prefixd.acquire_set([self.target, other], self.tokens)


class FewerFormatsTest(DaemonTest):
    """Full layers in raw and in 8 bits beside layers in raw alone."""

    RAW = prefixd.raw("float16")

    def setUp(self):
        super().setUp()
        self.daemon.start()
        self.fine = Engine(self.RAW, FORMAT, layers=3)
        full = prefixd.FullLayer(HEADS, DIM, DIM, [self.RAW, FORMAT])
        plain = prefixd.FullLayer(HEADS, DIM, DIM, [self.RAW])
        sliding = prefixd.SlidingLayer(HEADS, DIM, DIM, [self.RAW], window=1024)
        self.space = self.attached().open_space(
            model="fewer", weights=bytes([1]) * 32, layers=[full, plain, sliding]
        )

    def cache(self, count, format):
        """In that format, where the layer has it."""
        return [self.fine.cache(count, format)[0], *self.fine.cache(count, 0)[1:]]

    def store(self, format, readable=None):
        tokens, cache = self.fine.tokens(200), self.cache(200, format)
        with self.space.reserve(tokens, writable=[format], readable=readable) as plan:
            stored = sum(end - begin for begin, end in plan.missing)
            for layer, (key, value) in enumerate(cache):
                self.assertTrue(plan.write_packed(layer, key=key, value=value), plan.error)
            self.assertEqual(plan.commit(200, sequence_end=True).error, "")
        return stored

    def test_one_plan_writes_both(self):
        self.assertEqual(self.store(1), 200)
        for readable in (None, [1], [FORMAT], [0, 1]):
            with self.space.acquire(self.fine.tokens(200), readable=readable) as lease:
                self.assertEqual(lease.wait_all(), 200, readable)
                self.assertEqual([lease.runs(n)[0][2] for n in range(3)], [1, 0, 0])
                self.assertTrue(same(self.fine.read(lease, 200), self.cache(200, 1)))
        with self.space.acquire(self.fine.tokens(200), readable=[0]) as lease:
            self.assertEqual(lease.wait_all(), 0)
        self.assertEqual(self.store(1, readable=[1]), 0, "it is here")
        self.assertEqual(self.store(0, readable=[0]), 200, "the full layer lacks raw")

    def test_a_format_that_no_layer_has_is_a_mistake(self):
        for options in ({"writable": [2]}, {"readable": [2]}, {"writable": ["q8_0"]}):
            with self.assertRaisesRegex(prefixd.Error, "format "):
                self.space.reserve(self.fine.tokens(200), **options)


class AdviceTest(DaemonTest):
    """A daemon that advises the next coarser format once a fifth of its RAM is in use."""

    def test_runs_say_which_format_is_to_be_written(self):
        self.daemon.options += ["--coarser-above", "20%"]
        self.daemon.start()
        engine = Engine(prefixd.raw("float16"), FORMAT)
        space = engine.open(self.attached())
        seen = []
        while len(seen) < 200 and 1 not in seen:
            engine.seed += 1
            with space.reserve(engine.tokens(300), coarser=[1]) as plan:
                seen += plan.formats
                for run, format in zip(plan.missing, plan.formats):
                    for layer, cut in enumerate(engine.cache(300, format)):
                        key, value = ([a[..., run.begin : run.end, :] for a in side] for side in cut)
                        self.assertTrue(plan.write_packed(layer, run.begin, key=key, value=value))
                    self.assertEqual(plan.commit(run.end).error, "")
        self.assertEqual((seen[0], seen[-1]), (0, 1))
        with space.acquire(engine.tokens(300)) as lease:
            count = lease.wait_all()
            self.assertGreater(count, 0)
            self.assertEqual(lease.runs(0), [(0, count, 1)])
            cache = [
                tuple(tuple(a[..., :count, :] for a in side) for side in layer)
                for layer in engine.cache(300, 1)
            ]
            self.assertTrue(same(engine.read(lease, count), cache))
