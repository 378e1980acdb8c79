"""prefixd.torch: leased pages as tensors, rows between pages and an engine's tensors, attention as
an operation of PyTorch. test_gpu.py runs the same on a GPU."""

import gc
import itertools
import logging
import unittest
from unittest import mock

import prefixd
import prefixd.torch
import torch
from prefixd import FullLayer, mlx_affine, pair, q4_1, q8_0, raw
from prefixd.engine import pinning
from support import LATE_MS, TransformersTest

HEADS, DIM, TOKENS, LAYERS = 2, 128, 300, 3
NAMES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
FORMATS = {
    "raw": raw("bfloat16"),
    "8 bits": mlx_affine(8, 64, "bfloat16"),
    "8 and 4 bits": mlx_affine(8, 64, "float16", value_bits=4),
    "3 bits": mlx_affine(3, 64, "float16"),
    "q8_0": q8_0(),
    "q8_0 and q4_1": pair(q8_0(), q4_1()),
}


class Tensors(TransformersTest):
    def open(self, formats, name="", *, heads=HEADS, dim=DIM, page_layout="rows"):
        space = self.client().open_space(
            model=f"tensors {name or self.id()}",
            weights=b"\1" * 32,
            layers=[FullLayer(heads, dim, dim, formats)] * LAYERS,
            page_layout=page_layout,
        )
        self.addCleanup(space.close)
        return space

    def rows(self, seed, dtype=torch.bfloat16, tokens=TOKENS, heads=HEADS, dim=DIM):
        """K and V [heads, tokens, dim] of each layer, on the device."""
        random = torch.Generator().manual_seed(seed)
        shape = (LAYERS, 2, heads, tokens, dim)
        return torch.randn(shape, generator=random).to(dtype).to(self.device)

    def tokens(self, seed, count=TOKENS):
        return [(seed * 7919 + at * 31) % 50_000 for at in range(count)]

    def store(self, space, tokens, rows, table=None, writable=0):
        with space.reserve(tokens, writable=[writable], deadline_ms=LATE_MS) as plan:
            self.assertEqual(plan.error, "")
            for begin, end in plan.missing:
                seam = min(begin + 101, end)  # within a block of either side
                for layer, piece in itertools.product(range(LAYERS), ((begin, seam), (seam, end))):
                    done = prefixd.torch.store(plan, layer, *piece, rows[layer], table=table)
                    self.assertTrue(done, plan.error)
                plan.commit(end, deadline_ms=LATE_MS)
            done = plan.commit(len(tokens), True, deadline_ms=LATE_MS)
            self.assertEqual(done.error, "")

    def acquire(self, space, tokens):
        lease = space.acquire(tokens, deadline_ms=LATE_MS, load_deadline_ms=LATE_MS)
        self.assertEqual(lease.wait_all(), len(tokens), lease.error)
        self.addCleanup(lease.release)
        return lease

    def stored(self, formats, seed, **more):
        """A lease on random rows of 16 bits, and the rows."""
        space, tokens, rows = self.open(formats, **more), self.tokens(seed), self.rows(seed)
        self.store(space, tokens, rows)
        return self.acquire(space, tokens), rows

    def gathered(self, lease, layer, dtype=torch.bfloat16, dim=DIM):
        """K and V [heads, tokens, dim] as the library alone copies them out, on the CPU."""
        sides = torch.empty(2, HEADS, lease.restorable_tokens, dim, dtype=dtype)
        words = sides.view(torch.uint16 if dtype != torch.float32 else dtype)
        out = (words[0].numpy(), words[1].numpy())
        self.assertTrue(lease.gather_rows(layer, out, dtype=NAMES[dtype]), lease.error)
        return sides

    def paged(self, block_tokens, dtype=torch.bfloat16, fill=0.0):
        """vLLM's tensors [2, blocks, block_tokens, heads, dim] of each layer, and a table."""
        blocks = -(-TOKENS // block_tokens)
        shape = (LAYERS, 2, 2 * blocks, block_tokens, HEADS, DIM)
        random = torch.Generator().manual_seed(block_tokens)
        table = torch.randperm(2 * blocks, generator=random)[:blocks].tolist()
        return torch.full(shape, fill, dtype=dtype, device=self.device), table


class Loading(Tensors):
    def test_elements_are_those_that_the_library_gives(self):
        for at, (name, form) in enumerate(FORMATS.items()):
            for layout in ("rows", "tiled"):
                lease, _ = self.stored([form], at, name=f"{name} {layout}", page_layout=layout)
                for dtype in NAMES:
                    with self.subTest(format=name, layout=layout, dtype=dtype):
                        shape = (LAYERS, 2, HEADS, TOKENS, DIM)
                        sides = torch.zeros(shape, dtype=dtype, device=self.device)
                        load = prefixd.torch.load(lease, dict(enumerate(sides)))
                        for layer in range(LAYERS):
                            load.wait(layer)
                            want = self.gathered(lease, layer, dtype)
                            self.assertTrue(torch.equal(sides[layer].cpu(), want))
                            self.assertTrue(load.ready(layer))
                        load.end()

    def test_blocks_of_an_engine_are_filled_and_no_others(self):
        for block_tokens in (16, 64, 48):
            lease, _ = self.stored([mlx_affine(8, 64, "bfloat16")], 20 + block_tokens)
            for begin, count in ((0, None), (37, 200), (299, 1)):
                with self.subTest(block_tokens=block_tokens, begin=begin):
                    caches, table = self.paged(block_tokens, fill=7.0)
                    end = TOKENS if count is None else begin + count
                    want = caches.cpu().clone()
                    for layer in range(LAYERS):
                        given = self.gathered(lease, layer)
                        for at in range(begin, end):
                            block = table[at // block_tokens]
                            want[layer, :, block, at % block_tokens] = given[:, :, at]
                    caches_of = dict(enumerate(caches))
                    load = prefixd.torch.load(
                        lease, caches_of, begin=begin, count=count, table=table
                    )
                    load.end()
                    self.assertTrue(torch.equal(caches.cpu(), want))

    def test_what_does_not_fit_is_refused_with_nothing_written(self):
        lease, _ = self.stored([raw("bfloat16")], 30)
        fits = torch.zeros(2, HEADS, TOKENS, DIM, dtype=torch.bfloat16, device=self.device)
        caches, table = self.paged(16)
        cases = {
            "tokens 1 to 301, the lease has 300": ({0: fits}, {"begin": 1, "count": 300}),
            "tensors have 299 tokens, 300 are": ({0: fits[:, :, :-1]}, {}),
            "origin is 16, tensors in blocks": ({0: caches[0]}, {"begin": 16, "origin": 16}),
            "must be [2, tokens, 128]": ({0: fits[:, :1]}, {}),
            "the table has 0 blocks, 19 are needed": ({0: caches[0]}, {}),
            "blocks beyond the 38": ({0: caches[0]}, {"table": [*table[:-1], 38]}),
            "beyond the 38 that": ({0: caches[0]}, {"table": [*table[:-1], -1]}),
            "key is torch.int16": ({0: fits.view(torch.int16)}, {}),
            "rows of key are not dense": ({0: fits.mT.contiguous().mT}, {}),
            "layer 3, the space has 3": ({3: fits}, {}),
        }
        for why, (into, more) in cases.items():
            with self.subTest(why), self.assertRaisesRegex(prefixd.Error, re_of(why)):
                prefixd.torch.load(lease, into, **more)
        self.assertFalse(fits.any())


class Storing(Tensors):
    def test_codes_are_those_of_the_library_from_any_tensor(self):
        for at, (name, form) in enumerate(FORMATS.items()):
            with self.subTest(format=name):
                tokens, rows = self.tokens(50 + at), self.rows(50 + at)
                space = self.open([form], f"{name} by the library")
                with space.reserve(tokens, deadline_ms=LATE_MS) as plan:
                    for layer in range(LAYERS):
                        bits = rows[layer].cpu().view(torch.uint16).numpy()
                        plan.write_rows(layer, key=bits[0], value=bits[1], dtype="bfloat16")
                    self.assertEqual(plan.commit(TOKENS, True, deadline_ms=LATE_MS).error, "")
                want = self.acquire(space, tokens)
                caches, table = self.paged(48)
                slots = torch.tensor(table, device=self.device)[:, None] * 48
                slots = (slots + torch.arange(48, device=self.device)).flatten()[:TOKENS]
                caches.flatten(2, 3)[:, :, slots] = rows.transpose(2, 3)
                for kind, given, more in (("rows", rows, None), ("blocks", caches, table)):
                    space = self.open([form], f"{name} {kind}")
                    self.store(space, tokens, given, more)
                    found = self.acquire(space, tokens)
                    for layer in range(LAYERS):
                        for one, other in zip(
                            found.gather(layer), want.gather(layer), strict=True
                        ):
                            for mine, theirs in zip(one, other, strict=True):
                                self.assertTrue((mine == theirs).all(), kind)

    def test_what_does_not_fit_is_refused(self):
        space, tokens, rows = self.open([raw("bfloat16")]), self.tokens(60), self.rows(60)
        caches, table = self.paged(16)
        with space.reserve(tokens, deadline_ms=LATE_MS) as plan:
            cases = {
                "tokens 0 to 301, the plan has 300": (0, 0, 301, rows[0], None),
                "tensors have 200 tokens, 300 are": (0, 0, 300, rows[0, :, :, :200], None),
                "the table has 0 blocks": (0, 0, 300, caches[0], None),
                "the table names blocks beyond": (0, 0, 300, caches[0], [-1] * 19),
                "layer 3 has no rows": (3, 0, 300, rows[0], None),
            }
            for why, (layer, begin, end, given, blocks) in cases.items():
                with self.subTest(why), self.assertRaisesRegex(prefixd.Error, re_of(why)):
                    prefixd.torch.store(plan, layer, begin, end, given, table=blocks)
            plan.abandon()
            self.assertFalse(prefixd.torch.store(plan, 0, 0, 300, rows[0]))
        self.assertEqual(len(table), 19)


class Attention(Tensors):
    """MLX rounds what it dequantizes to bfloat16, the kernels of attention do not."""

    tolerance = 1e-2

    def table(self, lease, layer, **more):
        pages = None
        if self.device != "cpu":
            pages = prefixd.torch.DevicePages(lease, range(LAYERS), torch.device(self.device))
        return prefixd.torch.Table(lease, layer, TOKENS, pages=pages, **more)

    def want(self, query, key, value, window=0):
        """Plain attention of rows [rows, heads, dim] at the end of K and V [heads, tokens, dim]."""
        rows, group = query.shape[0], query.shape[1] // key.shape[0]
        key, value = (side.float().repeat_interleave(group, 0) for side in (key, value))
        scores = torch.einsum("rhd,htd->hrt", query.float(), key) * DIM**-0.5
        at = torch.arange(key.shape[1] - rows, key.shape[1], device=query.device)[:, None]
        to = torch.arange(key.shape[1], device=query.device)
        seen = to <= at
        if window:
            seen &= to > at - window
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        return torch.einsum("hrt,htd->rhd", weights, value)

    def assert_close(self, found, want, tolerance=None):
        error = (found.float() - want).square().mean().sqrt() / want.square().mean().sqrt()
        self.assertLess(error.item(), tolerance or self.tolerance)

    def query(self, rows, seed, heads=4 * HEADS, dtype=torch.float32):
        random = torch.Generator().manual_seed(seed)
        return torch.randn(rows, heads, DIM, generator=random).to(dtype).to(self.device)

    def test_it_is_attention_over_the_rows_that_the_pages_stand_for(self):
        for at, (name, form) in enumerate(FORMATS.items()):
            lease, _ = self.stored([form], 70 + at, name=name)
            for rows, window in ((1, 0), (5, 0), (20, 0), (1, 50), (20, 50)):
                with self.subTest(format=name, rows=rows, window=window):
                    key, value = self.gathered(lease, 1, torch.float32).to(self.device)
                    query = self.query(rows, at)
                    found = self.table(lease, 1, window=window).attend(query, DIM**-0.5)
                    self.assert_close(found, self.want(query, key, value, window))

    def test_new_rows_stand_behind_the_leased_ones(self):
        formats = [raw("bfloat16"), mlx_affine(8, 64, "bfloat16")]
        space, tokens, rows = self.open(formats), self.tokens(80), self.rows(80)
        with space.reserve(tokens, writable=1, deadline_ms=LATE_MS) as plan:
            for layer in range(LAYERS):
                prefixd.torch.store(plan, layer, 0, TOKENS, rows[layer])
            self.assertEqual(plan.commit(TOKENS, True, deadline_ms=LATE_MS).error, "")
        lease = self.acquire(space, tokens)
        new = self.rows(81, tokens=1500)
        table = self.table(lease, 2, dtype=torch.bfloat16)
        done = 0
        for count in (1, 1, 253, 2, 700, 543):
            table.append(*new[2, :, :, done : done + count])
            done += count
            whole = torch.cat([self.gathered(lease, 2).to(self.device), new[2, :, :, :done]], 2)
            query = self.query(1, count, dtype=torch.bfloat16)
            found = table.attend(query, DIM**-0.5)
            self.assertEqual(found.dtype, torch.bfloat16)
            self.assert_close(found, self.want(query, *whole))
        for mine, theirs in zip(table.own_rows(), new[2], strict=True):
            self.assertTrue(torch.equal(mine, theirs[:, :done]))
        with self.assertRaisesRegex(prefixd.Error, "no format of the layer is raw"):
            self.table(lease, 0).append(*new[0])

    def test_it_is_an_operation_that_pytorch_can_compile(self):
        lease, _ = self.stored([mlx_affine(8, 64, "bfloat16")], 90)
        table, query = self.table(lease, 0), self.query(2, 90)
        arguments = (
            query,
            table._table[: table._blocks],
            [torch.zeros(1, device=self.device)],
            table._formats,
            HEADS,
            DIM,
            TOKENS - 2,
            DIM**-0.5,
            0,
            0,
        )
        if table._pages is not None:
            table._pages.wait(0)
        torch.library.opcheck(torch.ops.prefixd.attend.default, arguments)

        def doubled(query, at):
            out = torch.ops.prefixd.attend(2 * query, *arguments[1:6], at, *arguments[7:])
            return out.mul(3)

        compiled = torch.compile(doubled, fullgraph=True, backend="aot_eager")
        for at in (TOKENS - 2, 100):
            self.assertTrue(torch.equal(compiled(query, at), doubled(query, at)))


class Views(Tensors):
    def test_blocks_are_the_pages_themselves(self):
        for at, (name, form) in enumerate(FORMATS.items()):
            for layout in ("rows", "transposed") if name == "raw" else ("rows",):
                with self.subTest(format=name, layout=layout):
                    lease, _ = self.stored([form], at, name=f"{name} {layout}", page_layout=layout)
                    want = lease.gather(1)
                    for block in prefixd.torch.blocks(lease, 1):
                        cut = slice(block.begin, block.begin + block.tokens)
                        for parts, arrays in zip((block.key, block.value), want, strict=True):
                            for part, array in zip(parts, arrays, strict=True):
                                words = torch.from_numpy(array[0, :, cut].copy())
                                self.assertTrue(torch.equal(part.view(words.dtype), words))

    def test_they_cannot_be_written_and_their_copies_can(self):
        lease, _ = self.stored([raw("bfloat16")], 40)
        before = self.gathered(lease, 0)
        key = prefixd.torch.blocks(lease, 0)[0].key[0]
        for view in (key, key[0], key.transpose(0, 1), key.view(torch.uint16), key.unbind(0)[1]):
            for write in (
                lambda it: it.zero_(),
                lambda it: it.__setitem__(0, 1),
                lambda it: it.copy_(torch.ones_like(it)),
                lambda it: torch.bitwise_not(it.view(torch.uint8), out=it.view(torch.uint8)),
                lambda it: torch.nn.functional.relu(it.view(torch.float16), inplace=True),
                lambda it: torch._foreach_zero_([it]),
            ):
                with self.assertRaisesRegex(prefixd.Error, "leased pages cannot be written"):
                    write(view)
        copy = key.clone()
        copy.zero_()
        (key + 1).zero_()
        self.assertFalse(copy.any())
        self.assertTrue(torch.equal(self.gathered(lease, 0), before))

    def test_they_keep_their_pages_after_the_lease_is_released(self):
        lease, _ = self.stored([raw("bfloat16")], 41)
        want = self.gathered(lease, 0)[0, :, :, 5]
        held = [block.key[0][:, :, 5] for block in prefixd.torch.blocks(lease, 0)]
        lease.release()
        gc.collect()
        leases = lambda: self.daemon.control("status")["leases"]
        self.assertGreater(leases(), 0)
        self.assertTrue(torch.equal(torch.cat(held, 1), want))
        held.clear()
        gc.collect()

    def test_names_are_those_of_the_blocks(self):
        lease, _ = self.stored([raw("bfloat16")], 42)
        names = [lease.page_names(layer) for layer in range(LAYERS)]
        for layer in range(LAYERS):
            self.assertEqual(len(names[layer]), len(prefixd.torch.blocks(lease, layer)))
        self.assertEqual(len(set(sum(names, []))), len(sum(names, [])))
        self.assertNotIn(bytes(16), sum(names, []))


class WithoutAGpu(unittest.TestCase):
    def test_it_is_said_why(self):
        if not torch.cuda.is_available():
            self.assertNotEqual(prefixd.torch.why_no_gpu(), "")
            with self.assertRaises((prefixd.Error, RuntimeError, AssertionError)):
                prefixd.torch.gpu()

    def pinned_by(self, device, pin_once):
        """What three leases made of Pinning on the device. `pin_once`: of the GPU there."""
        gpu = mock.Mock(pin_once=mock.Mock(side_effect=pin_once))
        with (
            mock.patch.object(pinning, "gpu", return_value=gpu),
            mock.patch.object(pinning, "why_no_gpu", return_value=""),
        ):
            pins = pinning.Pinning(torch.device(device), logging.getLogger("pins"))
            for lease in ("a", "b", "c"):
                pins.pin(lease)
        return pins, [call.args[0] for call in gpu.pin_once.call_args_list]

    def test_memory_is_pinned_for_a_gpu_alone_and_held_until_another_is_pinned(self):
        self.assertEqual(self.pinned_by("cpu", str)[1], [])
        for answers, held in ((["x", "x", "y"], "y"), (["x", None, None], "x")):
            pins, asked = self.pinned_by("cuda", answers)
            self.assertEqual(asked, ["a", "b", "c"])
            self.assertEqual(pins._pinned, held)

    def test_memory_that_cannot_be_pinned_is_said_once_and_not_tried_again(self):
        with self.assertLogs("pins", "WARNING") as log:
            _, asked = self.pinned_by("cuda", prefixd.Error("pin: no room"))
        self.assertEqual(asked, ["a"])
        self.assertEqual(len(log.output), 1)
        self.assertIn("pin: no room", log.output[0])


def re_of(text):
    return text.replace("[", r"\[").replace("]", r"\]")


if __name__ == "__main__":
    unittest.main()
