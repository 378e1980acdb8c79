"""Attention of many rows on a GPU, over raw pages that this process makes: no model and no daemon.
Skipped where torch sees no GPU or libprefixd_cuda.so is absent."""

import ctypes
import unittest

import torch
from prefixd import _abi, raw
from prefixd.torch import _attention, gpu, why_no_gpu
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

HEADS, KV_HEADS, DIM, PAGE = 8, 2, 128, 256
SCALE = DIM**-0.5


def words_of(name: str) -> list[int]:
    one = raw(name).key.as_struct(1)  # in rows
    return list((ctypes.c_int64 * 2).from_buffer_copy(bytes(one) * 2))


@unittest.skipUnless(torch.cuda.is_available() and not why_no_gpu(), "no GPU that the library uses")
class ManyRows(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(1)

    def attended(self, rows, tokens, dtype=torch.bfloat16, formats=None):
        """Returns what the operation gives, and what torch gives in float."""
        shape = {"device": "cuda", "dtype": dtype}
        query = torch.randn(rows, HEADS, DIM, **shape)
        key, value = (torch.randn(KV_HEADS, tokens, DIM, **shape) for _ in range(2))
        pages = []
        for at in range(0, tokens, PAGE):
            page = _attention._Page(KV_HEADS, (DIM, DIM), PAGE, dtype, query.device)
            page.put(key[:, at : at + PAGE], value[:, at : at + PAGE])
            pages.append(page)
        blocks = torch.zeros(len(pages), _attention._WORDS, dtype=torch.int64)
        for row, page in zip(blocks, pages, strict=True):
            entry = _abi.Block.from_address(row.data_ptr())
            entry.units, entry.arena_offset = page.address, _attention._NOT_IN_THE_ARENA
            entry.page_tokens, entry.tokens, entry.format = PAGE, page.tokens, 0
        found = torch.ops.prefixd.attend(
            query,
            blocks,
            [page.memory for page in pages],
            formats or words_of(str(dtype).removeprefix("torch.")),
            KV_HEADS,
            DIM,
            tokens - rows,
            SCALE,
            0,
            0,
        )
        group = HEADS // KV_HEADS
        wide = [one.float().repeat_interleave(group, 0)[None] for one in (key, value)]
        want = scaled_dot_product_attention(
            query.float().transpose(0, 1)[None], *wide, attn_mask=causal_lower_right(rows, tokens)
        )
        return found.float(), want[0].transpose(0, 1)

    def check(self, *args, **kwargs):
        found, want = self.attended(*args, **kwargs)
        error = (found - want).square().mean().sqrt() / want.square().mean().sqrt()
        self.assertLess(error.item(), 3e-3)  # of results in 16 bits

    def test_a_prompt_behind_a_prefix_is_attended_in_place(self):
        self.check(300, 5000)

    def test_more_rows_than_a_call_takes_are_attended_in_strips(self):
        self.check(2500, 3000)

    def test_halves_are_attended_too(self):
        self.check(100, 1000, torch.float16)

    def test_quick_are_many_rows_where_the_gpu_has_a_kernel_for_them(self):
        on = gpu()
        shape = (HEADS, KV_HEADS, DIM, DIM, SCALE, 0, 0, False)
        hopper = torch.cuda.get_device_capability() == (9, 0)
        for numbers in ("bfloat16", "float32"):
            most = _attention._rows_at_once(on, tuple(words_of(numbers)), shape)
            self.assertEqual(most, 2048 if hopper else 8)


if __name__ == "__main__":
    unittest.main()
