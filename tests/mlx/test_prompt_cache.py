"""prefixd in the place of the engine's prompt cache: what goes in comes out, to the bit."""

import signal
import threading
import time
from unittest import mock

import mlx.core as mx
import mlx_lm
import prefixd
from mlx_lm.models.cache import KVCache, QuantizedKVCache, RotatingKVCache
from prefixd.mlx import Model, Options, PromptCache, TensorFormat, Unsupported, convert
from prefixd.mlx.opening import prepare_model
from prefixd.mlx.layers import RowPages
from processes import DEADLINE_S, wait_for
from rows import WithDaemon, prompt, same_bits
from tiny_model import Geometry, write_checkpoint

ME = "model"
LAYERS, HEADS, DIM = 4, 2, 64


class BytesInAndOut(WithDaemon):
    def assert_bytes(self, bits: int, row_bytes: int) -> None:
        cache = self.prompt_cache(kv_bits=bits or None)
        caches = self.engine_caches(100, bits)
        cache.insert_cache(ME, prompt(100, seed=1), caches)
        per_token = LAYERS * HEADS * 2 * row_bytes
        self.assertEqual(sum(convert.from_cache(c).nbytes for c in caches), 100 * per_token)
        self.assertEqual(self.space()["ram_payload_bytes"], 100 * per_token)

    def test_G1_bytes_stored_are_the_engines_own_at_8_bits(self):
        self.assert_bytes(8, DIM + 2 * 2)

    def test_G1_bytes_stored_are_the_engines_own_at_4_bits(self):
        self.assert_bytes(4, DIM // 2 + 2 * 2)

    def test_G1_bytes_stored_are_the_engines_own_at_3_bits(self):
        self.assert_bytes(3, DIM * 3 // 8 + 2 * 2)

    def test_G1_bytes_stored_are_the_engines_own_in_full_precision(self):
        self.assert_bytes(0, DIM * 2)

    def test_G1_an_exact_repeat_leaves_one_token_to_compute(self):
        tokens = prompt(100, seed=1)
        self.prompt_cache(kv_bits=8).insert_cache(ME, tokens, self.engine_caches(100, 8))
        caches, rest = self.prompt_cache(kv_bits=8).fetch_nearest_cache(ME, tokens)
        self.assertEqual(rest, tokens[-1:])
        self.assertEqual([c.offset for c in caches], [99] * LAYERS)

    def test_a_buffer_of_512_slots_with_280_tokens_counts_280(self):
        caches = self.engine_caches(280, 8)
        self.assertEqual(caches[0].keys[0].shape[2], 512)
        self.prompt_cache(kv_bits=8).insert_cache(ME, prompt(280, seed=1), caches)
        self.assertEqual(self.space()["stored_tokens"], 280)

    def test_a_repeat_stores_nothing_and_counts_once(self):
        cache, tokens = self.prompt_cache(kv_bits=8), prompt(100, seed=1)
        with self.assertLogs("prefixd.mlx", "INFO") as said:
            for _ in range(2):
                cache.insert_cache(ME, tokens, self.engine_caches(100, 8))
        self.assertEqual(self.space()["stored_tokens"], 100)
        first, again = said.output[-2:]
        self.assertEqual(first, again)
        self.assertIn("stored=True cache_entries=1 cache_mem=108800", first)

    def test_an_empty_cache_stores_nothing_and_says_so(self):
        cache = self.prompt_cache(kv_bits=8)
        with self.assertLogs("prefixd.mlx", "INFO") as said:
            cache.insert_cache(ME, prompt(5, seed=1), [KVCache() for _ in range(LAYERS)])
        self.assertIn("stored=False", said.output[-1])


class FiveWaysToMeet(WithDaemon):
    """features.md S1-07: what is stored and what is asked, quantized or not, from RAM and from
    SSD."""

    SHAPES = (
        # stored, asked, shared, cached
        ("exact", 150, 150, 150, 149),
        ("stored is longer", 150, 44, 44, 43),
        ("stored is longer by one", 150, 149, 149, 148),
        ("stored is a prefix", 150, 200, 150, 150),
        ("they part", 150, 160, 70, 70),
    )

    def assert_all_meet(self, reboot: bool) -> None:
        for bits in (0, 4, 8):
            before = self.engine_caches(150, bits)
            for number, (name, stored, asked, shared, _) in enumerate(self.SHAPES):
                cache = self.prompt_cache(kv_bits=bits or None)
                cache.insert_cache(ME, prompt(stored, seed=10 * bits + number), before)
            if reboot:
                self.reboot()
            for number, (name, stored, asked, shared, cached) in enumerate(self.SHAPES):
                seed = 10 * bits + number
                with self.subTest(name, bits=bits):
                    question = prompt(stored, seed)[:shared] + prompt(asked - shared, 1000 + seed)
                    caches, rest = self.prompt_cache(kv_bits=bits or None).fetch_nearest_cache(
                        ME, question
                    )
                    self.assertEqual(len(rest), asked - cached)
                    self.assertIs(type(caches[0]), QuantizedKVCache if bits else KVCache)
                    self.assertTrue(same_bits(caches, self.cut(before, cached)))

    def test_from_ram(self):
        self.assert_all_meet(reboot=False)

    def test_from_ssd(self):
        self.assert_all_meet(reboot=True)


class RungsOfAChain(WithDaemon):
    """Short prompts are raw, long ones quantized: chains of both, which both read."""

    def test_quantized_from_a_start_on_they_go_on_from_raw_rows(self):
        options = {"kv_bits": 8, "quantized_kv_start": 128}
        short, long = prompt(100, seed=1), prompt(200, seed=1)
        self.assertEqual(long[:100], short)
        whole = self.engine_caches(200, 8)
        self.prompt_cache(**options).insert_cache(ME, short, self.engine_caches(100))
        raw, _ = self.prompt_cache(**options).fetch_nearest_cache(ME, long)
        self.assertTrue(same_bits(raw, self.engine_caches(100)))

        self.prompt_cache(**options).insert_cache(ME, long, whole)
        caches, rest = self.prompt_cache(**options).fetch_nearest_cache(ME, [*long, 1])
        self.assertEqual(len(rest), 1)
        self.assertTrue(same_bits(caches, whole))  # the engine would have quantized the raw rows so

    def test_blocks_that_are_here_in_a_readable_format_are_not_written_again(self):
        options = {"kv_bits": 8, "quantized_kv_start": 128}
        self.prompt_cache(**options).insert_cache(ME, prompt(100, seed=1), self.engine_caches(100))
        self.prompt_cache(**options).insert_cache(
            ME, prompt(200, seed=1), self.engine_caches(200, 8)
        )
        raw, packed = (LAYERS * HEADS * 2 * row for row in (2 * DIM, DIM + 4))
        # The raw tail of the short prompt stays: nothing in its format took its place.
        self.assertEqual(self.space()["ram_payload_bytes"], 100 * raw + 136 * packed)

    def test_a_chain_that_another_server_wrote_in_its_own_bits_heals(self):
        tokens, asked = prompt(100, seed=1), prompt(101, seed=1)
        self.prompt_cache(kv_bits=4).insert_cache(ME, tokens, self.engine_caches(100, 4))
        other = self.prompt_cache(kv_bits=8)
        self.assertEqual(other.fetch_nearest_cache(ME, asked), (None, asked))
        other.insert_cache(ME, tokens, self.engine_caches(100, 8))
        for bits in (8, 4):  # each has its own, bit for bit
            caches, rest = self.prompt_cache(kv_bits=bits).fetch_nearest_cache(ME, asked)
            self.assertEqual(len(rest), 1)
            self.assertTrue(same_bits(caches, self.engine_caches(100, bits)))

    def test_full_precision_is_not_given_quantized_rows_unless_it_asks(self):
        tokens = prompt(100, seed=1)
        self.prompt_cache(kv_bits=8).insert_cache(ME, tokens, self.engine_caches(100, 8))
        self.assertEqual(self.prompt_cache().fetch_nearest_cache(ME, tokens), (None, tokens))
        asking = self.prompt_cache(read=(TensorFormat(8, 64),))
        caches, rest = asking.fetch_nearest_cache(ME, tokens)
        self.assertEqual(len(rest), 1)
        expected = [convert.dequantize(convert.from_cache(c)) for c in self.engine_caches(100, 8)]
        self.assertTrue(same_bits(caches, self.cut([convert.to_cache(r) for r in expected], 99)))


class HeadsThatNoGroupDivides(WithDaemon):
    geometry = Geometry(head_dim=96)

    def test_share_raw_rows_though_the_server_would_read_quantized_ones_too(self):
        cache, tokens = self.prompt_cache(read=(TensorFormat(8, 64),)), prompt(100, seed=1)
        cache.insert_cache(ME, tokens, self.engine_caches(100))
        caches, rest = self.prompt_cache().fetch_nearest_cache(ME, [*tokens, 1])
        self.assertEqual(len(rest), 1)
        self.assertTrue(same_bits(caches, self.engine_caches(100)))
        _, rest = cache.fetch_nearest_cache(ME, [*tokens, 1])
        self.assertEqual((len(rest), len(cache)), (1, 0))


class QuantizedToBeSaved(WithDaemon):
    """--kv-cache-quantization: the engine computes in full precision."""

    def stored_bytes(self, tokens: int, **options) -> int:
        self.prompt_cache(store_bits=8, **options).insert_cache(
            ME, prompt(tokens, seed=1), self.engine_caches(tokens)
        )
        return self.space()["ram_payload_bytes"]

    def test_255_tokens_are_saved_raw(self):
        self.assertEqual(self.stored_bytes(255), 255 * LAYERS * HEADS * 2 * 2 * DIM)

    def test_256_tokens_are_saved_quantized(self):
        self.assertEqual(self.stored_bytes(256), 256 * LAYERS * HEADS * 2 * (DIM + 4))

    def test_with_a_minimum_of_0_one_token_is_saved_quantized(self):
        self.assertEqual(
            self.stored_bytes(1, min_quantize_tokens=0), LAYERS * HEADS * 2 * (DIM + 4)
        )

    def test_rows_come_back_in_full_precision_from_the_entrys_own_format(self):
        tokens = prompt(100, seed=1)
        self.stored_bytes(100, min_quantize_tokens=0)
        cache = self.prompt_cache(store_bits=8)  # which would save these raw
        caches, rest = cache.fetch_nearest_cache(ME, [*tokens, 1])
        self.assertEqual(len(rest), 1)
        self.assertIs(type(caches[0]), KVCache)
        packed = [convert.from_cache(c) for c in self.engine_caches(100, 8)]
        self.assertTrue(
            same_bits(caches, [convert.to_cache(convert.dequantize(r)) for r in packed])
        )

    def test_S1_50_rows_are_quantized_once_however_often_they_go_round(self):
        options = {"store_bits": 8, "min_quantize_tokens": 0}
        self.stored_bytes(100, min_quantize_tokens=0)
        for count in (110, 120):  # longer each time, in the same last block
            cache = self.prompt_cache(**options)
            asked = prompt(count, seed=1)
            caches, rest = cache.fetch_nearest_cache(ME, asked)
            for layer, one in enumerate(caches):
                new = [self.noise(count, layer, side)[..., -len(rest) :, :] for side in (0, 1)]
                one.update_and_fetch(*new)
            cache.insert_cache(ME, asked, caches)
        engine = self.prompt_cache(kv_bits=8)  # sees the stored bytes as they are
        caches, _ = engine.fetch_nearest_cache(ME, [*prompt(120, seed=1), 1])
        self.assertTrue(same_bits(caches, self.engine_caches(120, 8)))


class WhatIsLeftToTheEnginesOwnCache(WithDaemon):
    def unsupported(self, model):
        self.opened += 1
        raise Unsupported("its caches are RotatingKVCache")

    def test_are_caches_that_prefixd_does_not_hold_and_it_is_said_once(self):
        self.opened = 0
        cache, tokens = PromptCache(self.unsupported), prompt(20, seed=1)
        rotating = [RotatingKVCache(max_size=64)]
        rotating[0].update_and_fetch(mx.zeros((1, 2, 20, 64)), mx.zeros((1, 2, 20, 64)))
        with self.assertLogs("prefixd.mlx", "WARNING") as said:
            self.assertEqual(cache.fetch_nearest_cache(ME, tokens), (None, tokens))
            cache.insert_cache(ME, tokens, rotating)
            caches, rest = cache.fetch_nearest_cache(ME, [*tokens, 1])
        self.assertEqual((len(cache), rest, caches[0].offset), (1, [1], 20))
        self.assertEqual(len(said.output), 1)
        self.assertEqual(self.opened, 1)
        self.assertIn("RotatingKVCache", said.output[0])

    def test_is_everything_until_the_models_files_are_read(self):
        read = threading.Event()
        client = prefixd.connect(self.daemon.address)
        options = Options(salt=self.id(), deadline_ms=30_000)

        def prepare(_):
            opens = prepare_model(client, [Model(self.model, str(self.checkpoint))], options)
            return lambda: opens() if read.wait(DEADLINE_S) else None

        cache, tokens, asked = PromptCache(prepare), prompt(100, seed=1), prompt(101, seed=1)
        self.assertEqual(cache.fetch_nearest_cache(ME, tokens), (None, tokens))
        cache.insert_cache(ME, tokens, self.engine_caches(100))
        with self.assertLogs("prefixd.mlx", "INFO") as said:
            self.assertEqual(len(cache.fetch_nearest_cache(ME, asked)[1]), 1)
        self.assertIn("cache_fetch HIT cached=100 remaining=1", said.output[0])
        self.assertEqual(len(cache), 1)
        read.set()
        wait_for("the model to be open", lambda: cache.shared(ME))
        cache.insert_cache(ME, tokens, self.engine_caches(100))
        self.assertEqual(len(self.prompt_cache().fetch_nearest_cache(ME, asked)[1]), 1)

    def test_is_everything_while_there_is_no_daemon(self):
        self.daemon.stop()
        try:
            cache, tokens = self.prompt_cache(kv_bits=8), prompt(100, seed=1)
            self.assertEqual(cache.fetch_nearest_cache(ME, tokens), (None, tokens))
            cache.insert_cache(ME, tokens, self.engine_caches(100, 8))
            caches, rest = cache.fetch_nearest_cache(ME, [*tokens, 1])
            self.assertEqual(len(rest), 1)
            self.assertTrue(same_bits(caches, self.engine_caches(100, 8)))
        finally:
            self.start_daemon()

    def test_is_what_an_error_kept_from_prefixd_which_is_logged_and_not_raised(self):
        cache, tokens = self.prompt_cache(kv_bits=8), prompt(100, seed=1)
        with self.assertLogs("prefixd.mlx", "INFO") as said:
            cache.insert_cache(ME, tokens, self.engine_caches(100, 8)[:2])  # of some other model
        self.assertEqual(len(cache), 1)
        self.assertIn("stored=False", said.output[-1])
        self.assertIn("why='2 caches, its layers are 4'", said.output[-1])

    def test_are_tokens_that_prefixd_has_no_numbers_for(self):
        cache, tokens = self.prompt_cache(), [1 << 70] * 20
        with self.assertLogs("prefixd.mlx", "WARNING"):
            self.assertEqual(cache.fetch_nearest_cache(ME, tokens), (None, tokens))
            cache.insert_cache(ME, tokens, self.engine_caches(20))
        _, rest = cache.fetch_nearest_cache(ME, [*tokens, 1])
        self.assertEqual(rest, [1])


class ADaemonThatHangs(WithDaemon):
    def test_costs_a_save_one_deadline_and_the_engines_own_cache_has_it(self):
        cache, tokens = self.prompt_cache(store_deadline_ms=300), prompt(200, seed=1)
        cache.insert_cache(ME, prompt(10, seed=2), self.engine_caches(10))  # it is attached
        write, hang = RowPages.write, mock.Mock(wraps=self.daemon.hang)

        def hang_and_write(*arguments) -> None:
            if not hang.called:
                hang()
            write(*arguments)

        begin = time.monotonic()
        try:
            with mock.patch.object(RowPages, "write", hang_and_write):
                cache.insert_cache(ME, tokens, self.engine_caches(200))
            took = time.monotonic() - begin
        finally:
            self.daemon.send(signal.SIGCONT)
        self.assertLess(took, 5)
        self.assertEqual(len(cache), 1)


class DraftModels(WithDaemon):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        path = str(write_checkpoint(cls.folder / "draft", Geometry(layers=2, seed=8)))
        cls.drafts = [Model(mlx_lm.load(path)[0], path)]

    def test_share_no_more_than_both_models_have(self):
        cache, tokens = self.prompt_cache(kv_bits=8), prompt(120, seed=1)
        caches = self.engine_caches(100, 8) + self.engine_caches(90, 8, layers=2)
        cache.insert_cache(ME, tokens, caches)
        found, rest = cache.fetch_nearest_cache(ME, tokens)
        self.assertEqual(len(rest), 30)
        self.assertTrue(same_bits(found, self.cut(caches, 90)))


class Images(WithDaemon):
    """mlx_lm.server gives the tokens of an image a negative number of the image's own."""

    def test_of_the_same_tokens_share_only_up_to_the_first_that_differs(self):
        before, after = prompt(70, seed=1), prompt(30, seed=2)
        cache = self.prompt_cache(kv_bits=8)
        cache.insert_cache(ME, [*before, *[-17] * 50, *after], self.engine_caches(150, 8))
        _, rest = cache.fetch_nearest_cache(ME, [*before, *[-17] * 50, *after])
        self.assertEqual(len(rest), 1)
        caches, rest = cache.fetch_nearest_cache(ME, [*before, *[-18] * 50, *after])
        self.assertEqual(len(rest), 80)
        self.assertTrue(same_bits(caches, self.engine_caches(70, 8)))

    def test_are_never_cut(self):
        before = prompt(70, seed=1)
        cache = self.prompt_cache(kv_bits=8)
        cache.insert_cache(ME, [*before, *[-17] * 50], self.engine_caches(120, 8))
        _, rest = cache.fetch_nearest_cache(ME, [*before, *[-17] * 50])
        self.assertEqual(len(rest), 50)
