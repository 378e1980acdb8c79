"""Engines that compute on elements: gather_rows() and write_rows()."""

import unittest

import numpy as np
import prefixd
from support import PATIENCE_MS, DaemonTest

HEADS, DIM, TOKENS = 2, 64, 150


class RowsTest(DaemonTest):
    def setUp(self):
        super().setUp()
        self.daemon.start()
        self.client = self.attached()
        self.tokens = list(range(TOKENS))
        random = np.random.default_rng(7)
        shape = (1, TOKENS, HEADS, DIM)  # as engines keep them that compute token by token
        self.key, self.value = (
            random.normal(size=shape).astype(np.float32).transpose(0, 2, 1, 3) for _ in range(2)
        )

    def space(self, name, *formats, **more):
        layer = prefixd.FullLayer(HEADS, DIM, more.pop("value_dim", DIM), formats, **more)
        return self.client.open_space(model=name, weights=b"1" * 32, layers=[layer])

    def store(self, space, key, value=None, dtype=None):
        with space.reserve(self.tokens, deadline_ms=PATIENCE_MS) as plan:
            self.assertTrue(plan.write_rows(0, 0, key=key, value=value, dtype=dtype), plan.error)
            done = plan.commit(TOKENS, True, deadline_ms=PATIENCE_MS)
            self.assertEqual((done.stored_tokens, done.error), (TOKENS, ""))

    def test_rows_are_quantized_and_come_back_within_half_a_step(self):
        space = self.space("affine", prefixd.mlx_affine(8, 64, "float32", value_bits=4))
        self.store(space, self.key, self.value)
        out = tuple(np.full((1, HEADS, 100, DIM + 3), -7, np.float32)[..., :DIM] for _ in range(2))
        with space.acquire(self.tokens, deadline_ms=PATIENCE_MS) as lease:
            self.assertTrue(lease.gather_rows(0, out, begin=37), lease.error)
            codes = lease.gather(0, 100, begin=37)
        for got, had, planes, bits in zip(out, (self.key, self.value), codes, (8, 4), strict=True):
            had = had[:, :, 37:137]
            most = 2**bits - 1
            step = (had.max(-1) - had.min(-1)) / (most - 1)
            self.assertLessEqual(((np.abs(got - had)).max(-1) - step).max(), 1e-5)
            words, scales, biases = planes
            each = (words[..., None] >> np.arange(0, 32, bits, dtype=np.uint32)) & most
            each = each.reshape(1, HEADS, 100, DIM).astype(np.float32)
            np.testing.assert_array_equal(got, each * scales + biases)
            self.assertTrue((got.base[..., DIM:] == -7).all(), "between the rows")

    def test_raw_rows_come_back_bit_for_bit_in_each_type(self):
        for name, dtype in (("float32", None), ("float16", None), ("bfloat16", None)):
            element = np.uint16 if name == "bfloat16" else np.dtype(name)
            key, value = (
                (side.view(np.uint32) >> 16).astype(np.uint16)
                if name == "bfloat16"
                else side.astype(element)
                for side in map(np.ascontiguousarray, (self.key, self.value))
            )
            space = self.space(f"raw {name}", prefixd.raw(name))
            self.store(space, key, value)
            out = tuple(np.empty((1, HEADS, TOKENS, DIM), element) for _ in range(2))
            with space.acquire(self.tokens, deadline_ms=PATIENCE_MS) as lease:
                self.assertTrue(lease.gather_rows(0, out), lease.error)
                np.testing.assert_array_equal(out[0], key)
                np.testing.assert_array_equal(out[1], value)
                if name == "bfloat16":  # integers of the same size hold them, too; floats widen
                    bits = tuple(np.empty((1, HEADS, TOKENS, DIM), np.int16) for _ in range(2))
                    self.assertTrue(lease.gather_rows(0, bits, dtype="bfloat16"))
                    np.testing.assert_array_equal(bits[0].view(np.uint16), key)
                    wide = tuple(np.empty((1, HEADS, TOKENS, DIM), np.float32) for _ in range(2))
                    self.assertTrue(lease.gather_rows(0, wide))
                    np.testing.assert_array_equal(wide[0].view(np.uint32) >> 16, key)

    def test_a_layer_without_values_takes_and_gives_keys_alone(self):
        space = self.space("keys", prefixd.raw("float32"), value_dim=0, values="none")
        self.store(space, self.key)
        out = np.empty((HEADS, TOKENS, DIM), np.float32)
        with space.acquire(self.tokens, deadline_ms=PATIENCE_MS) as lease:
            self.assertTrue(lease.gather_rows(0, (out, None)), lease.error)
        np.testing.assert_array_equal(out, self.key[0])

    def test_mistakes_are_told_in_a_sentence(self):
        space = self.space("mistakes", prefixd.mlx_affine(8, 64, "float32"))
        self.store(space, self.key, self.value)
        good = np.empty((1, HEADS, TOKENS, DIM), np.float32)
        frozen = good.copy()
        frozen.flags.writeable = False
        with space.acquire(self.tokens, deadline_ms=PATIENCE_MS) as lease:
            for sentence, wrong in (
                (r"key has shape \[2, 150, 32\], must be \[1, 2, tokens, 64\]", good[..., :32]),
                (r"key has shape \[1, 150, 64\]", good[:, :1]),
                ("key is float64", good.astype(np.float64)),
                ("key is not an array that can be written", frozen),
                ("key is not an array that can be written", [[1.0]]),
                ("rows of key are not dense", np.repeat(good, 2, -1)[..., ::2]),
                ("room for 149 tokens of K, 150 of V", good[:, :, 1:]),
            ):
                with self.assertRaisesRegex(prefixd.Error, sentence):
                    lease.gather_rows(0, (wrong, good))
            with self.assertRaisesRegex(prefixd.Error, "key is float32, for bfloat16"):
                lease.gather_rows(0, (good, good), dtype="bfloat16")
            self.assertFalse(lease.gather_rows(0, (good, good), begin=1))
            self.assertIn("the lease has 150", lease.error)
        other = [one + 1000 for one in self.tokens]
        with space.reserve(other, deadline_ms=PATIENCE_MS) as plan:
            with self.assertRaisesRegex(prefixd.Error, "150 tokens of K and 149 of V"):
                plan.write_rows(0, 0, key=self.key, value=self.value[:, :, 1:])
            with self.assertRaisesRegex(prefixd.Error, "layer 1, the space has 1"):
                plan.write_rows(1, 0, key=self.key, value=self.value)


if __name__ == "__main__":
    unittest.main()
