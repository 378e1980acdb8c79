"""prefixd.torch with tensors of eight bits (float8_e4m3fn), and with layers that store keys alone
(MLA). The same on a GPU where there is one; attention over such keys is for GPUs alone."""

import itertools
import unittest

import prefixd
import prefixd.torch
import test_tensors
import torch
from prefixd import FullLayer, mlx_affine, q8_0, raw
from prefixd.torch import DevicePages, Table, why_no_gpu
from support import LATE_MS
from test_tensors import DIM, HEADS, LAYERS, TOKENS

F8 = torch.float8_e4m3fn
HAS_GPU = torch.cuda.is_available() and not why_no_gpu()
LATENT, VALUE, QUERY_HEADS = 576, 512, 16  # DeepSeek's


def rounded(numbers, scale):
    """What a tensor of eight bits holds of numbers."""
    return (numbers / scale).clamp(-448, 448).to(F8)


class EightBits(test_tensors.Tensors):
    def test_numbers_are_divided_by_the_scale_and_rounded(self):
        formats = {"8 bits": mlx_affine(8, 64, "bfloat16"), "q8_0": q8_0(), "raw": raw("bfloat16")}
        for at, (name, form) in enumerate(formats.items()):
            lease, _ = self.stored([form], 40 + at, name=f"{name} {self.device}")
            for scales in ((1.0, 1.0), (0.25, 0.01), (0.003, 3.0)):  # 448 * 0.003 is not enough
                with self.subTest(format=name, scales=scales):
                    of = dict.fromkeys(range(LAYERS), scales)
                    dense = torch.zeros(LAYERS, 2, HEADS, TOKENS, DIM, device=self.device).to(F8)
                    prefixd.torch.load(lease, dict(enumerate(dense)), scales=of).end()
                    caches, table = self.paged(16)
                    caches = caches.to(F8)
                    blocks = dict(enumerate(caches))
                    prefixd.torch.load(lease, blocks, table=table, scales=of).end()
                    for layer in range(LAYERS):
                        floats = self.gathered(lease, layer, torch.float32)
                        want = torch.stack([rounded(*one) for one in zip(floats, scales)])
                        self.check_bytes(dense[layer], want)
                        found = caches[layer].view(torch.uint8)[:, table].flatten(1, 2)
                        self.check_bytes(found[:, :TOKENS].transpose(1, 2), want)

    def test_a_layer_that_is_given_no_scale_has_the_scale_one(self):
        lease, _ = self.stored([raw("bfloat16")], 50)
        dense = torch.zeros(2, HEADS, TOKENS, DIM, device=self.device).to(F8)
        prefixd.torch.load(lease, {1: dense}, scales={0: (9.0, 9.0)}).end()
        floats = self.gathered(lease, 1, torch.float32)
        self.check_bytes(dense, rounded(floats, 1))

    def test_rows_stand_for_themselves_times_the_scale(self):
        for at, form in enumerate((mlx_affine(8, 64, "float16"), q8_0(), raw("float32"))):
            with self.subTest(format=form.name):
                rows, scales = self.rows(60 + at, torch.float32).to(F8), (0.5, 3.0)
                floats = torch.stack([one.float() * by for one, by in zip(rows.unbind(1), scales)])
                found = self.stored_rows(form, f"eight {at}", rows, scales)
                want = self.stored_rows(form, f"floats {at}", floats.transpose(0, 1))
                self.assertTrue(torch.equal(found, want))

    def stored_rows(self, form, name, rows, scales=(1.0, 1.0)):
        """Returns what a lease gives of layer 1, in floats."""
        space, tokens = self.open([form], f"{name} {self.device}"), self.tokens(7)
        with space.reserve(tokens, deadline_ms=LATE_MS) as plan:
            for layer in range(LAYERS):
                done = prefixd.torch.store(plan, layer, 0, TOKENS, rows[layer], scales=scales)
                self.assertTrue(done, plan.error)
            self.assertEqual(plan.commit(TOKENS, True, deadline_ms=LATE_MS).error, "")
        return self.gathered(self.acquire(space, tokens), 1, torch.float32)

    def test_a_scale_that_is_none_is_refused(self):
        lease, _ = self.stored([raw("bfloat16")], 51)
        dense = torch.zeros(2, HEADS, TOKENS, DIM, device=self.device).to(F8)
        for scale in (0.0, -1.0, float("nan"), float("inf"), 1e-50, 1e39):
            with self.assertRaisesRegex(prefixd.Error, "scale of value is .*, must be a float32"):
                prefixd.torch.load(lease, {0: dense}, scales={0: (1.0, scale)})
        self.assertFalse(dense.view(torch.uint8).any())
        with self.assertRaisesRegex(prefixd.Error, "key has a scale and is torch.bfloat16"):
            prefixd.torch.load(lease, {0: dense.to(torch.bfloat16)}, scales={0: (2.0, 1.0)})

    def check_bytes(self, found, want):
        found, want = found.view(torch.uint8).cpu(), want.view(torch.uint8)
        self.assertTrue(torch.equal(found, want), (found != want).sum())


class KeysAlone(test_tensors.Tensors):
    # Attention does not round products of bf16 scales to bf16, as rows that come out are.
    formats = [raw("bfloat16"), mlx_affine(8, 64, "float16")]

    def latents(self, seed):
        random = torch.Generator().manual_seed(seed)
        shape = (LAYERS, 1, TOKENS, LATENT)
        return torch.randn(shape, generator=random).to(torch.bfloat16).to(self.device)

    def open_latent(self, name):
        layer = FullLayer(1, LATENT, VALUE, self.formats, values="key")
        space = self.client().open_space(
            model=f"latent {name} {self.device}", weights=b"\2" * 32, layers=[layer] * LAYERS
        )
        self.addCleanup(space.close)
        return space

    def stored_latents(self, seed):
        space, tokens, rows = self.open_latent(str(seed)), self.tokens(seed), self.latents(seed)
        self.store(space, tokens, rows, writable=1)
        return self.acquire(space, tokens), rows

    def gathered_keys(self, lease, layer):
        keys = torch.empty(1, TOKENS, LATENT)
        self.assertTrue(lease.gather_rows(layer, (keys.numpy(), None)), lease.error)
        return keys

    def test_they_come_back_as_one_tensor(self):
        lease, rows = self.stored_latents(70)
        dense = torch.zeros(LAYERS, 1, TOKENS, LATENT, device=self.device)
        prefixd.torch.load(lease, dict(enumerate(dense))).end()
        blocks, table = -(-TOKENS // 64), [4, 1, 0, 2, 3]
        caches = torch.zeros(LAYERS, blocks, 64, LATENT, device=self.device)  # vLLM's
        of = {layer: one.unsqueeze(2) for layer, one in enumerate(caches)}
        prefixd.torch.load(lease, of, table=table).end()
        for layer in range(LAYERS):
            want = self.gathered_keys(lease, layer)
            self.assertTrue(torch.equal(dense[layer].cpu(), want))
            self.assertTrue(torch.equal(caches[layer][table].flatten(0, 1)[:TOKENS].cpu(), want[0]))
            error = (want - rows[layer].float().cpu()).abs().max().item()
            self.assertTrue(0 < error < 0.06, error)

    def test_they_are_stored_out_of_blocks(self):
        rows, tokens, table = self.latents(71), self.tokens(71), [2, 4, 0, 1, 3]
        caches = torch.zeros(LAYERS, 5, 64, LATENT, dtype=torch.bfloat16, device=self.device)
        for layer, at in itertools.product(range(LAYERS), range(0, TOKENS, 64)):
            piece = rows[layer, 0, at : at + 64]
            caches[layer, table[at // 64], : len(piece)] = piece
        space = self.open_latent("blocks")
        self.store(space, tokens, caches.unsqueeze(3), table, writable=1)
        dense, _ = self.stored_latents(71)
        for layer in range(LAYERS):
            found = self.gathered_keys(self.acquire(space, tokens), layer)
            self.assertTrue(torch.equal(found, self.gathered_keys(dense, layer)))

    def test_a_tensor_of_values_is_refused(self):
        lease, rows = self.stored_latents(72)
        with self.assertRaisesRegex(prefixd.Error, "load: 2 tensors, must be K alone"):
            prefixd.torch.load(lease, {0: (rows[0], rows[0])})

    @unittest.skipIf(HAS_GPU, "needs a machine without a GPU")
    def test_attention_on_a_cpu_says_that_it_needs_a_gpu(self):
        lease, _ = self.stored_latents(73)
        query = torch.randn(1, QUERY_HEADS, LATENT)
        with self.assertRaisesRegex(prefixd.Error, r"\(MLA\) are attended on by GPUs alone"):
            Table(lease, 0, TOKENS)
        with self.assertRaisesRegex(prefixd.Error, r"\(MLA\) are attended on by GPUs alone"):
            none = torch.zeros(0, 5, dtype=torch.int64)
            prefixd.torch.attend(query, none, [], [], 1, VALUE, 0, 0.1, 0, 0, True)


@unittest.skipUnless(HAS_GPU, "no GPU that the library uses")
class EightBitsOnAGpu(EightBits):
    device = "cuda"


@unittest.skipUnless(HAS_GPU, "no GPU that the library uses")
class KeysAloneOnAGpu(KeysAlone):
    device = "cuda"

    def test_attention_reads_values_out_of_the_keys(self):
        lease, _ = self.stored_latents(74)
        pages = DevicePages(lease, range(LAYERS), torch.device("cuda"))
        scale = LATENT**-0.5
        for layer, rows in itertools.product(range(LAYERS), (1, 5, 20)):
            with self.subTest(layer=layer, rows=rows):
                table = Table(lease, layer, TOKENS, pages=pages, dtype=torch.bfloat16)
                new = torch.randn(1, rows, LATENT, device="cuda").to(torch.bfloat16)
                table.append(new)
                query = torch.randn(rows, QUERY_HEADS, LATENT, device="cuda")
                keys = torch.cat([self.gathered_keys(lease, layer)[0].cuda(), new[0].float()])
                scores = torch.einsum("rhd,td->rht", query, keys) * scale
                position = torch.arange(TOKENS, TOKENS + rows, device="cuda")[:, None, None]
                seen = torch.arange(TOKENS + rows, device="cuda") <= position
                weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
                want = torch.einsum("rht,td->rhd", weights, keys[:, :VALUE])
                found = table.attend(query, scale)
                self.assertEqual(found.shape, want.shape)
                error = (found - want).square().mean().sqrt() / want.square().mean().sqrt()
                self.assertLess(error.item(), 2e-3)
                key, value = table.own_rows()
                self.assertTrue(torch.equal(key, new) and torch.equal(value, new[..., :VALUE]))
        pages.release()

    def test_rows_of_values_are_refused(self):
        lease, rows = self.stored_latents(75)
        pages = DevicePages(lease, [0], torch.device("cuda"))
        table = Table(lease, 0, TOKENS, pages=pages, dtype=torch.bfloat16)
        with self.assertRaisesRegex(prefixd.Error, "append: the layer stores K alone"):
            table.append(rows[0][:, :1], rows[0][:, :1])


if __name__ == "__main__":
    unittest.main()
