"""Rows between vLLM's pages and prefixd, on the CPU and on a GPU, without vLLM itself."""

from __future__ import annotations

import itertools
import threading
import unittest

import numpy as np
import prefixd
import torch
from engines import DaemonTest
from fake_pages import Opaque, Scatterer, Writer, fake_pages
from prefixd.engine import affine
from prefixd.engine.tensors import Beside, copied
from prefixd.vllm.pages import LayerPages, RowPages

TAKEN, GIVEN, OTHERS = [3, 4, 5, 1, 7], [2, 0, 6, 1, 5], [3, 4, 7]
ORDERS = ([6, 0, 1, 2, 5], [6, 5, 2, 1, 0], GIVEN)
LATE_MS = 30_000  # a deadline that a busy machine keeps


class PagesOnTheCpu(DaemonTest):
    device = "cpu"

    def setUp(self) -> None:
        self.seeded = torch.Generator().manual_seed(5)
        self.client = prefixd.connect(self.daemon.address, name="pages")
        self.addCleanup(self.client.close)

    def fresh(self, writer: object, bits: tuple[int, int] | None, *more, **others) -> LayerPages:
        pages = fake_pages(writer, 64, bits, *more, device=self.device, **others)
        shape, dtype = pages.cache.shape, pages.cache.dtype
        pages.cache.copy_(torch.randn(shape, generator=self.seeded).to(dtype))
        return pages

    def store(self, pages: LayerPages, taken: tuple[np.ndarray, ...], name: str) -> None:
        """Stores what take() gave in a space of its own, with a seam within a page."""
        count = taken[0].shape[1]
        with self.space(pages, name).reserve(range(count), deadline_ms=LATE_MS) as plan:
            self.assertEqual(plan.error, "")
            for begin, end in ((0, 64), (64, count)):
                pages.write(plan, 0, begin, tuple(side[:, begin:end] for side in taken))
            done = plan.commit(count, True, deadline_ms=LATE_MS)
            self.assertEqual((done.stored_tokens, done.error), (count, ""))

    def space(self, pages: LayerPages, name: str) -> prefixd.Space:
        return self.client.open_space(
            model="pages", weights=b"\1" * 32, layers=[pages.layer()], salt=f"{self.id()} {name}"
        )

    def load(self, pages: LayerPages, count: int, given: list[int], name: str) -> bool:
        with self.space(pages, name).acquire(range(count), deadline_ms=LATE_MS) as lease:
            return pages.fill(lease, 0, 0, count, torch.tensor(given))

    def sides(self, pages: LayerPages, which: list[int]) -> list[torch.Tensor]:
        """K and V of the pages, read by plain indexing."""
        found = pages.cache[torch.tensor(which, device=self.device)].transpose(1, 2).cpu()
        return [side.reshape(-1, *side.shape[2:]).transpose(0, 1) for side in found.chunk(2, -1)]

    def test_rows_go_to_pages_in_any_order_and_in_their_data_type(self) -> None:
        for dtype, bits, dense, tokens in itertools.product(
            (torch.float32, torch.bfloat16, torch.float16),
            (None, (8, 8), (8, 4), (4, 4)),
            (True, False),
            (16, 128),
        ):
            with self.subTest(dtype=dtype, bits=bits, dense=dense, tokens=tokens):
                pages = self.fresh(Writer(), bits, dtype, dense=dense, tokens=tokens)
                before, had = pages.cache.clone(), self.sides(pages, TAKEN)
                taken = pages.take(torch.tensor(TAKEN))
                copied(pages.cache.device)()
                name = f"{dtype} {bits} {dense} {tokens}"
                self.store(pages, taken, name)
                for given in ORDERS:
                    pages.cache.copy_(before)
                    self.assertTrue(self.load(pages, 5 * tokens, given, name))
                    for at, (one, other) in enumerate(zip(had, self.sides(pages, given))):
                        if bits is not None:
                            planes = affine.quantize(one, bits[at], 64)
                            one = affine.dequantize(planes, bits[at], 64)
                        self.assertTrue(torch.equal(one, other), f"{given}, side {at}")
                    kept = [page for page in range(8) if page not in given]
                    self.assertTrue(torch.equal(pages.cache[kept], before[kept]))

    def test_elements_in_no_regular_order_are_rows_all_the_same(self) -> None:
        pages = self.fresh(Scatterer(), None, tokens=16)
        assert isinstance(pages, RowPages)
        self.assertIsNone(pages.key.strides)
        before = pages.cache.clone()
        taken = pages.take(torch.tensor(TAKEN))
        copied(pages.cache.device)()
        self.store(pages, taken, "rows")
        pages.cache.zero_()
        self.assertTrue(self.load(pages, 80, GIVEN, "rows"))
        self.assertTrue(torch.equal(pages.cache[GIVEN], before[TAKEN]))

    def test_rows_are_found_where_they_stand_in_a_cache(self) -> None:
        for dense, tokens in itertools.product((True, False), (16, 128)):
            pages = self.fresh(Writer(), None, dense=dense, tokens=tokens)
            assert isinstance(pages, RowPages)
            for place, want in zip((pages.key, pages.value), pages.cache.chunk(2, -1), strict=True):
                found = place.of_cache(pages.cache)
                self.assertTrue(torch.equal(found, want.transpose(1, 2)))
                self.assertEqual(found.data_ptr(), want.data_ptr())
        scattered = self.fresh(Scatterer(), None, tokens=16)
        self.assertIsNone(scattered.key.of_cache(scattered.cache))

    def test_pages_that_cannot_be_taken_apart_go_whole(self) -> None:
        pages = self.fresh(Opaque(), None, torch.bfloat16, tokens=64)
        before = pages.cache.clone()
        taken = pages.take(torch.tensor(TAKEN))
        copied(pages.cache.device)()
        self.store(pages, taken, "whole")
        pages.cache.zero_()
        self.assertTrue(self.load(pages, 320, GIVEN, "whole"))
        self.assertTrue(torch.equal(pages.cache[GIVEN], before[TAKEN]))
        self.assertFalse(bool(pages.cache[OTHERS].any()))

    def test_a_lease_without_the_tokens_leaves_the_pages_alone(self) -> None:
        for bits in (None, (8, 8)):
            pages = self.fresh(Writer(), bits, tokens=16)
            before = pages.cache.clone()
            self.assertFalse(self.load(pages, 80, GIVEN, "nothing"))
            self.assertTrue(torch.equal(pages.cache, before))


@unittest.skipUnless(torch.cuda.is_available(), "torch sees no GPU")
class PagesOnAGpu(PagesOnTheCpu):
    device = "cuda"

    def test_who_writes_a_page_after_it_was_taken_changes_nothing_of_what_is_stored(self) -> None:
        pages = self.fresh(Writer(), None, tokens=16)
        had = self.sides(pages, TAKEN)
        pages.take(torch.tensor(TAKEN))  # has the memory ready
        torch.cuda.synchronize()
        torch.cuda._sleep(400_000_000)  # the model's stream is busy when rows are taken
        pages.cache.add_(1)
        taken = pages.take(torch.tensor(TAKEN))
        ready = copied(pages.cache.device)
        pages.cache.zero_()
        ready()
        for one, other in zip(had, taken, strict=True):
            self.assertTrue(np.array_equal((one + 1).numpy().view(np.int32), other))

    def test_taking_rows_waits_for_nothing_that_the_model_still_computes(self) -> None:
        pages = self.fresh(Writer(), None, tokens=16)
        pages.take(torch.tensor(TAKEN))  # has the memory ready
        copied(pages.cache.device)()
        torch.cuda._sleep(2_000_000_000)
        busy = torch.cuda.current_stream().record_event()
        pages.take(torch.tensor(TAKEN))
        self.assertFalse(busy.query())

    def test_a_load_beside_the_steps_comes_behind_what_they_still_write_to_its_pages(self) -> None:
        for bits in (None, (8, 8)):
            pages = self.fresh(Writer(), bits, tokens=16)
            taken = pages.take(torch.tensor(TAKEN))
            copied(pages.cache.device)()
            self.store(pages, taken, f"{bits}")
            self.load(pages, 80, GIVEN, f"{bits}")
            want = pages.cache[GIVEN].clone()
            pages.cache.fill_(7)
            torch.cuda.synchronize()
            beside = Beside(pages.cache.device)
            torch.cuda._sleep(400_000_000)
            pages.cache.zero_()  # of a request that had the pages before
            mark, done = beside.mark(), []

            def load(beside=beside, mark=mark, pages=pages, done=done, name=f"{bits}") -> None:
                with beside.after(mark):
                    done.append(self.load(pages, 80, GIVEN, name))
                    torch.cuda._sleep(200_000_000)
                    last = torch.cuda.current_stream().record_event()
                done.append(last.query())

            thread = threading.Thread(target=load)
            thread.start()
            thread.join()
            self.assertEqual(done, [True, True], "it is there, and all is done")
            self.assertTrue(torch.equal(pages.cache[GIVEN], want))


if __name__ == "__main__":
    unittest.main()
