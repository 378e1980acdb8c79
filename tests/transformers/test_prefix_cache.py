"""generate() goes on from what prefixd has, for every kind of cache layer: V7."""

import signal
import unittest

import models
import torch
from models import answer, prompt
from support import TransformersTest

ROWS = ("llama", "qwen3")  # every layer keeps every row
WINDOWS = ("gemma3",)
STATES = ("qwen3_next", "lfm2")


class TheSameText(TransformersTest):
    def check_turns(self, name: str) -> None:
        """Three turns of a conversation, each in a process's own session; the last one ends far
        behind the first window."""
        model = self.load(name)
        ids = prompt(300, seed=1)
        held = 0
        for turn in range(3):
            whole, cached, stored = self.ask(self.shared(model), ids, 40)
            self.assertEqual(whole, answer(model, ids, 40), f"turn {turn}")
            self.assertEqual(cached, held, f"turn {turn}")
            held = len(whole) - 1  # generate() does not compute the rows of its last token
            self.assertLessEqual(stored, held - cached + 63)
            self.assertGreaterEqual(stored, held - cached)
            ids = whole + prompt(20 + turn, seed=10 + turn)

    def test_V7_llama(self):
        self.check_turns("llama")

    def test_V7_qwen3(self):
        self.check_turns("qwen3")

    def test_V7_gemma3_with_sliding_windows(self):
        self.check_turns("gemma3")

    def test_V7_qwen3_next_with_linear_attention(self):
        self.check_turns("qwen3_next")

    def test_V7_lfm2_with_convolutions(self):
        self.check_turns("lfm2")

    def test_V7_what_is_restored_is_bit_for_bit_what_was_computed(self):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            with self.subTest(dtype=dtype):
                model = self.load("llama", dtype)
                ids = prompt(200, seed=2)
                out = models.generate(model, ids, 30, self.shared(model).fetch(ids))
                whole = out.sequences[0].tolist()
                self.shared(model).store(whole, out.past_key_values)
                restored = self.shared(model).fetch(whole)
                self.assertEqual(restored.get_seq_length(), len(whole) - 1)
                for mine, first in zip(restored.layers, out.past_key_values.layers, strict=True):
                    self.assertTrue(torch.equal(mine.keys, first.keys))
                    self.assertTrue(torch.equal(mine.values, first.values))


class WhatIsFound(TransformersTest):
    def test_V7_the_same_prompt_gives_all_but_its_last_token(self):
        for name in (*ROWS, *WINDOWS):
            with self.subTest(model=name):
                model, ids = self.load(name), prompt(333, seed=3)
                first = self.ask(self.shared(model), ids, 8)
                again = self.ask(self.shared(model), ids, 8)
                self.assertEqual(first, (answer(model, ids, 8), 0, 340))
                self.assertEqual(again, (first[0], 332, 0))

    def test_V7_a_prompt_within_an_answer_is_cut_at_the_token(self):
        model, ids = self.load("llama"), prompt(200, seed=4)
        whole, _, _ = self.ask(self.shared(model), ids, 60)
        for length in (2, 65, 129, 201, 259):
            with self.subTest(length=length):
                part = whole[:length]
                self.assertEqual(self.ask(self.shared(model), part, 5)[1], length - 1)
                other = part + prompt(9, seed=length)
                found = next(at for at in range(length, length + 9) if other[at] != whole[at])
                self.assertEqual(
                    self.ask(self.shared(model), other, 5)[:2], (answer(model, other, 5), found)
                )

    def test_V7_nothing_is_found_of_an_empty_prompt_or_of_one_token(self):
        shared = self.shared(self.load("llama"))
        for ids in ([], [7]):
            self.assertEqual(shared.fetch(ids).get_seq_length(), 0)

    def test_V7_only_new_tokens_are_stored(self):
        for name in models.NAMES:
            with self.subTest(model=name):
                model, ids = self.load(name), prompt(300, seed=5)
                client = self.client()
                shared = self.shared(model, client)
                whole, _, stored = self.ask(shared, ids, 20)
                self.assertEqual((stored, client.stats.stored_tokens), (319, 319))
                out = models.generate(model, ids, 20)
                self.assertEqual(shared.store(whole, out.past_key_values), 0)
                self.ask(shared, whole + prompt(10, seed=6), 10)
                self.assertLess(client.stats.stored_tokens, 319 + 20 + 1 + 64)
                self.assertGreaterEqual(client.stats.stored_tokens, 319 + 20)

    def test_a_long_answer_leaves_the_end_of_its_prompt_findable(self):
        """Gemma 3's window is 128 tokens: the last ones are far behind those of the prompt."""
        model = self.load("gemma3")
        for length in (200, 256, 257, 319):
            with self.subTest(prompt=length):
                ids = prompt(length, seed=length)
                self.ask(self.shared(model), ids, 320)
                whole, cached, _ = self.ask(self.shared(model), ids, 6)
                self.assertEqual((whole, cached), (answer(model, ids, 6), length - 1))

    def test_a_cache_of_transformers_own_is_stored_where_it_has_the_rows(self):
        for name in (*ROWS, *STATES):
            with self.subTest(model=name):
                model, ids = self.load(name), prompt(150, seed=7)
                out = models.generate(model, ids, 10)
                whole = out.sequences[0].tolist()
                shared = self.shared(model)
                self.assertEqual(shared.store(whole, out.past_key_values), 159)
                self.assertEqual(shared.fetch(whole).get_seq_length(), 159)

    def test_a_window_that_has_lost_rows_is_not_stored_and_the_log_says_so(self):
        model, ids = self.load("gemma3"), prompt(300, seed=8)
        out = models.generate(model, ids, 10)
        whole = out.sequences[0].tolist()
        shared = self.shared(model)
        with self.assertLogs("prefixd.transformers", "WARNING") as log:
            self.assertEqual(shared.store(whole, out.past_key_values), 0)
        self.assertIn("rows of tokens 160 to 192 are gone", log.output[0])
        self.assertEqual(shared.fetch(whole).get_seq_length(), 0)

    def test_states_after_other_tokens_than_those_named_are_not_stored(self):
        for name in STATES:
            with self.subTest(model=name):
                model, ids = self.load(name), prompt(150, seed=26)
                shared = self.shared(model)
                out = models.generate(model, ids, 10, shared.fetch(ids))
                whole = out.sequences[0].tolist()
                with self.assertLogs("prefixd.transformers", "WARNING") as log:
                    self.assertEqual(shared.store(whole[:150], out.past_key_values), 0)
                self.assertIn("states are those after 159 tokens, not after 150", log.output[0])
                self.assertEqual(shared.fetch(whole).get_seq_length(), 0)


class AfterTheDaemonEnds(TransformersTest):
    def test_V7_after_kill_9_and_from_ssd_alone(self):
        asked = {}
        for name in models.NAMES:
            model, ids = self.load(name), prompt(260, seed=9)
            whole, _, _ = self.ask(self.shared(model), ids, 12)
            turn = whole + prompt(5, seed=1)
            asked[name] = (model, turn, answer(model, turn, 8))
        self.daemon.stop(signal.SIGKILL)
        self.start_daemon()
        self.check(asked)
        self.daemon.stop()
        self.daemon.lose_arena()
        self.start_daemon()
        self.check(asked)

    def check(self, asked: dict) -> None:
        for name, (model, turn, whole) in asked.items():
            with self.subTest(model=name):
                out = models.generate(model, turn, 8, cache := self.shared(model).fetch(turn))
                self.assertEqual(out.sequences[0].tolist(), whole)
                self.assertEqual(cache.get_seq_length() - 8 + 1, len(turn))
                self.assertEqual(self.shared(model).fetch(turn).get_seq_length(), 271)


if __name__ == "__main__":
    unittest.main()
