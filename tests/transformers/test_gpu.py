"""prefixd.transformers with models on a GPU. Skipped, and said so, where torch sees none: CPU tests
run again there, and beside them what is a GPU's own."""

import unittest

import models
import test_batches
import test_prefix_cache
import test_quantized
import torch
from models import answer, prompt
from support import TransformersTest
from transformers import DynamicCache

on_a_gpu = unittest.skipUnless(torch.cuda.is_available(), "torch sees no GPU")


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

    def test_V8_attention_in_place_is_left_to_pytorch_and_gives_the_same_text(self):
        """Its kernels are the CPU's: a model on a GPU gets copies, and SDPA."""
        for name in ("llama", "gemma3"):
            with self.subTest(model=name):
                model = self.load(name, attn_implementation="prefixd")
                ids = prompt(300, seed=84)
                whole, _, _ = self.ask(self.shared(model), ids, 8)
                turn = whole + prompt(11, seed=85)
                cache = self.shared(model).fetch(turn)
                self.assertEqual(cache.get_seq_length(), 307)
                for layer in cache.layers:
                    self.assertEqual(layer.keys.device, model.device)
                out = models.generate(model, turn, 20, cache)
                want = answer(self.load(name), turn, 20)
                self.assertEqual(out.sequences[0].tolist(), want)

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


def tensors_of(layer):
    """Everything that a layer of a cache keeps."""
    found = [getattr(layer, name, None) for name in ("keys", "values")]
    for at in range(getattr(layer, "number_of_states", 0)):
        found += [getattr(layer, name)[at] for name in ("conv_states", "recurrent_states")]
    return [tensor for tensor in found if tensor is not None]


if __name__ == "__main__":
    unittest.main()
