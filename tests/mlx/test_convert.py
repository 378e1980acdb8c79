"""mlx-lm's cache objects as rows and back: counts, cuts, bits."""

import unittest

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import KVCache, QuantizedKVCache, RotatingKVCache
from prefixd.mlx import TensorFormat, convert
from prefixd.mlx.options import RAW

HEADS, DIM = 2, 64


def noise(tokens: int, seed: int, dtype: mx.Dtype = mx.bfloat16) -> mx.array:
    return mx.random.normal((1, HEADS, tokens, DIM), key=mx.random.key(seed)).astype(dtype)


def filled(tokens: int, bits: int = 0, group: int = 64, dtype: mx.Dtype = mx.bfloat16):
    """A cache as the engine fills it: V is not K, and the tensors are longer than what is in
    them."""
    cache = QuantizedKVCache(group_size=group, bits=bits) if bits else KVCache()
    cache.update_and_fetch(noise(tokens, 1, dtype), noise(tokens, 2, dtype))
    return cache


def same(left, right) -> bool:
    return all(
        np.array_equal(convert.to_numpy(a), convert.to_numpy(b)) for a, b in zip(left, right)
    )


class RowsOfACache(unittest.TestCase):
    def test_are_counted_by_offset_where_size_says_0(self):
        cache = filled(300, bits=8)
        self.assertEqual(cache.size(), 0)
        self.assertEqual(cache.keys[0].shape[2], 512)
        self.assertEqual(convert.from_cache(cache).tokens, 300)

    def test_end_where_the_engine_trimmed_the_cache(self):
        cache = filled(300)
        cache.trim(256)
        self.assertEqual(convert.from_cache(cache).tokens, 44)

    def test_take_the_bytes_of_the_formula(self):
        for bits, group in ((0, 0), (2, 64), (3, 32), (4, 64), (5, 64), (6, 64), (8, 64), (8, 32)):
            rows = convert.from_cache(filled(100, bits=bits, group=group or 64))
            row = TensorFormat(bits, group).row_bytes(DIM, 2)
            self.assertEqual(rows.nbytes, 2 * HEADS * 100 * row, (bits, group))

    def test_make_a_cache_that_goes_on_as_the_old_one_would_have(self):
        for bits in (0, 4, 8):
            for dtype in (mx.bfloat16, mx.float16, mx.float32):
                old = filled(300, bits=bits, dtype=dtype)
                new = convert.to_cache(convert.from_cache(old))
                more = noise(3, 5, dtype), noise(3, 6, dtype)
                for mine, theirs in zip(new.update_and_fetch(*more), old.update_and_fetch(*more)):
                    pair = (mine, theirs) if bits else ((mine,), (theirs,))
                    self.assertTrue(same(*pair), (bits, dtype))
                self.assertEqual(new.offset, 303)

    def test_keep_keys_and_values_apart(self):
        rows = convert.from_cache(filled(10, bits=8))
        self.assertFalse(same(rows.key, rows.value))

    def test_travel_as_uint16_where_they_are_bfloat16_and_come_back_bit_for_bit(self):
        rows = noise(5, 1)
        view = convert.to_numpy(rows)
        self.assertEqual(view.dtype, np.uint16)
        self.assertTrue(same([convert.from_numpy(view, mx.bfloat16)], [rows]))


class Conversion(unittest.TestCase):
    def test_quantizes_as_the_engine_itself_does(self):
        cache = filled(100)
        theirs = cache.to_quantized(group_size=64, bits=8)
        ours = convert.quantize(convert.from_cache(cache), TensorFormat(8, 64))
        for mine, engines in ((ours.key, theirs.keys), (ours.value, theirs.values)):
            self.assertTrue(same(mine, [t[..., :100, :] for t in engines]))

    def test_leaves_rows_alone_that_have_the_format(self):
        rows = convert.from_cache(filled(10, bits=8))
        self.assertIs(convert.convert(rows, TensorFormat(8, 64)), rows)

    def test_refuses_one_quantized_format_for_another(self):
        rows = convert.from_cache(filled(10, bits=8))
        with self.assertRaises(ValueError):
            convert.convert(rows, TensorFormat(4, 64))

    def test_joins_raw_and_quantized_runs_into_one_format(self):
        whole = convert.from_cache(filled(100))
        form = TensorFormat(8, 64)
        parts = [whole.cut(0, 64), convert.quantize(whole.cut(64, 100), form)]
        joined = convert.join(parts, form)
        self.assertTrue(same(joined.key, convert.quantize(whole, form).key))
        self.assertTrue(same(joined.value, convert.quantize(whole, form).value))
        self.assertEqual(convert.join(parts, RAW).tokens, 100)


class MetaState(unittest.TestCase):
    def test_has_three_fields(self):
        self.assertEqual(convert.meta_state(filled(44, bits=8)), ("44", "64", "8"))
        self.assertEqual(convert.meta_state(filled(44)), ("44", "0", "0"))

    def test_makes_a_cache_of_over_allocated_tensors(self):
        for bits in (0, 8):
            old = filled(44, bits=bits)
            new = convert.from_state(old.keys, old.values, convert.meta_state(old))
            self.assertEqual(new.offset, 44)
            self.assertTrue(same(convert.from_cache(new).value, convert.from_cache(old).value))

    def test_is_refused_with_other_fields_or_more_tokens_than_there_are(self):
        cache = filled(44, bits=8)
        for meta in (("44",), ("44", "64", "8", "64", "8"), ("513", "64", "8"), ("x", "64", "8")):
            with self.assertRaises(ValueError):
                convert.from_state(cache.keys, cache.values, meta)


class Support(unittest.TestCase):
    def test_is_for_caches_with_a_row_for_every_token(self):
        self.assertTrue(convert.keeps_all_rows(KVCache()))
        self.assertTrue(convert.keeps_all_rows(QuantizedKVCache()))
        self.assertFalse(convert.keeps_all_rows(RotatingKVCache(max_size=8)))
        self.assertFalse(convert.keeps_all_rows(type("Mine", (KVCache,), {})()))


if __name__ == "__main__":
    unittest.main()
