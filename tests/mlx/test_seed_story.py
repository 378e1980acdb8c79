"""G3: the pair of requests that the idea of saving caches quantized was measured with (features.md
S1-16 to S1-20), through two servers. Qwen3-0.6B: 28 layers, 8 heads of 128, bfloat16."""

import unittest

from test_servers import QUANTIZED, Servers, prompt
from tiny_model import QWEN3_06B

SHARED = 17
RAW_BYTES = 114_688  # of a token
BYTES = 60_928  # of a token in 8 bits, groups of 64


class TheSeedStory(Servers):
    geometry = QWEN3_06B
    flags = QUANTIZED
    prefill_step = SHARED

    def space(self) -> dict:
        (space,) = self.daemon.control("stats")["spaces"]
        return space

    def test_G3_17_of_44_tokens_are_cached_and_memory_is_as_computed(self):
        first = prompt(53, seed=1)
        second = first[:SHARED] + prompt(27, seed=2)
        self.assertNotEqual(first[SHARED], second[SHARED])

        self.assertEqual(self.one.complete(first, 200).cached_tokens, 0)
        self.assertEqual(self.space()["ends"], 2)  # the prompt, and all of it
        self.assertEqual(self.space()["stored_tokens"], 253)
        self.assertEqual(self.space()["ram_payload_bytes"], 253 * BYTES)

        self.assert_as_alone(self.two, second, cached=SHARED, count=150)
        self.assertEqual(self.space()["ends"], 4)
        # 253 + 194: no token of the answers is held twice, of the prompts only those of the one
        # block in which they part. Saved apart, prompt and all, they were 544; uncut as once they
        # were, 1016.
        self.assertEqual(self.space()["stored_tokens"], 447)
        self.assertEqual(self.space()["ram_payload_bytes"], 447 * BYTES)
        self.assertLess(447 * BYTES, 0.47 * 544 * RAW_BYTES)

    def test_S1_21_the_log_has_the_words_that_operators_look_for(self):
        tokens = prompt(30, seed=3)
        self.two.complete(tokens, 5)
        self.two.complete(tokens, 5)
        log = self.two.log()
        self.assertIn("KV cache quantization enabled: 8-bit, group_size=64", log)
        self.assertIn("cache_fetch HIT cached=29 remaining=1", log)
        self.assertRegex(log, r"cache_store tokens=35 stored=True cache_entries=\d+ cache_mem=\d+")
        self.assertIn("cache_fetch MISS", log)


if __name__ == "__main__":
    unittest.main()
