"""Processes that share, the example, the shipped model, and a GPU where there is one."""

import re
import sys
import unittest
from pathlib import Path

import models
import torch
from models import answer, prompt
from support import TransformersTest
from transformers import AutoTokenizer

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "client" / "examples" / "transformers_generate.py"


class Processes(TransformersTest):
    def run_example(self, name: str, ids: list[int]) -> tuple[list[int], int, int]:
        """The answer of a process of its own, and how many tokens it found and stored."""
        command = [sys.executable, "-W", "ignore", EXAMPLE, self.daemon.address, self.path(name)]
        printed = self.printed_by(*command, models.words(ids))
        text, cached, stored = re.fullmatch(
            rf"(.*)\n{len(ids)} prompt tokens, (\d+) cached, (\d+) stored\n", printed
        ).groups()
        return [int(word[1:]) for word in text.split()], int(cached), int(stored)

    def test_V7_the_example_twice_is_two_processes_that_share(self):
        for name in ("llama", "gemma3"):
            with self.subTest(model=name):
                ids = prompt(300, seed=51)
                want = answer(self.load(name), ids, 16)[300:]
                self.assertEqual(self.run_example(name, ids), (want, 0, 315))
                self.assertEqual(self.run_example(name, ids), (want, 299, 0))

    def test_V7_what_a_process_stores_this_one_finds(self):
        ids = prompt(280, seed=52)
        answered, _, _ = self.run_example("qwen3", ids)
        model = self.load("qwen3")
        tokenizer = AutoTokenizer.from_pretrained(self.path("qwen3"))
        turn = ids + answered + prompt(9, seed=53)
        shared = self.shared(model, tokenizer=tokenizer)
        self.assertEqual(self.ask(shared, turn, 8)[:2], (answer(model, turn, 8), 295))


class ShippedModel(TransformersTest):
    def test_V7_a_real_text_is_the_same_with_and_without(self):
        model = models.load(ROOT / "tests" / "data" / "model", torch.float32)
        text = (ROOT / "tests" / "data" / "corpus" / "kjv_sample.txt").read_bytes()[:1500]
        ids = list(text)
        want = answer(model, ids, 60)
        for cached in (0, 1499):
            whole, found, _ = self.ask(self.shared(model), ids, 60)
            self.assertEqual((whole, found), (want, cached))
        self.assertTrue(bytes(want[1500:]).decode().isprintable())


if __name__ == "__main__":
    unittest.main()
