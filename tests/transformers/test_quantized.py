"""Caches that are stored quantized and computed in full precision."""

import unittest

import models
import torch
from models import prompt
from prefixd.engine import affine
from prefixd.transformers import Options, PrefixCache
from support import TransformersTest


class Quantized(TransformersTest):
    def test_V7_rows_come_back_within_a_step(self):
        for dtype, slack in ((torch.float32, 1e-5), (torch.bfloat16, 0.02), (torch.float16, 2e-3)):
            for bits, value_bits in ((8, None), (8, 4), (4, None), (6, None), (3, None)):
                with self.subTest(dtype=dtype, bits=bits, value_bits=value_bits):
                    self.check(dtype, bits, value_bits, slack)

    def check(self, dtype: torch.dtype, bits: int, value_bits: int | None, slack: float) -> None:
        model, ids = self.load("qwen3", dtype), prompt(150, seed=31)
        more = {"bits": bits, "value_bits": value_bits, "salt": f"{bits},{value_bits}"}
        out = models.generate(model, ids, 10, self.shared(model, **more).fetch(ids))
        whole = out.sequences[0].tolist()
        self.assertEqual(self.shared(model, **more).store(whole, out.past_key_values), 159)
        restored = self.shared(model, **more).fetch(whole)
        self.assertEqual(restored.get_seq_length(), 159)
        for mine, first in zip(restored.layers, out.past_key_values.layers, strict=True):
            for got, had, one in (
                (mine.keys, first.keys, bits),
                (mine.values, first.values, value_bits or bits),
            ):
                self.assertEqual(got.dtype, dtype)
                groups = had.float().unflatten(-1, (-1, 64))
                step = (groups.amax(-1) - groups.amin(-1)) / (2**one - 1)
                error = (got.float() - had.float()).abs().unflatten(-1, (-1, 64)).amax(-1)
                # MLX changes the scale so that zero has a code: the other edge may lose a step.
                most = 2**one - 1
                bound = step * most / (most - 1) + slack * groups.abs().amax(-1)
                self.assertTrue(bool((error <= bound).all()))
                packed = affine.quantize(had.cpu(), one, 64)  # a GPU's PyTorch divides otherwise
                self.assertTrue(torch.equal(got.cpu(), affine.dequantize(packed, one, 64)))

    def test_V7_who_wants_exact_rows_gets_no_quantized_ones(self):
        model, ids = self.load("llama"), prompt(150, seed=32)
        self.ask(self.shared(model, bits=8), ids, 4)
        self.assertEqual(self.shared(model).fetch(ids).get_seq_length(), 0)
        self.assertEqual(self.shared(model, bits=4).fetch(ids).get_seq_length(), 0)
        self.assertEqual(self.shared(model, read=(8,)).fetch(ids).get_seq_length(), 149)
        self.assertEqual(self.shared(model, bits=8).fetch(ids).get_seq_length(), 149)

    def test_V7_who_quantizes_takes_exact_rows(self):
        model, ids = self.load("llama"), prompt(150, seed=33)
        whole, _, _ = self.ask(self.shared(model), ids, 4)
        shared = self.shared(model, bits=8)
        turn = whole + prompt(80, seed=34)
        self.assertEqual(self.ask(shared, turn, 4)[1], 153)
        self.assertEqual(shared.fetch(turn).get_seq_length(), 233)

    def test_rows_are_quantized_once_however_often_their_block_grows(self):
        model, ids = self.load("llama", torch.bfloat16), prompt(70, seed=35)
        first = None
        for turn in range(5):
            shared = self.shared(model, bits=4)
            ids, cached, _ = self.ask(shared, ids, 5)
            self.assertEqual(cached > 0, turn > 0)
            keys = shared.fetch(ids).layers[0].keys[:, :, :74]
            first = keys if first is None else first
            self.assertTrue(torch.equal(keys, first))

    def test_short_prompts_stay_raw_if_asked(self):
        model, ids = self.load("llama"), prompt(90, seed=36)
        self.ask(self.shared(model, bits=8, min_quantize_tokens=100), ids, 4)
        self.assertEqual(self.shared(model).fetch(ids).get_seq_length(), 89)

    def test_wrong_options_are_refused_in_a_sentence(self):
        for wrong, text in (
            ({"bits": 7}, "bits: 7, must be one of 2, 3, 4, 5, 6, 8"),
            ({"value_bits": 4}, "value_bits without bits"),
            ({"group_size": 16}, "group_size: 16, must be one of 32, 64, 128"),
            ({"read": (3,)}, "read: 3 bits, must be of 8, 6, 4"),
        ):
            with self.subTest(**wrong), self.assertRaisesRegex(ValueError, text):
                Options(**wrong)

    def test_groups_that_do_not_fit_the_model_are_told(self):
        model = self.load("llama")
        options = Options(bits=8, group_size=128)
        with self.assertLogs("prefixd.transformers", "WARNING") as log:
            self.assertIn(
                "groups of 128", PrefixCache(self.client(), model, options=options).why_not
            )
        self.assertIn("are not shared", log.output[0])


if __name__ == "__main__":
    unittest.main()
