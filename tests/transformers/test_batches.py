"""Batches of prompts that are padded on the left, and prompts that are computed ahead."""

import unittest
from typing import Any

import models
import torch
from models import answer, prompt
from support import TransformersTest

PAD = 0


def batch_of(prompts: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """The ids, padded on the left, and their mask."""
    width = max(map(len, prompts))
    ids = [[PAD] * (width - len(one)) + one for one in prompts]
    mask = [[0] * (width - len(one)) + [1] * len(one) for one in prompts]
    return torch.tensor(ids), torch.tensor(mask)


class Batches(TransformersTest):
    def ask_batch(
        self, shared: Any, prompts: list[list[int]], count: int, **more: Any
    ) -> tuple[list[list[int]], int, int]:
        """The whole sequences without padding, and the cached and stored tokens of all."""
        ids, mask = (side.to(self.device) for side in batch_of(prompts))
        before = shared.cached_tokens
        cache = shared.fetch_batch(ids, mask)
        out = shared.model.generate(
            ids,
            attention_mask=mask,
            past_key_values=cache,
            max_new_tokens=count,
            do_sample=False,
            return_dict_in_generate=True,
            pad_token_id=PAD,
            **more,
        )
        stored = shared.store_batch(out.sequences, out.past_key_values, mask)
        pads = (mask == 0).sum(1).tolist()
        rows = [row[pad:] for row, pad in zip(out.sequences.tolist(), pads, strict=True)]
        return rows, shared.cached_tokens - before, stored

    def test_V7_a_batch_gives_the_text_that_each_prompt_gives_alone(self):
        for name in models.NAMES:
            with self.subTest(model=name):
                model = self.load(name)
                prompts = [prompt(length, seed) for seed, length in enumerate((300, 262, 300))]
                alone = [answer(model, one, 12) for one in prompts]
                rows, cached, stored = self.ask_batch(self.shared(model), prompts, 12)
                self.assertEqual((rows, cached, stored), (alone, 0, 311 + 273 + 311))
                turns = [row + prompt(9, seed=len(row)) for row in rows]
                alone = [answer(model, one, 12) for one in turns]
                rows, cached, _ = self.ask_batch(self.shared(model), turns, 12)
                self.assertEqual((rows, cached), (alone, 311 + 273 + 311))

    def test_V7_one_process_stores_a_batch_and_another_finds_each_of_it(self):
        for name in models.NAMES:
            with self.subTest(model=name):
                model = self.load(name)
                prompts = [prompt(length, seed=1000 + length) for length in (220, 150)]
                rows, _, _ = self.ask_batch(self.shared(model), prompts, 12)
                for row in rows:
                    turn = row + prompt(5, seed=1)
                    whole, cached, _ = self.ask(self.shared(model), turn, 6)
                    self.assertEqual((whole, cached), (answer(model, turn, 6), len(row) - 1))

    def test_V7_a_batch_goes_on_from_the_column_that_all_have(self):
        model = self.load("llama")
        first, second = prompt(200, seed=11), prompt(180, seed=12)
        self.ask(self.shared(model), first, 8)
        self.ask(self.shared(model), second[:150], 1)
        alone = [answer(model, one, 8) for one in (first, second)]
        rows, cached, _ = self.ask_batch(self.shared(model), [first, second], 8)
        self.assertEqual((rows, cached), (alone, 170 + 150))

    def test_V7_windows_that_were_not_stored_at_that_column_are_computed(self):
        model = self.load("gemma3")
        first, second = prompt(200, seed=11), prompt(180, seed=12)
        self.ask(self.shared(model), first, 8)
        self.ask(self.shared(model), second[:150], 1)
        alone = [answer(model, one, 8) for one in (first, second)]
        rows, cached, _ = self.ask_batch(self.shared(model), [first, second], 8)
        self.assertEqual((rows, cached), (alone, 0))

    def test_V7_a_short_prompt_that_is_not_stored_costs_the_others_nothing_before_it_begins(self):
        model = self.load("qwen3")
        long, short = prompt(300, seed=13), prompt(40, seed=14)
        self.ask(self.shared(model), long, 8)
        alone = [answer(model, one, 8) for one in (long, short)]
        rows, cached, _ = self.ask_batch(self.shared(model), [long, short], 8)
        self.assertEqual((rows, cached), (alone, 260))

    def test_V7_linear_attention_goes_on_where_a_prompt_has_not_begun(self):
        for name in ("qwen3_next", "lfm2"):
            with self.subTest(model=name):
                model = self.load(name)
                long, _, _ = self.ask(self.shared(model), prompt(300, seed=18), 8)
                prompts = [long + prompt(12, seed=19), prompt(10, seed=20)]
                alone = [answer(model, one, 8) for one in prompts]
                rows, cached, _ = self.ask_batch(self.shared(model), prompts, 8)
                self.assertEqual((rows, cached), (alone, 307))

    def test_an_answer_that_ends_early_is_stored_without_the_padding_behind_it(self):
        model = self.load("llama")
        prompts = [prompt(100, seed=15), prompt(90, seed=16)]
        alone = [answer(model, one, 20) for one in prompts]
        end = alone[0][104]  # the fifth token of the first answer
        self.assertNotIn(end, alone[0][100:104])
        model.generation_config.eos_token_id = end
        self.assertNotIn(end, alone[1][90:])
        shared = self.shared(model)
        _, _, stored = self.ask_batch(shared, prompts, 20)
        self.assertEqual(stored, 105 + 109)
        self.assertEqual(shared.fetch(alone[0]).get_seq_length(), 105)

    def test_padding_elsewhere_is_refused(self):
        shared = self.shared(self.load("llama"))
        with self.assertRaisesRegex(ValueError, "on the left"):
            shared.fetch_batch(torch.tensor([[1, 2, 3]]), torch.tensor([[1, 1, 0]]))


class Prefill(TransformersTest):
    def test_V7_a_prompt_that_was_computed_ahead_is_found_whole(self):
        for name in models.NAMES:
            with self.subTest(model=name):
                model, ids = self.load(name), prompt(210, seed=17)
                whole = answer(model, ids, 10)
                for chunk, cached, stored in ((64, 0, 209), (2048, 209, 0)):
                    shared = self.shared(model)
                    out = models.generate(model, ids, 10, shared.prefill(ids, chunk))
                    self.assertEqual(out.sequences[0].tolist(), whole)
                    self.assertEqual((shared.cached_tokens, shared.stored_tokens), (cached, stored))


if __name__ == "__main__":
    unittest.main()
