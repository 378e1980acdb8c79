"""Windows and states between vLLM's pages and prefixd, without an engine."""

from __future__ import annotations

import dataclasses
import json
import unittest
from types import SimpleNamespace

import numpy as np
import prefixd
import signatures
import torch
from engines import DaemonTest
from fake_pages import Writer, fake_pages
from prefixd.engine.spaces import ANCHOR
from prefixd.vllm.groups import Group, Groups, State, why_not
from prefixd.vllm.layout import Layout, Place
from prefixd.vllm.lookups import Question
from prefixd.vllm.messages import Prompt, Save
from prefixd.vllm.options import Options
from prefixd.vllm.pages import StatePages
from prefixd.vllm.saving import Taken, store
from prefixd.vllm.scheduler import SchedulerSide
from prefixd.vllm.watching import Sequences, Watch, Watched
from vllm import SamplingParams
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.request import Request

LATE_MS = 30_000  # a deadline that a busy machine keeps
PAGE, WINDOW, TOKENS = 128, 256, 1024
FULL = [3, 1, 4, 5, 2, 6, 7, 0]  # pages of a request, in its order; 0 is nobody's
NONE = [0] * 8
SHAPE = {"num_kv_heads": 2, "head_size": 64, "dtype": torch.float32}


FULL_SPEC = FullAttentionSpec(block_size=PAGE, **SHAPE)
WINDOW_SPEC = SlidingWindowSpec(block_size=PAGE, sliding_window=WINDOW, **SHAPE)
STATE_SPEC = MambaSpec(
    block_size=PAGE, shapes=((4,),), dtypes=(torch.float32,), mamba_cache_mode="align"
)


def numbers(*ids: int) -> np.ndarray:
    return np.array(ids, np.int32)


class LayoutTest(DaemonTest):
    def setUp(self) -> None:
        self.client = prefixd.connect(self.daemon.address, name="layout")
        self.addCleanup(self.client.close)
        self.seeded = torch.Generator().manual_seed(11)

    def layout(self, *kinds: str) -> Layout:
        """Of a full layer, a window or a state for each of the kinds, in groups of their own."""
        groups, places = [], []
        for at, kind in enumerate(kinds):
            window = WINDOW if kind == "window" else 0
            groups.append(Group(PAGE, window, kind == "state"))
            if kind == "state":
                cache = torch.randint(0, 100, (8, 1, 1, 96), generator=self.seeded).to(torch.int8)
                pages = StatePages(cache)
            else:
                pages = fake_pages(Writer(), 64, None, window=window)
                pages.cache.copy_(torch.randn(pages.cache.shape, generator=self.seeded))
            places.append(Place(f"layer {at}", at, pages))
        return Layout(Groups(tuple(groups)), tuple(places), 0)

    def space(self, layout: Layout) -> prefixd.Space:
        return self.client.open_space(
            model="layout", weights=b"\1" * 32, layers=layout.space_layers(), salt=self.id()
        )

    def store(self, layout: Layout, *pages: list[int], begin: int = 0, states=()) -> int:
        """Stores the tokens of FULL as the worker does."""
        prompt = Prompt(np.arange(len(pages[0]) * PAGE, dtype=np.uint32), (), "")
        save = Save(1, "r", prompt, begin, tuple(numbers(*one) for one in pages), True, states)
        taken = Taken(save, layout.take(save), layout.take_states(save))
        space = self.space(layout)
        spaces = SimpleNamespace(is_silent=False, of=lambda *_: [space], heard=lambda error: None)
        return store(taken, spaces, layout, Options(store_deadline_ms=LATE_MS))

    def load(self, layout: Layout, end: int, *pages: list[int], begin: int = 0) -> bool:
        with self.space(layout).acquire(range(end), readable=0, deadline_ms=LATE_MS) as lease:
            given = tuple(numbers(*one) for one in pages)
            return lease.restorable_tokens == end and all(
                layout.fill(lease, layer, given, begin, end) for layer in range(len(layout.layers))
            )

    def test_of_a_window_the_pages_before_the_end_are_filled_and_no_others(self) -> None:
        layout = self.layout("full", "window")
        pages = [1, 2, 3, 4, 5]
        self.assertEqual(self.store(layout, pages, pages), 640)
        had = [one.pages.cache.clone() for one in layout.layers]
        for one in layout.layers:
            one.pages.cache.zero_()
        self.assertTrue(self.load(layout, 640, [7, 6, 5, 4, 3], [0, 0, 0, 2, 1]))
        full, window = (one.pages.cache for one in layout.layers)
        self.assertTrue(torch.equal(full[[7, 6, 5, 4, 3]], had[0][pages]))
        self.assertTrue(torch.equal(window[[2, 1]], had[1][[4, 5]]))
        self.assertFalse(bool(window[[0, 3, 4, 5, 6, 7]].any()))

    def test_pages_that_vllm_gave_back_are_left_out_and_the_end_is_found_all_the_same(self) -> None:
        layout = self.layout("full", "window")
        self.assertEqual(self.store(layout, [1, 2, 3, 4, 5], [0, 0, 0, 4, 5]), 640)
        self.assertTrue(self.load(layout, 640, [1, 2, 3, 4, 5], [0, 0, 0, 4, 5]))
        self.assertFalse(self.load(layout, 512, [1, 2, 3, 4], [0, 0, 3, 4]), "its window is gone")

    def test_a_gap_in_the_pages_of_a_window_is_an_error(self) -> None:
        layout = self.layout("full", "window")
        self.store(layout, [1, 2, 3], [1, 2, 3])
        with self.assertRaisesRegex(ValueError, "a gap in the pages of layer 1"):
            self.load(layout, 384, [1, 2, 3], [1, 0, 3])

    def test_a_state_is_found_where_it_was_taken_alone_and_as_it_was(self) -> None:
        layout = self.layout("full", "state")
        states = (State(1, 5, 256), State(1, 6, 640))
        self.assertEqual(self.store(layout, [1, 2, 3, 4, 5], [0, 0, 0, 0, 6], states=states), 640)
        cache = layout.layers[1].pages.cache
        had = cache.clone()
        cache.zero_()
        self.assertTrue(self.load(layout, 640, [1, 2, 3, 4, 5], [0, 0, 0, 0, 2]))
        self.assertTrue(self.load(layout, 256, [1, 2], [0, 3]))
        self.assertTrue(torch.equal(cache[[2, 3]], had[[6, 5]]))
        self.assertFalse(bool(cache[[0, 1, 4, 5, 6, 7]].any()))
        self.assertFalse(self.load(layout, 512, [1, 2, 3, 4], [0, 0, 0, 4]))

    def test_a_model_of_windows_alone_is_anchored(self) -> None:
        layout = self.layout("window", "window")
        self.assertEqual(layout.space_layers()[-1], ANCHOR)
        self.assertEqual(self.store(layout, [1, 2, 3], [1, 2, 3]), 384)
        self.assertTrue(self.load(layout, 384, [0, 6, 7], [0, 5, 6]))
        self.assertNotIn(ANCHOR, self.layout("window", "full").space_layers())

    def test_kernels_may_cut_vllms_pages_into_smaller_ones(self) -> None:
        layout = self.layout("full")
        layout = Layout(Groups((Group(2 * PAGE),)), layout.layers, 0)
        cache = layout.layers[0].pages.cache
        had = cache.clone()
        prompt = Prompt(np.arange(512, dtype=np.uint32), (), "")
        save = Save(1, "r", prompt, 0, (numbers(3, 1),))
        (rows,) = layout.take(save)
        assert rows is not None
        key = had[[6, 7, 2, 3]].transpose(1, 2).reshape(512, 2, 128).transpose(0, 1)[..., :64]
        self.assertTrue(torch.equal(torch.from_numpy(rows.sides[0]).view(torch.float32), key))


class GroupsTest(unittest.TestCase):
    def why_not(self, *specs: object) -> str:
        return why_not(
            SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=one) for one in specs])
        )

    def test_what_a_layer_keeps_that_is_not_shared_is_named(self) -> None:
        full, window, aligned = FULL_SPEC, WINDOW_SPEC, STATE_SPEC
        other = dataclasses.replace(STATE_SPEC, mamba_cache_mode="none")
        chunks = ChunkedLocalAttentionSpec(block_size=PAGE, attention_chunk_size=512, **SHAPE)
        self.assertEqual(self.why_not(full, window, window), "")
        self.assertEqual(self.why_not(full, aligned), "")
        self.assertIn("mamba_cache_mode must be 'align'", self.why_not(full, other))
        self.assertIn("a layer keeps a ChunkedLocalAttentionSpec", self.why_not(full, chunks))

    def test_a_window_is_stored_in_whole_pages(self) -> None:
        for window, page, stored in (
            (256, 128, 256),
            (300, 128, 384),
            (128, 128, 128),
            (1, 16, 16),
        ):
            self.assertEqual(Group(page, window).stored_window, stored)

    def test_a_page_holds_a_state_where_the_tokens_end_with_it(self) -> None:
        groups = Groups((Group(128), Group(128, has_states=True)))
        ids = ([1, 2, 3, 4], [0, 5, 6, 7])
        found = {
            tokens: list(groups.states(ids, tokens)) for tokens in (0, 128, 256, 300, 512, 640)
        }
        self.assertEqual(
            {tokens: states for tokens, states in found.items() if states},
            {256: [State(1, 5, 256)], 512: [State(1, 7, 512)]},
        )

    def test_pages_count_for_tokens_that_are_whole_pages_in_every_group(self) -> None:
        groups = Groups((Group(128), Group(192, 512)))
        self.assertEqual(groups.page, 384)
        full, window = groups.pages(([1, 2, 3, 4], [5, 6, 7]), 384)
        self.assertEqual((full.tolist(), window.tolist()), ([1, 2, 3], [5, 6]))


class SchedulerTest(unittest.TestCase):
    """What the scheduler has the workers save, of a request of 1,000 tokens in pages of 128."""

    def save(self, *specs: object, computed: int, ids: list[list[int]]) -> Save:
        caches = SimpleNamespace(
            kv_cache_groups=[SimpleNamespace(kv_cache_spec=one) for one in specs]
        )
        config = SimpleNamespace(lora_config=None, kv_events_config=None)
        side = SchedulerSide(config, caches, Options())
        self.addCleanup(side.close)
        side._spaces = SimpleNamespace(is_silent=True, close=lambda: None)
        request = Request("r", list(range(1000)), SamplingParams(max_tokens=200), None)
        request.append_output_token_ids(list(range(200)))
        side.matched(request, 0)
        block_ids = SimpleNamespace(
            get_block_ids=lambda request_id: tuple(ids), boundary_state_offloads={}
        )
        (save,) = side.work({"r": computed}, block_ids).saves
        return save

    def test_the_end_of_the_prompt_is_named_where_it_needs_a_window_of_its_own(self) -> None:
        pages = [list(range(1, 10))] * 2
        self.assertEqual(
            self.save(FULL_SPEC, WINDOW_SPEC, computed=1152, ids=pages).turn_ends, (896,)
        )
        self.assertEqual(self.save(FULL_SPEC, WINDOW_SPEC, computed=896, ids=pages).turn_ends, ())
        self.assertEqual(self.save(FULL_SPEC, computed=1152, ids=pages[:1]).turn_ends, ())

    def test_a_state_is_taken_where_a_step_ends_with_a_page(self) -> None:
        pages = [list(range(1, 10)), [0] * 6 + [11, 0, 12]]
        save = self.save(FULL_SPEC, STATE_SPEC, computed=896, ids=pages)
        self.assertEqual(save.states, (State(1, 11, 896),))
        for computed in (1000, 1024):  # within a page, and where vLLM has none
            self.assertEqual(
                self.save(FULL_SPEC, STATE_SPEC, computed=computed, ids=pages).states, ()
            )


class SignaturesTest(unittest.TestCase):
    def test_the_record_of_vllms_interfaces_is_that_of_the_installed_vllm(self) -> None:
        self.assertEqual(json.loads(signatures.RECORDED.read_text()), signatures.look())


class QuestionTest(unittest.TestCase):
    """Spaces that can give some lengths and no others."""

    def ask(self, most: int, cuts_anywhere: bool, *lengths: list[int]) -> int | None:
        spaces = [SimpleNamespace(error="", match=self.match(one)) for one in lengths]
        tokens = np.zeros(2000, np.uint32)
        question = Question(tokens, (), most, PAGE, cuts_anywhere, 0)
        found = question.ask(spaces, lambda error: None)
        return None if found is None else found.restorable_tokens

    def match(self, lengths: list[int]):
        def match(tokens, *, max_cached_tokens, **others) -> prefixd.Match:
            fits = [one for one in lengths if one <= max_cached_tokens]
            return prefixd.Match(restorable_tokens=max(fits, default=0))

        return match

    def test_a_length_of_whole_pages_is_found_that_every_rank_can_give(self) -> None:
        self.assertEqual(self.ask(1999, False, [100, 256, 700, 1900]), 256)
        self.assertEqual(self.ask(1999, False, [256, 640, 1900], [256, 512, 640]), 640)
        self.assertEqual(self.ask(1999, False, [256, 640], [256, 512]), 256)
        self.assertEqual(self.ask(1999, False, [640], [512]), 0)
        self.assertEqual(self.ask(600, False, [256, 640]), 256)

    def test_where_prefixes_can_be_cut_the_shortest_rank_decides(self) -> None:
        self.assertEqual(self.ask(1999, True, [1900], [700]), 700)
        self.assertEqual(self.ask(1999, True, [1900], []), 0)


class WatchTest(unittest.TestCase):
    """Blocks of 16 tokens; their hashes are letters."""

    def setUp(self) -> None:
        self.sequences = Sequences()
        self.there: dict[str, int | None] = {}

    def add(self, letters: str) -> None:
        prompt = Prompt(np.arange(16 * len(letters), dtype=np.uint32), (), letters)
        self.sequences.add(Watched(prompt, tuple(letters)))

    def look(self) -> list[str]:
        """One round; returns what is gone."""
        watch = Watch(self.sequences, lambda prompt: self.there.get(prompt.salt), round_s=3600)
        watch.close()
        watch._round_s = 0.0
        looked = len(self.there)
        while looked > 0 and watch.look():
            looked -= 1
        return ["".join(gone) for gone in self.sequences.take_gone()]

    def test_V5_blocks_are_gone_once_no_sequence_has_them(self) -> None:
        self.add("abcd")
        self.add("abxy")
        self.there = {"abcd": 64, "abxy": 64}
        self.assertEqual(self.look(), [])
        self.there = {"abcd": 16, "abxy": 48}  # whole blocks count
        self.assertEqual(self.look(), ["cd", "y"])
        self.there = {"abcd": 0, "abxy": 0}
        self.assertEqual("".join(sorted("".join(self.look()))), "abx")
        self.assertEqual(self.look(), [])

    def test_V5_a_sequence_that_goes_on_is_looked_at_once(self) -> None:
        for letters in ("ab", "abc", "abcd"):
            self.add(letters)
        self.there = {"abcd": 0}
        self.assertEqual(self.look(), ["abcd"])

    def test_V5_a_block_that_is_stored_again_meanwhile_is_not_gone(self) -> None:
        self.add("abc")
        one = self.sequences.due(float("inf"))
        assert one is not None
        self.add("abcd")
        self.sequences.still(one, 0)
        self.assertEqual(self.sequences.take_gone(), [])

    def test_V5_a_prefixd_that_does_not_answer_has_lost_nothing(self) -> None:
        self.add("ab")
        self.there = {"ab": None}
        self.assertEqual(self.look(), [])
        self.there = {"ab": 0}
        self.assertEqual(self.look(), ["ab"])


if __name__ == "__main__":
    unittest.main()
