"""G1: packed bytes of an engine go in and come out bit for bit; an exact repeat reuses n - 1."""

import threading
import time

import numpy as np
import prefixd
from support import PATIENCE_MS, Daemon, DaemonTest, Engine, run_script, same

FORMATS = {
    "mlx 8 bits, bfloat16": prefixd.mlx_affine(8, 64, "bfloat16"),
    "mlx 4 bits, group 32, float16": prefixd.mlx_affine(4, 32, "float16"),
    "mlx 3 bits, float32": prefixd.mlx_affine(3, 64, "float32"),
    "mlx 6 bits": prefixd.mlx_affine(6, 32, "bfloat16"),
    "mlx, V in fewer bits": prefixd.mlx_affine(
        8, 64, "bfloat16", value_bits=4, value_group_size=32
    ),
    "raw bfloat16": prefixd.raw("bfloat16"),
    "raw float16": prefixd.raw("float16"),
    "raw float32": prefixd.raw("float32"),
    "q8_0": prefixd.q8_0(),
    "q4_0": prefixd.q4_0(),
    "q8_0 and q5_1": prefixd.q8_0(value=prefixd.q5_1()),
    "mxfp4": prefixd.mxfp4(),
    "mxfp8 and nvfp4": prefixd.mxfp8(value=prefixd.nvfp4()),
    "mlx K, raw V": prefixd.pair(prefixd.mlx_affine(4, 64, "bfloat16"), prefixd.raw("bfloat16")),
}


class RoundTripTest(DaemonTest):
    def test_prefixd_shows_which_engine_a_worker_is(self):
        self.daemon.start()
        self.attached(engine="my engine 1.2")
        libraries = [one["library"] for one in self.daemon.ctl("sessions")["sessions"]]
        self.assertIn("prefixd-cpp/0.1.0 (my engine 1.2)", libraries)

    def test_every_format_comes_back_bit_for_bit(self):
        self.daemon.start()
        client = self.attached()
        for name, format in FORMATS.items():
            with self.subTest(name):
                engine = Engine(format)
                space = engine.open(client)
                self.assertEqual(engine.store(space, 150), 150)
                with space.acquire(engine.tokens(150)) as lease:
                    self.assertEqual(lease.wait_all(), 150)
                    self.assertTrue(same(engine.read(lease, 150), engine.cache(150)))

    def test_tiled_pages_give_and_take_the_same_arrays(self):
        self.daemon.start()
        client = self.attached()
        for name, format in FORMATS.items():
            with self.subTest(name):
                engine = Engine(format, page_layout="tiled")
                space = engine.open(client, model="tiled")
                self.assertEqual(engine.store(space, 150), 150)
                with space.acquire(engine.tokens(150)) as lease:
                    self.assertEqual(lease.wait_all(), 150)
                    self.assertTrue(same(engine.read(lease, 150), engine.cache(150)))
                    block = lease.blocks(0)[0]
                    for arrays, tensor in ((block.key, format.key), (block.value, format.value)):
                        if tensor.has_tiled:  # whole units, as attention walks them
                            self.assertEqual(len(arrays), 1)
                            self.assertEqual(arrays[0].shape[0], engine.heads)
                            self.assertEqual(arrays[0].shape[1] % 128, 0)
                        else:
                            self.assertEqual(arrays[0].shape[:3], (1, engine.heads, block.tokens))
                    del block, arrays

    # S4-17
    def test_transposed_pages_hold_raw_values_channel_by_channel(self):
        self.daemon.start()
        client = self.attached()
        for name in ("raw float16", "mlx K, raw V"):
            with self.subTest(name):
                engine = Engine(FORMATS[name], page_layout="transposed")
                space = engine.open(client, model="transposed")
                self.assertEqual(engine.store(space, 150), 150)
                with space.acquire(engine.tokens(150)) as lease:
                    self.assertEqual(lease.wait_all(), 150)
                    self.assertTrue(same(engine.read(lease, 150), engine.cache(150)))
                    (value,) = lease.blocks(0)[1].value
                    wanted = engine.cache(150)[0][1][0][:, :, 64:128]
                    self.assertEqual(value.tobytes(), wanted.tobytes())
                    self.assertEqual(value.strides[2], value.itemsize, "a channel's tokens adjoin")
                    del value
        with self.assertRaisesRegex(prefixd.Error, "transposed"):
            Engine(FORMATS["q8_0"], page_layout="transposed").open(client, model="transposed")

    # S4-11
    def test_leases_of_different_length_become_one_batch_padded_on_the_left(self):
        self.daemon.start()
        client = self.attached()
        for name in ("mlx, V in fewer bits", "raw bfloat16", "q8_0"):
            with self.subTest(name):
                engine = Engine(FORMATS[name])
                space = engine.open(client)
                self.assertEqual(engine.store(space, 150), 150)
                lengths = [40, 150]
                leases = [space.acquire(engine.tokens(n)) for n in lengths]
                self.assertEqual([lease.wait_all() for lease in leases], lengths)
                batch = prefixd.gather_batch(leases, 0, lengths)
                for planes, one in zip(batch, zip(*(lease.gather(0) for lease in leases))):
                    for part, plane in enumerate(planes):
                        self.assertEqual(plane.shape[::2], (2, 150))
                        self.assertFalse(plane[0, :, :110].any(), "padding is zero")
                        for row, n in enumerate(lengths):
                            self.assertTrue((plane[row, :, 150 - n :] == one[row][part][0]).all())
                self.assertIsNone(prefixd.gather_batch(leases, 0, [41, 150]))

    def test_bytes_stored_are_the_engines_own(self):
        self.daemon.start()
        client = self.attached()
        for name, format in FORMATS.items():
            with self.subTest(name):
                engine = Engine(format)
                bytes_of_one = sum(
                    a.nbytes for kv in engine.cache(1) for arrays in kv for a in arrays
                )
                self.assertEqual(engine.open(client).payload_bytes_per_token, bytes_of_one)

    def test_an_exact_repeat_reuses_all_but_the_last_token(self):
        self.daemon.start()
        engine = Engine()
        space = engine.open(self.attached())
        engine.store(space, 200)
        with space.acquire(engine.tokens(200), max_cached_tokens=199) as lease:
            self.assertEqual(lease.match_kind, "exact")
            self.assertEqual(lease.reasons, (("max_tokens", 1),))
            self.assertEqual(lease.wait_all(), 199)
            self.assertEqual(lease.match.matched_tokens, 200)
            self.assertEqual(lease.error, "")
            whole = engine.cache(200)
            cut = [tuple(tuple(a[:, :, :199] for a in t) for t in kv) for kv in whole]
            self.assertTrue(same(engine.read(lease, 199), cut))
            key, _ = lease.gather(1, 50, begin=100)
            self.assertEqual(key[0].tobytes(), whole[1][0][0][:, :, 100:150].tobytes())

    def test_longer_shorter_and_diverging_prompts_reuse_what_they_share(self):
        self.daemon.start()
        engine = Engine()
        space = engine.open(self.attached())
        engine.store(space, 200)
        other = engine.tokens(200)
        other[130] += 1
        for tokens, kind, shared in (
            (engine.tokens(300), "prefix", 200),
            (engine.tokens(77), "supersequence", 77),
            (other, "lcp", 130),
            ([7] * 50, "none", 0),
        ):
            match = space.match(tokens)
            self.assertEqual((match.kind, match.restorable_tokens), (kind, shared))
        self.assertEqual(space.match(engine.tokens(200), max_cached_tokens=0).restorable_tokens, 0)
        self.assertEqual(space.acquire([], max_cached_tokens=-1).wait_all(), 0, "an empty prompt")

    def test_a_hint_brings_a_prompt_from_ssd_to_ram(self):
        self.daemon = Daemon(self.folder, ssd="1GiB")
        self.addCleanup(self.daemon.stop)
        self.daemon.start()
        engine = Engine()
        client = self.attached()
        space = engine.open(client)
        self.assertEqual(space.prefetch(engine.tokens(200)), 0, "nothing is stored")
        engine.store(space, 200)
        self.daemon.process.terminate()
        self.daemon.process.wait()
        self.daemon.arena.unlink()
        self.daemon.start()
        space = engine.open(self.attached())
        before = space.match(engine.tokens(200))
        self.assertEqual((before.restorable_tokens, before.ram_bytes), (200, 0))
        self.assertEqual(space.prefetch(engine.tokens(200), max_cached_tokens=150), 150)
        self.assertEqual(space.prefetch(engine.tokens(200)), 200)
        until = time.monotonic() + PATIENCE_MS / 1000
        while space.match(engine.tokens(200)).ssd_bytes > 0 and time.monotonic() < until:
            pass
        there = space.match(engine.tokens(200))
        self.assertEqual((there.ram_bytes, there.ssd_bytes), (before.ssd_bytes, 0))

    def test_tensors_are_taken_as_they_stand(self):
        self.daemon.start()
        client = self.attached()
        count = 150

        def grown(array):  # an over-allocated buffer, cut
            buffer = np.zeros((1, array.shape[1], 256, array.shape[3]), array.dtype)
            buffer[:, :, :count] = array
            return buffer[:, :, :count]

        def token_major(array):  # [tokens, heads, row] in memory
            return np.ascontiguousarray(array[0].transpose(1, 0, 2)).transpose(1, 0, 2)

        def backwards(array):  # no strides that a plane has: copied
            return np.ascontiguousarray(array[:, :, ::-1])[:, :, ::-1]

        for name in ("mlx 8 bits, bfloat16", "mxfp4"):
            engine = Engine(FORMATS[name])
            space, cache = engine.open(client), engine.cache(count)
            for seed, way in enumerate((grown, token_major, backwards)):
                with self.subTest(f"{name}, {way.__name__}"):
                    tokens = [seed + 1] * count
                    with space.reserve(tokens) as plan:
                        for layer, kv in enumerate(cache):
                            key, value = ([way(a) for a in arrays] for arrays in kv)
                            wrote = plan.write_packed(layer, key=key, value=value)
                            self.assertTrue(wrote, plan.error)
                        self.assertEqual(plan.commit(count).stored_tokens, count)
                    with space.acquire(tokens) as lease:
                        self.assertEqual(lease.wait_all(), count)
                        self.assertTrue(same(engine.read(lease, count), cache))

    def test_an_array_that_repeats_one_row_is_stored_as_it_reads(self):
        self.daemon.start()
        engine = Engine(prefixd.raw("bfloat16"), layers=1)
        space = engine.open(self.attached())
        rows = np.arange(100 * 64, dtype=np.uint16).reshape(1, 1, 100, 64)
        one_head = np.broadcast_to(rows, (1, 2, 100, 64))  # a stride of 0 over heads
        one_token = np.broadcast_to(rows[:, :, :2].transpose(0, 2, 1, 3), (1, 2, 100, 64))
        with space.reserve([5] * 100) as plan:
            plan.write_packed(0, key=one_head, value=[one_token])
            plan.commit(100)
        with space.acquire([5] * 100) as lease:
            lease.wait_all()
            (key,), (value,) = lease.gather(0, 100)
            self.assertTrue((key == one_head).all() and (value == one_token).all())

    def test_gather_fills_the_callers_arrays(self):
        self.daemon.start()
        engine = Engine()
        space = engine.open(self.attached())
        engine.store(space, 150)
        cache = engine.cache(150)
        room = [
            tuple(np.zeros((1, 2, 256, a.shape[3]), a.dtype) for a in arrays) for arrays in cache[0]
        ]
        out = tuple(tuple(a[:, :, :150] for a in arrays) for arrays in room)
        with space.acquire(engine.tokens(150)) as lease:
            lease.wait_all()
            given = lease.gather(0, 150, out=out)
        self.assertTrue(same([given], cache[:1]))
        self.assertTrue(all(a is b for x, y in zip(given, out) for a, b in zip(x, y)))
        self.assertFalse(any(a[:, :, 150:].any() for arrays in room for a in arrays))

    def test_several_formats_in_one_space_are_read_in_the_one_asked_for(self):
        self.daemon.start()
        fine, coarse = prefixd.mlx_affine(8, 64, "bfloat16"), prefixd.mlx_affine(4, 64, "bfloat16")
        engine = Engine(fine, coarse)
        space = engine.open(self.attached())
        self.assertEqual(engine.store(space, 150, format=1), 150)
        with space.acquire(engine.tokens(150), readable=["mlx_affine/4/64"]) as lease:
            self.assertEqual(lease.wait_all(), 150)
            self.assertTrue(same(engine.read(lease, 150), engine.cache(150, 1)))
        self.assertEqual(space.match(engine.tokens(150), readable=[fine]).restorable_tokens, 0)

    def test_content_tells_prompts_of_the_same_tokens_apart(self):
        self.daemon.start()
        engine = Engine()
        space = engine.open(self.attached())
        images = [prefixd.Content(10, 20, bytes([n]) * 32) for n in (1, 2)]
        tokens, cache = engine.tokens(64), engine.cache(64)
        with space.reserve(tokens, content=images[:1], turn_ends=[40]) as plan:
            for layer, (key, value) in enumerate(cache):
                plan.write_packed(layer, key=key, value=value)
            plan.commit(64, sequence_end=True)
        self.assertEqual(space.match(tokens, content=images[:1]).restorable_tokens, 64)
        self.assertEqual(space.match(tokens, content=images[1:]).restorable_tokens, 10)
        self.assertEqual(space.match(tokens).restorable_tokens, 10)
        self.assertEqual(space.match(tokens[:40], content=images[:1]).kind, "exact", "a turn's end")

    def test_tokens_come_as_lists_arrays_and_numpy(self):
        self.daemon.start()
        engine = Engine()
        space = engine.open(self.attached())
        engine.store(space, 150)
        tokens = engine.tokens(150)
        twice = np.repeat(np.array(tokens, np.uint32), 2)
        for given in (tuple(tokens), np.array(tokens), np.array(tokens, np.uint32), twice[::2]):
            self.assertEqual(space.match(given).restorable_tokens, 150)
        self.assertEqual(
            space.match(np.array(tokens), max_cached_tokens=np.int64(70)).restorable_tokens, 70
        )

    def test_without_shared_memory_pages_are_sent(self):
        self.daemon.start()
        engine = Engine()
        client = self.attached(arena=False, staging_bytes=0)
        space = engine.open(client)
        engine.store(space, 150)
        with space.acquire(engine.tokens(150)) as lease:
            self.assertEqual(lease.wait_all(), 150)
            self.assertFalse(lease.match.in_place)
            self.assertTrue(same(engine.read(lease, 150), engine.cache(150)))
            self.assertIsNone(lease.blocks(0)[0].arena_offset)
        self.assertEqual(client.stats.arena_bytes, 0)

    def test_the_client_counts(self):
        self.daemon.start()
        engine = Engine()
        client = self.attached()
        space = engine.open(client)
        engine.store(space, 150)
        with space.acquire(engine.tokens(200)) as lease:
            engine.read(lease, lease.wait_all())
            lease.release(used_tokens=150, first_token_ms=2.5, prefill_tokens_per_s=900.0)
        stats = client.stats
        self.assertTrue(stats.attached)
        self.assertEqual(
            (stats.lookups, stats.requested_tokens, stats.restorable_tokens, stats.stored_tokens),
            (1, 200, 150, 150),
        )
        self.assertEqual(stats.gathered_bytes, 150 * space.payload_bytes_per_token)
        self.assertEqual((len(space.id), space.block_tokens), (64, 64))


class WorthTest(DaemonTest):
    """What a lease was worth is told by itself: `prefixctl status` shows tokens used."""

    def used_after(self, take, limit: int = 200, **told) -> int:
        before = self.daemon.ctl("status")["counters"].get("tokens.used", 0)
        with self.space.acquire(self.engine.tokens(limit)) as lease:
            self.assertEqual(lease.wait_all(), limit)
            take(lease)
            if told:
                lease.release(**told)
        del lease
        until = time.monotonic() + PATIENCE_MS / 1000
        while self.daemon.ctl("status")["leases"] > 0 and time.monotonic() < until:
            pass
        return self.daemon.ctl("status")["counters"]["tokens.used"] - before

    def test_a_lease_tells_how_far_it_was_read(self):
        self.daemon.start()
        self.engine = Engine(prefixd.mlx_affine(8, 64), prefixd.mlx_affine(4, 64))
        self.space = self.engine.open(self.attached())
        self.engine.store(self.space, 200)
        self.assertEqual(self.used_after(lambda lease: None), 0)
        self.assertEqual(self.used_after(lambda lease: lease.runs(0)), 0, "nothing was read")
        self.assertEqual(self.used_after(lambda lease: lease.gather(0, 150)), 150)
        self.assertEqual(self.used_after(lambda lease: lease.gather(1, 20, begin=60)), 80)
        self.assertEqual(self.used_after(lambda lease: lease.blocks(0)), 200)
        self.assertEqual(self.used_after(lambda lease: lease.gather(0), first_token_ms=5), 200)
        self.assertEqual(self.used_after(lambda lease: lease.gather(0), used_tokens=70), 70)
        self.assertEqual(self.used_after(lambda lease: lease.gather(0), used_tokens=0), 0)
        self.assertEqual(self.daemon.ctl("status")["seconds_saved"], 0, "no rate is known")
        self.used_after(lambda lease: lease.gather(0), prefill_tokens_per_s=100.0)
        saved = self.daemon.ctl("status")["seconds_saved"]
        self.assertGreater(saved, 1)
        self.used_after(lambda lease: lease.gather(0))
        self.assertGreater(self.daemon.ctl("status")["seconds_saved"], saved + 1)


class SharingTest(DaemonTest):
    def test_another_process_reads_what_this_one_stored(self):
        self.daemon.start()
        engine = Engine()
        engine.store(engine.open(self.attached()), 200)
        script = """
import sys, prefixd
from support import Engine, same
engine = Engine()
client = prefixd.connect(sys.argv[1], name="other")
assert client.wait_attached(60_000), client.error
space = engine.open(client)
with space.acquire(engine.tokens(200), max_cached_tokens=199, deadline_ms=60_000) as lease:
    n = lease.wait_all()
    key, value = lease.gather(1, n)
    want = engine.cache(200)[1]
    assert same([(key, value)], [tuple(tuple(a[:, :, :n] for a in t) for t in want)])
    print(n, lease.match_kind, lease.match.in_place)
"""
        other = run_script(script, self.daemon.address)
        self.assertEqual((other.stdout, other.stderr), ("199 exact True\n", ""))

    def test_a_request_waits_for_the_worker_that_computes_its_tokens(self):
        """And other threads of this process run meanwhile: the GIL is released."""
        self.daemon.start()
        engine = Engine()
        writing, reading = engine.open(self.attached()), engine.open(self.attached())
        tokens = engine.tokens(128)
        found = []

        def ask():
            with reading.acquire(
                tokens, deadline_ms=PATIENCE_MS, wait_pending_ms=PATIENCE_MS
            ) as lease:
                found.append(lease.wait_all())

        with writing.reserve(tokens) as plan:
            self.assertEqual(plan.missing, ((0, 128),))
            asking = threading.Thread(target=ask)
            asking.start()
            for layer, (key, value) in enumerate(engine.cache(128)):
                plan.write_packed(layer, key=key, value=value)
            plan.commit(128, sequence_end=True)
        asking.join()
        self.assertEqual(found, [128])
