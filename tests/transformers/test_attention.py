"""attn_implementation="prefixd": V8."""

import json
import signal
import subprocess
import sys
import unittest
from pathlib import Path
from typing import Any

import models
import torch
from models import answer, prompt
from prefixd.transformers import attention
from prefixd.transformers.paged_layers import Paged, PagedTensor
from support import TransformersTest
from transformers import DynamicCache

MIB = 1 << 20


class InPlaceTest(TransformersTest):
    def setUp(self) -> None:
        self.calls = 0
        plain = attention._in_place

        def counted(*arguments: Any) -> Any:
            found = plain(*arguments)
            self.calls += found is not None
            return found

        attention._in_place = counted
        self.addCleanup(setattr, attention, "_in_place", plain)

    def in_place(self, name: str, dtype: torch.dtype = torch.float32) -> Any:
        return self.load(name, dtype, attn_implementation="prefixd")

    def warm(self, name: str, length: int = 300, **more: Any) -> tuple[Any, list[int], Any]:
        """A model, a prompt whose beginning is stored, and its cache in place."""
        model, ids = self.in_place(name), prompt(length, seed=61)
        whole, _, _ = self.ask(self.shared(model, **more), ids, 8)
        turn = whole + prompt(11, seed=62)
        cache = self.shared(model, **more).fetch(turn)
        self.assertEqual(cache.get_seq_length(), length + 7)
        self.assertTrue(any(isinstance(layer, Paged) for layer in cache.layers))
        return model, turn, cache


class InPlace(InPlaceTest):
    def test_V8_text_is_the_same_and_only_an_unfinished_block_is_copied(self):
        for name in models.NAMES:
            with self.subTest(model=name):
                model, turn, _ = self.warm(name)
                want = answer(self.load(name), turn, 30)
                client = self.client()
                shared = self.shared(model, client)
                cache = shared.fetch(turn)
                row_bytes = client.stats.gathered_bytes // (307 % shared._core.block_tokens)
                self.assertLessEqual(row_bytes, shared._core.space.payload_bytes_per_token)
                self.calls = 0
                out = models.generate(model, turn, 30, cache)
                self.assertEqual(out.sequences[0].tolist(), want)
                paged = sum(isinstance(layer, Paged) for layer in cache.layers)
                self.assertEqual(self.calls, 30 * paged)

    def test_V8_what_was_computed_behind_the_pages_is_stored(self):
        for name in models.NAMES:
            with self.subTest(model=name):
                model, turn, cache = self.warm(name, length=333)
                whole = models.generate(model, turn, 200, cache).sequences[0].tolist()
                stored = self.shared(model).store(whole, cache)
                self.assertGreaterEqual(stored, len(whole) - 1 - 340)
                self.assertLess(stored, len(whole) - 1 - 340 + 64)
                plain = self.load(name)
                restored = self.shared(plain).fetch(whole)
                self.assertEqual(restored.get_seq_length(), len(whole) - 1)
                longer = whole + prompt(5, seed=63)
                self.assertEqual(
                    self.ask(self.shared(plain), longer, 10)[:2],
                    (answer(plain, longer, 10), len(whole) - 1),
                )

    def test_V8_attention_is_within_the_kernels_bounds_of_exact_attention(self):
        for name, more in (
            ("qwen3", {}),
            ("qwen3", {"bits": 8, "salt": "8"}),
            ("qwen3", {"bits": 8, "value_bits": 4, "salt": "84"}),
            ("gemma3", {}),
            ("gemma3", {"bits": 4, "salt": "4"}),
        ):
            for rows in (1, 7, 200):
                with self.subTest(model=name, rows=rows, **more):
                    _, _, cache = self.warm(name, **more)
                    for layer in cache.layers[:3]:
                        self.check_bounds(layer, rows)

    def check_bounds(self, layer: Any, rows: int) -> None:
        torch.manual_seed(rows)
        new = [torch.randn(1, 2, rows, 64) for _ in range(2)]
        query = torch.randn(1, 4, rows, 64)
        key, value = layer.update(*new)
        self.calls = 0
        module = torch.nn.Module()
        module.num_key_value_groups = 2
        got, _ = attention.attention(module, query, key, value, None, scaling=0.125)
        self.assertEqual(self.calls, 1)
        _, keys, values = layer.all_rows()
        keys, values = (side.double().repeat_interleave(2, dim=1) for side in (keys, values))
        seen, end = keys.shape[2], layer.get_seq_length()
        at = torch.arange(end - rows, end)[:, None]
        to = torch.arange(end - seen, end)[None, :]
        hidden = to > at
        if layer.window:
            hidden |= to <= at - layer.window
        scores = (query.double() @ keys.transpose(2, 3) * 0.125).masked_fill(hidden, -torch.inf)
        exact = (scores.softmax(-1) @ values).transpose(1, 2)
        error = got.double() - exact
        self.assertLess(error.square().mean().sqrt(), 1e-3 * exact.square().mean().sqrt())
        self.assertLess(error.abs().max(), 3e-4 * exact.abs().max())

    def test_V8_pages_stay_readable_while_prefixd_is_killed_and_comes_back(self):
        model, turn, cache = self.warm("llama", length=400)
        want = answer(self.load("llama"), turn, 20)
        self.daemon.stop(signal.SIGKILL)
        self.start_daemon()
        out = models.generate(model, turn, 20, cache)
        self.assertEqual(out.sequences[0].tolist(), want)

    def test_beams_get_copies(self):
        model, turn, cache = self.warm("llama")
        cache.batch_repeat_interleave(3)
        more = {"num_beams": 3}
        want = models.generate(self.load("llama"), turn, 8, **more).sequences
        self.assertTrue(torch.equal(models.generate(model, turn, 8, cache, **more).sequences, want))

    def test_assisted_decoding_gets_copies(self):
        for name in ("llama", "gemma3"):
            with self.subTest(model=name):
                model, turn, cache = self.warm(name)
                more = {"prompt_lookup_num_tokens": 3}
                out = models.generate(model, turn, 12, cache, **more)
                plain = self.load(name)
                copy = self.shared(plain).fetch(turn)
                self.assertEqual(copy.get_seq_length(), 307)
                # transformers 5.23 itself answers otherwise if it is given a cache with tokens.
                want = models.generate(plain, turn, 12, copy, **more)
                self.assertTrue(torch.equal(out.sequences, want.sequences))

    def test_a_mask_with_padding_is_obeyed(self):
        for name in ("llama", "gemma3"):
            with self.subTest(model=name):
                model, turn, cache = self.warm(name)
                mask = torch.ones(1, len(turn), dtype=torch.long)
                mask[0, -40:-30] = 0  # tokens that nobody is to see
                ids = torch.tensor([turn])
                rest = ids[:, cache.get_seq_length() :]
                at = torch.arange(cache.get_seq_length(), len(turn))[None]
                plain = self.load(name)
                old = self.shared(plain).fetch(turn)
                self.assertEqual(old.get_seq_length(), cache.get_seq_length())
                with torch.no_grad():
                    asked = {"attention_mask": mask, "position_ids": at}
                    want = plain(rest, past_key_values=old, **asked).logits
                    got = model(rest, past_key_values=cache, **asked).logits
                self.assertLess((got - want).abs().max(), 1e-4 * want.abs().max())

    def test_scores_with_a_soft_cap_are_computed_by_the_model_itself(self):
        model, turn, cache = self.warm("gemma2")
        want = answer(self.load("gemma2", attn_implementation="eager"), turn, 20)
        self.calls = 0
        out = models.generate(model, turn, 20, cache)
        self.assertEqual((out.sequences[0].tolist(), self.calls), (want, 0))

    def test_any_operation_on_the_keys_sees_all_rows(self):
        _, _, cache = self.warm("llama")
        layer = cache.layers[0]
        key, value = layer.update(torch.randn(1, 2, 3, 64), torch.randn(1, 2, 3, 64))
        self.assertIs(type(key), PagedTensor)
        self.assertEqual(key.shape, (1, 2, 310, 64))
        self.assertTrue(torch.equal(key + 0, layer.all_rows()[1]))
        self.assertTrue(torch.equal(torch.cat([value, value])[:1], layer.all_rows()[2]))

    def test_a_batch_is_copied(self):
        model, turn, _ = self.warm("llama")
        ids = torch.tensor([turn, turn])
        cache = self.shared(model).fetch_batch(ids)
        self.assertEqual(cache.get_seq_length(), 307)
        out = model.generate(ids, past_key_values=cache, max_new_tokens=8, do_sample=False)
        self.assertEqual(out.tolist(), [answer(self.load("llama"), turn, 8)] * 2)


class OneCopy(TransformersTest):
    TOKENS = 32 * 1024
    PROCESSES = 4

    def test_V8_four_processes_on_a_32k_prefix_hold_one_copy(self):
        model, ids = self.load("llama", torch.bfloat16), prompt(self.TOKENS + 1, seed=64)
        shared = self.shared(model)
        cache = DynamicCache(config=model.config)
        for at in range(len(cache.layers)):
            sides = torch.randn(2, 1, 2, self.TOKENS, 64).bfloat16()
            cache.update(sides[0], sides[1], at)
        self.assertEqual(shared.store(ids, cache), self.TOKENS)
        copy = self.TOKENS * shared._core.space.payload_bytes_per_token
        self.assertEqual(copy, 64 * MIB)
        want = models.generate(model, ids, 2, cache).sequences[0, -2:].tolist()
        file = self.folder / "prompt.json"
        file.write_text(json.dumps(ids))
        workers = [self.start(file) for _ in range(self.PROCESSES)]
        for worker in workers:
            before, after = (json.loads(worker.stdout.readline()) for _ in range(2))
            self.assertEqual((after["cached"], after["answer"]), (self.TOKENS, want))
            self.assertLess(after["private"] - before["private"], copy / 4)
        seen = []
        for worker in workers:
            worker.stdin.write("\n")
            worker.stdin.flush()
            seen.append(json.loads(worker.stdout.readline())["arena"])
        self.assertGreater(min(rss for rss, _ in seen), copy)
        self.assertLess(sum(pss for _, pss in seen), 1.1 * copy)
        print(f"\nV8 {sum(pss for _, pss in seen) / copy:.2f} copies in {self.PROCESSES} processes")

    def start(self, file: Path) -> subprocess.Popen:
        script = Path(__file__).with_name("in_place.py")
        command = [sys.executable, "-W", "ignore", script, self.daemon.address, self.path("llama")]
        worker = subprocess.Popen(
            [*map(str, command), str(file), str(self.daemon.arena)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(worker.stdin.close)
        self.addCleanup(worker.stdout.close)
        self.addCleanup(worker.wait, 30)
        self.addCleanup(worker.kill)
        return worker


if __name__ == "__main__":
    unittest.main()
