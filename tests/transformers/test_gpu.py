"""prefixd.transformers with models on a GPU. Skipped, and said so, where torch sees none: CPU tests
run again there, and beside them what is a GPU's own."""

import gc
import signal
import unittest

import models
import prefixd.torch
import test_attention
import test_batches
import test_prefix_cache
import test_quantized
import test_tensors
import torch
from models import answer, prompt
from prefixd import mlx_affine, raw
from prefixd.transformers.paged_layers import Paged
from prefixd_process import wait_for
from support import TransformersTest
from test_tensors import DIM, HEADS, LAYERS, TOKENS
from transformers import DynamicCache

on_a_gpu = unittest.skipUnless(torch.cuda.is_available(), "torch sees no GPU")
with_kernels = unittest.skipUnless(
    torch.cuda.is_available() and not prefixd.torch.why_no_gpu(),
    "no GPU that libprefixd_cuda.so can use",
)


@with_kernels
class LoadingOnAGpu(test_tensors.Loading):
    device = "cuda"

    def test_layers_arrive_one_by_one_behind_what_the_stream_was_told(self):
        lease, _ = self.stored([mlx_affine(8, 64, "bfloat16")], 1)
        want = [self.gathered(lease, layer) for layer in range(LAYERS)]
        shape = (LAYERS, 2, HEADS, TOKENS, DIM)
        sides = torch.zeros(shape, dtype=torch.bfloat16, device=self.device)
        torch.cuda._sleep(200_000_000)
        sides.fill_(7)
        load = prefixd.torch.load(lease, dict(enumerate(sides)))
        lease.release()  # the load keeps the pages
        self.assertFalse(load.ready(0))
        beside = torch.cuda.Stream()
        beside.wait_event(load.event(2))
        with torch.cuda.stream(beside):
            copy = sides.clone()
        beside.synchronize()
        self.assertTrue(load.ready(2))
        for layer in range(LAYERS):
            self.assertTrue(torch.equal(copy[layer].cpu(), want[layer]))
        self.assertGreater(sum(load.end().values()), 0)

    def test_pages_that_are_kept_come_from_the_gpu_the_second_time_and_are_right(self):
        gpu = prefixd.torch.gpu()
        if not gpu.keeps_pages:
            gpu.keep_pages(64 << 20)
        lease, _ = self.stored([mlx_affine(8, 64, "bfloat16")], 2)
        want = [self.gathered(lease, layer) for layer in range(LAYERS)]
        for time in range(2):
            shape = (LAYERS, 2, HEADS, TOKENS, DIM)
            sides = torch.zeros(shape, dtype=torch.bfloat16, device=self.device)
            counts = prefixd.torch.load(lease, dict(enumerate(sides))).end()
            self.assertEqual(counts["kept_bytes"] > 0, time == 1)
            for layer in range(LAYERS):
                self.assertTrue(torch.equal(sides[layer].cpu(), want[layer]))
        gpu.forget_pages()

    def test_the_daemons_memory_is_read_where_it_lies_once_it_is_pinned(self):
        lease, _ = self.stored([mlx_affine(8, 64, "bfloat16")], 3)
        client = self.client()
        space = client.open_space(
            model=f"tensors {self.id()}", weights=b"\1" * 32, layers=lease_layers()
        )
        with space.acquire(self.tokens(3), deadline_ms=30_000) as own:
            self.assertEqual(own.wait_all(), TOKENS)
            pinned = prefixd.torch.gpu().pin(own)
            self.assertIsNotNone(pinned)
            self.addCleanup(pinned.unpin)
            sides = torch.zeros(2, HEADS, TOKENS, DIM, dtype=torch.bfloat16, device=self.device)
            prefixd.torch.gpu().forget_pages()
            counts = prefixd.torch.load(own, {0: sides}).end()
            self.assertGreater(counts["pinned_bytes"], 0)
            self.assertTrue(torch.equal(sides.cpu(), self.gathered(own, 0)))
            done, size, why = pinned.progress()
            self.assertEqual((done, why), (size, ""))

    def test_a_smaller_budget_takes_pinned_memory_once_it_is_unpinned(self):
        def counter(name):
            return self.daemon.control("stats")["counters"].get(f"arena.{name}", 0)

        space, count = self.open([raw("bfloat16")], heads=32), 1_500
        for seed in (50, 51):
            self.store(space, self.tokens(seed, count), self.rows(seed, tokens=count, heads=32))
        lease = self.acquire(space, self.tokens(51, count))
        pinned = prefixd.torch.gpu().pin(lease)
        self.addCleanup(pinned.unpin)
        before = pinned.progress()[0]
        self.assertGreater(before, 140 << 20)
        self.assertEqual(counter("device_pinned_bytes"), before)
        self.assertIsNotNone(self.daemon.control("budget", "--ram", "180MiB"))
        self.addCleanup(self.daemon.control, "budget", "--ram", "256MiB")
        wait_for("slabs to leave", lambda: counter("device_pinned_bytes") < before)
        wait_for("all to be unpinned", lambda: counter("device_awaited_bytes") == 0)
        self.assertEqual(counter("device_pins_late"), 0)
        self.assertEqual(counter("device_kept_bytes"), 0)
        sides = torch.zeros(2, 32, count, DIM, dtype=torch.bfloat16, device=self.device)
        prefixd.torch.load(lease, {0: sides}).end()
        self.assertTrue(torch.equal(sides, self.rows(51, tokens=count, heads=32)[0]))
        pinned.unpin()
        wait_for("nothing to be pinned", lambda: counter("device_pinned_bytes") == 0)

    @unittest.skipUnless(torch.cuda.device_count() > 1, "one GPU")
    def test_each_gpu_of_a_process_reads_the_memory_where_it_lies(self):
        lease, rows = self.stored([raw("bfloat16")], 60)
        pins = [prefixd.torch.gpu(at).pin(lease) for at in range(torch.cuda.device_count())]
        for at, pinned in enumerate(pins):
            self.assertEqual(pinned.progress()[0], pinned.progress()[1])
            with torch.cuda.device(at):
                sides = torch.zeros_like(rows, device=f"cuda:{at}")
                counts = prefixd.torch.load(lease, dict(enumerate(sides))).end()
            self.assertEqual(counts["bounced_bytes"], 0)
            self.assertTrue(torch.equal(sides.cpu(), rows.cpu()))
            pinned.unpin()


def lease_layers():
    return [prefixd.FullLayer(HEADS, DIM, DIM, [mlx_affine(8, 64, "bfloat16")])] * LAYERS


@with_kernels
class StoringOnAGpu(test_tensors.Storing):
    device = "cuda"


@with_kernels
class AttentionOnAGpu(test_tensors.Attention):
    device = "cuda"


@with_kernels
class AttentionOnKeptPages(test_tensors.Attention):
    device = "cuda"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if not prefixd.torch.gpu().keeps_pages:
            prefixd.torch.gpu().keep_pages(64 << 20)


@on_a_gpu
class TheSameTextOnAGpu(test_prefix_cache.TheSameText):
    device = "cuda"


@on_a_gpu
class WhatIsFoundOnAGpu(test_prefix_cache.WhatIsFound):
    device = "cuda"


@on_a_gpu
class AfterTheDaemonEndsOnAGpu(test_prefix_cache.AfterTheDaemonEnds):
    device = "cuda"


@on_a_gpu
class BatchesOnAGpu(test_batches.Batches):
    device = "cuda"


@on_a_gpu
class PrefillOnAGpu(test_batches.Prefill):
    device = "cuda"


@on_a_gpu
class QuantizedOnAGpu(test_quantized.Quantized):
    device = "cuda"


@on_a_gpu
class OnAGpu(TransformersTest):
    device = "cuda"

    def test_V7_caches_are_on_the_models_device_and_in_its_type(self):
        for name in models.NAMES:
            for dtype in (torch.float32, torch.bfloat16):
                for bits in (None, 8):
                    with self.subTest(model=name, dtype=dtype, bits=bits):
                        model, ids = self.load(name, dtype), prompt(200, seed=71)
                        more = {"bits": bits, "salt": f"{bits}"}
                        whole, _, _ = self.ask(self.shared(model, **more), ids, 4)
                        cache = self.shared(model, **more).fetch(whole)
                        self.assertEqual(cache.get_seq_length(), 203)
                        for layer in cache.layers:
                            for tensor in tensors_of(layer):
                                self.assertEqual(tensor.device, model.device)
                                self.assertIn(tensor.dtype, (dtype, torch.float32))

    def test_V7_text_is_the_same_in_bfloat16(self):
        for name in models.NAMES:
            with self.subTest(model=name):
                model, ids = self.load(name, torch.bfloat16), prompt(300, seed=54)
                shared = self.shared(model, write_behind=True)
                whole, _, _ = self.ask(shared, ids, 20)
                self.assertTrue(shared.settle(30))
                turn = whole + prompt(9, seed=55)
                cache = self.shared(model).fetch(turn)
                self.assertEqual(cache.get_seq_length(), 319)
                again = models.generate(model, turn, 20, cache).sequences[0].tolist()
                self.assertEqual(again, answer(model, turn, 20))

    def test_V7_what_is_stored_behind_the_model_is_what_the_cache_held_when_it_was_handed_in(self):
        model, ids = self.load("llama"), prompt(300, seed=72)
        shared = self.shared(model, write_behind=True)
        out = models.generate(model, ids, 4)
        cache = out.past_key_values
        want = [layer.keys + 1 for layer in cache.layers]
        whole = out.sequences[0].tolist()
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):  # the model's, and it is busy
            torch.cuda._sleep(400_000_000)
            for layer in cache.layers:
                layer.keys += 1
            shared.store(whole, cache)
        models.generate(model, prompt(300, seed=73), 30)
        self.assertTrue(shared.settle(30))
        for layer, keys in zip(self.shared(model).fetch(whole).layers, want, strict=True):
            self.assertTrue(torch.equal(layer.keys, keys))

    def test_V7_a_cpu_and_a_gpu_find_what_the_other_one_stored(self):
        for name in ("llama", "qwen3", "gemma3"):
            with self.subTest(model=name):
                here, there = self.load(name).cpu(), self.load(name)
                for seed, (writer, reader) in enumerate(((here, there), (there, here))):
                    ids = prompt(300, seed=80 + seed)
                    whole, _, _ = self.ask(self.shared(writer), ids, 4)
                    turn = whole + prompt(9, seed=82)
                    found = self.ask(self.shared(reader), turn, 8)
                    self.assertEqual(found[:2], (answer(reader, turn, 8), 303))

    def test_codes_that_a_gpu_stored_are_those_that_the_cpu_stores(self):
        gpu, ids = self.load("llama"), prompt(300, seed=83)
        out = models.generate(gpu, ids, 4)
        whole, cache = out.sequences[0].tolist(), out.past_key_values
        copy = DynamicCache(config=gpu.config)
        for at, layer in enumerate(cache.layers):
            copy.update(layer.keys.cpu(), layer.values.cpu(), at)
        for bits, value_bits in ((8, None), (8, 4), (3, None)):
            with self.subTest(bits=bits, value_bits=value_bits):
                more = {"bits": bits, "value_bits": value_bits}
                found = []
                cpu = self.load("llama").cpu()
                for salt, model, held in (("gpu", gpu, cache), ("cpu", cpu, copy)):
                    shared = self.shared(model, salt=f"{salt} {bits} {value_bits}", **more)
                    self.assertEqual(shared.store(whole, held), 303)
                    with shared._core.space.acquire(whole) as lease:
                        found.append([lease.gather(at, 303) for at in range(4)])
                for one, other in zip(*found, strict=True):
                    for side in (0, 1):
                        for mine, theirs in zip(one[side], other[side], strict=True):
                            self.assertTrue((mine == theirs).all())

    def test_V8_pages_that_a_cpu_holds_in_place_follow_the_model_to_a_gpu(self):
        model = self.load("llama", attn_implementation="prefixd").cpu()
        whole, _, _ = self.ask(self.shared(model), prompt(300, seed=86), 8)
        cache = self.shared(model).fetch(whole)
        out = models.generate(model.cuda(), whole, 8, cache).sequences[0].tolist()
        self.assertEqual(out, answer(self.load("llama"), whole, 8))

    def test_a_model_that_moves_is_not_shared_any_more_and_the_log_says_so(self):
        model, ids = self.load("llama").cpu(), prompt(100, seed=87)
        shared = self.shared(model)
        self.ask(shared, ids, 4)
        model.cuda()
        with self.assertLogs("prefixd.transformers", "WARNING") as log:
            self.assertEqual(shared.fetch(ids).get_seq_length(), 0)
        self.assertIn("its model moved to cuda:0", log.output[0])
        self.assertEqual(self.shared(model).fetch(ids).get_seq_length(), 99)


@with_kernels
class PinningOnAGpu(TransformersTest):
    device = "cuda"

    def test_prefixds_memory_is_pinned_once_and_pages_come_straight_from_it(self):
        model, ids = self.load("llama"), prompt(300, seed=91)
        whole, _, _ = self.ask(self.shared(model, pin=False), ids, 4)
        gpu = prefixd.torch.gpu()
        before = set(gpu._pinned)
        client = self.client()
        shared = self.shared(model, client)
        for _ in range(2):
            self.assertEqual(shared.fetch(whole).get_seq_length(), 303)
            self.assertEqual(len(set(gpu._pinned) - before), 1)
        base = (set(gpu._pinned) - before).pop()
        wait_for("pinning", lambda: self.is_whole(gpu._pinned[base]))
        with shared._core.space.acquire(whole, deadline_ms=30_000) as lease:
            self.assertEqual(lease.wait_all(), 303)
            sides = torch.zeros(2, 2, 303, 64, device=self.device)
            gpu.forget_pages()  # another test may have asked to keep them on the GPU
            counts = prefixd.torch.load(lease, {0: sides}).end()
        self.assertGreater(counts["pinned_bytes"], 0)
        self.assertEqual(counts["bounced_bytes"], 0)
        other = self.shared(model, pin=False)  # of another session, whose memory is mapped again
        other.fetch(whole)
        self.assertEqual(len(set(gpu._pinned) - before), 1)
        del shared
        gc.collect()
        self.assertEqual(set(gpu._pinned) - before, set(), "nobody has it any more")

    def is_whole(self, pinned):
        done, size, _ = pinned.progress()
        return 0 < done == size

    def test_pages_that_a_cpu_and_a_gpu_attend_on_in_place_give_one_text(self):
        more = {"bits": 8, "value_bits": 4, "salt": "one text"}
        for name in ("llama", "qwen3", "gemma3"):
            with self.subTest(model=name):
                there = self.load(name, attn_implementation="prefixd")
                here = self.load(name, attn_implementation="prefixd").cpu()
                whole, _, stored = self.ask(self.shared(there, **more), prompt(300, seed=92), 4)
                self.assertEqual(stored, 303)
                turn, texts = whole + prompt(9, seed=93), []
                for model in (here, there):
                    cache = self.shared(model, **more).fetch(turn)
                    self.assertEqual(cache.get_seq_length(), 303)
                    self.assertTrue(any(isinstance(layer, Paged) for layer in cache.layers))
                    texts.append(models.generate(model, turn, 24, cache).sequences[0].tolist())
                self.assertEqual(*texts)


@with_kernels
class InPlaceOnAGpu(test_attention.InPlaceTest):
    device = "cuda"

    def test_V8_attention_reads_pages_in_device_memory_and_gives_the_same_text(self):
        for name in models.NAMES:
            for bits in (None, 8):
                with self.subTest(model=name, bits=bits):
                    model, turn, cache = self.warm(name, bits=bits, salt=f"{bits}")
                    paged = sum(isinstance(layer, Paged) for layer in cache.layers)
                    self.calls = 0
                    out = models.generate(model, turn, 20, cache).sequences[0].tolist()
                    hopper = torch.cuda.get_device_capability() == (9, 0)
                    steps = 20 if hopper else 19  # elsewhere all but the rest of the prompt
                    self.assertEqual(self.calls, steps * paged)
                    copies = self.load(name)
                    cache = self.shared(copies, bits=bits, salt=f"{bits}").fetch(turn)
                    want = models.generate(copies, turn, 20, cache).sequences[0].tolist()
                    self.assertEqual(out, want)

    def test_V8_what_was_computed_behind_the_pages_is_stored(self):
        model, turn, cache = self.warm("llama")
        out = models.generate(model, turn, 200, cache)
        whole = out.sequences[0].tolist()
        shared = self.shared(model)
        shared.store(whole, out.past_key_values)
        found = self.ask(self.shared(model), whole, 8)
        self.assertEqual(found[:2], (answer(self.load("llama"), whole, 8), len(whole) - 1))

    def test_V8_pages_stay_readable_while_prefixd_is_killed_and_comes_back(self):
        model, turn, cache = self.warm("llama", length=400)
        want = answer(self.load("llama"), turn, 20)
        self.daemon.stop(signal.SIGKILL)
        self.start_daemon()
        out = models.generate(model, turn, 20, cache)
        self.assertEqual(out.sequences[0].tolist(), want)

    def test_beams_get_copies(self):
        model, turn, cache = self.warm("llama", salt="beams")
        cache.batch_repeat_interleave(3)
        more = {"num_beams": 3}
        want = models.generate(self.load("llama"), turn, 8, **more).sequences
        self.assertTrue(torch.equal(models.generate(model, turn, 8, cache, **more).sequences, want))


def tensors_of(layer):
    """Everything that a layer of a cache keeps."""
    found = [getattr(layer, name, None) for name in ("keys", "values")]
    for at in range(getattr(layer, "number_of_states", 0)):
        found += [getattr(layer, name)[at] for name in ("conv_states", "recurrent_states")]
    return [tensor for tensor in found if tensor is not None]


if __name__ == "__main__":
    unittest.main()
