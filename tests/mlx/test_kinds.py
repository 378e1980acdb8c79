"""Every kind of cache that mlx-lm's models make: what is restored goes on as what was saved, to the
bit, and is the engine's own object."""

import importlib
import json
import signal
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import prefixd
from families import FAMILIES
from mlx_lm.generate import BatchGenerator
from mlx_lm.models import cache as engine
from mlx_lm.models.cache import CacheList, make_prompt_cache
from prefixd.mlx import Model, Options, PromptCache, Unsupported, convert, open_model
from prefixd.mlx.generation import saving_batch_generator
from prefixd.mlx.geometry import leaves_of, look_at, unbatched
from processes import wait_for
from rows import WithDaemon, prompt

ME = "model"
WINDOW = 128  # of the families' sliding layers


def model_of(family: str, **changes: Any) -> Any:
    """In this process, with weights of its own making."""
    config = {**FAMILIES[family], **changes}
    module = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    mx.random.seed(3)
    return module.Model(module.ModelArgs.from_dict(config))


def compute(model: Any, caches: list[Any], tokens: list[int], step: int = 64) -> np.ndarray:
    """Logits after the last token; steps of a prefill as a server would make them."""
    for at in range(0, len(tokens), step):
        out = model(mx.array([tokens[at : at + step]]), cache=caches)
        mx.eval(out, [leaf.state for leaf in leaves_of(caches)])
    return np.array(out[0, -1].astype(mx.float32))


class OfModels(WithDaemon):
    family = "llama"

    def setUp(self):
        super().setUp()
        self.load(self.family)

    def load(self, family: str, **changes: Any) -> None:
        self.model = model_of(family, **changes)
        self.folder_of_model = self.folder / self.id() / family
        self.folder_of_model.mkdir(parents=True, exist_ok=True)
        config = json.dumps({**FAMILIES[family], **changes})
        (self.folder_of_model / "config.json").write_text(config)
        mx.save_safetensors(str(self.folder_of_model / "model.safetensors"), {"w": mx.zeros((2,))})

    def worker(self, **options: Any) -> PromptCache:
        """A prompt cache as another process would have it."""
        client = prefixd.connect(self.daemon.address)
        chosen = Options(salt=self.id(), deadline_ms=30_000, **options)
        models = [Model(self.model, str(self.folder_of_model))]
        return PromptCache(lambda _: open_model(client, models, chosen))

    def computed(self, tokens: list[int]) -> list[Any]:
        """In one step: layers with a window have the rows of all tokens still."""
        caches = make_prompt_cache(self.model)
        compute(self.model, caches, tokens, step=len(tokens))
        return caches

    def assert_go_on_alike(self, one: list[Any], other: list[Any], tokens: list[int]) -> None:
        """A chunk, and then token for token past the borders of windows."""
        for at, end in [(0, 20), *((n, n + 1) for n in range(20, len(tokens)))]:
            mine = compute(self.model, one, tokens[at:end])
            np.testing.assert_array_equal(compute(self.model, other, tokens[at:end]), mine)


class EveryKind(OfModels):
    FAMILIES = {
        "llama": {"KVCache"},
        "gpt_oss": {"RotatingKVCache", "KVCache"},
        "gemma3_text": {"RotatingKVCache", "KVCache"},
        "llama4": {"ChunkedKVCache", "KVCache"},
        "mamba2": {"ArraysCache"},
        "qwen3_next": {"ArraysCache", "KVCache"},
        "lfm2": {"ArraysCache", "KVCache"},
        "falcon_h1": {"CacheList"},
        "baichuan_m1": {"CacheList"},
        "deepseek_v3": {"KVCache"},
        "deepseek_v32": {"CacheList"},
        "recurrent_gemma": {"ArraysCache", "RotatingKVCache"},
    }

    def test_is_restored_bit_for_bit_after_a_prompt_and_after_an_answer(self):
        for family, classes in self.FAMILIES.items():
            with self.subTest(family):
                self.load(family)
                first, second, tokens = self.worker(), self.worker(), prompt(3 * WINDOW, family)
                caches = make_prompt_cache(self.model)
                self.assertEqual({type(cache).__name__ for cache in caches}, classes)
                for begin, end in ((0, 192), (192, 300)):  # segments of a prompt
                    compute(self.model, caches, tokens[begin:end])
                    first.insert_cache(ME, tokens[:end], caches)
                found, rest = second.fetch_nearest_cache(ME, tokens[:330])
                self.assertEqual(len(rest), 30)
                self.assertEqual(
                    [type(leaf) for leaf in leaves_of(found)],
                    [type(leaf) for leaf in leaves_of(caches)],
                )
                self.assert_go_on_alike(caches, found, tokens[300:350])
                second.insert_cache(ME, tokens[:350], found)
                self.assertEqual((len(first), len(second)), (0, 0))  # prefixd has all of it
                found, rest = first.fetch_nearest_cache(ME, tokens)
                self.assertEqual(len(tokens) - len(rest), 350)
                self.assert_go_on_alike(caches, found, tokens[350:])

    def test_is_restored_from_the_ssd(self):
        self.assert_outlive(self.reboot, "gpt_oss", "llama4", "qwen3_next", "falcon_h1", "mamba2")

    def test_is_restored_after_kill_9(self):
        """Mamba 2 and RecurrentGemma have no layer with a row for every token."""

        def kill() -> None:
            self.daemon.stop(signal.SIGKILL)
            self.start_daemon()

        self.assert_outlive(kill, "mamba2", "recurrent_gemma", "gpt_oss", "qwen3_next")

    def assert_outlive(self, restart: Callable[[], None], *families: str) -> None:
        saved = {}
        for family in families:
            self.load(family)
            caches, tokens = self.computed(prompt(300, family)), prompt(340, family)
            self.worker().insert_cache(ME, tokens[:300], caches)
            saved[family] = (self.model, self.folder_of_model, caches, tokens)
        restart()
        for family, (self.model, self.folder_of_model, caches, tokens) in saved.items():
            with self.subTest(family):
                found, rest = self.worker().fetch_nearest_cache(ME, tokens)
                self.assertEqual(len(rest), 40)
                self.assert_go_on_alike(caches, found, tokens[300:])

    def test_that_a_model_never_fills_is_given_back_empty(self):
        plain = make_prompt_cache(self.model)
        self.model.make_cache = lambda: [*make_plain(), engine.KVCache()]
        make_plain = lambda: [type(cache)() for cache in plain]  # noqa: E731
        tokens = prompt(100, seed=1)
        self.worker().insert_cache(ME, tokens, self.computed(tokens))
        found, rest = self.worker().fetch_nearest_cache(ME, [*tokens, 1])
        self.assertEqual((len(rest), len(found)), (1, len(plain) + 1))
        self.assertTrue(found[-1].empty())


class RotatingCaches(OfModels):
    family = "gpt_oss"

    def saved(self, tokens: list[int]) -> list[Any]:
        caches = self.computed(tokens)
        self.worker().insert_cache(ME, tokens, caches)
        return caches

    def test_that_have_not_wrapped_are_cut_at_any_token(self):
        tokens = prompt(100, seed=1)
        self.saved(tokens)
        asked = tokens[:37] + prompt(20, seed=2)
        found, rest = self.worker().fetch_nearest_cache(ME, asked)
        self.assertEqual(len(rest), 20)
        for cache, plain in zip(found, self.computed(tokens[:37])):
            self.assertEqual((cache.offset, plain.offset), (37, 37))
            np.testing.assert_array_equal(cache.keys, plain.keys_and_values()[0])

    def test_that_have_wrapped_hold_the_window_in_the_order_of_its_tokens(self):
        tokens = prompt(300, seed=1)
        self.saved(tokens)
        found, _ = self.worker().fetch_nearest_cache(ME, [*tokens, 1])
        (rotating,) = [c for c in found if type(c) is engine.RotatingKVCache]
        self.assertEqual((rotating.offset, rotating._idx, rotating.keep), (300, WINDOW, 0))
        self.assertEqual((rotating.max_size, rotating.keys.shape[2]), (WINDOW, WINDOW))
        merged = engine.RotatingKVCache.merge([rotating]).extract(0)  # as a server's batch has it
        np.testing.assert_array_equal(merged.keys, rotating.keys)
        self.assertEqual((merged.offset, merged._idx), (rotating.offset, rotating._idx))

    def test_that_have_wrapped_are_restored_from_their_ring_too(self):
        """One request at a time the engine hands rows in as they stand in its ring."""
        tokens = prompt(400, seed=1)
        caches = self.computed(tokens[:200])
        self.worker().insert_cache(ME, tokens[:200], caches)
        for at in range(200, 237):
            compute(self.model, caches, tokens[at : at + 1])
        (ring,) = [c for c in caches if type(c) is engine.RotatingKVCache]
        self.assertEqual(ring._idx, 37)
        self.worker().insert_cache(ME, tokens[:237], caches)
        found, rest = self.worker().fetch_nearest_cache(ME, tokens)
        self.assertEqual(len(tokens) - len(rest), 237)
        self.assert_go_on_alike(caches, found, tokens[237:300])

    def test_whose_rows_are_gone_before_they_were_saved_stay_in_the_engines_own_cache(self):
        tokens = prompt(400, seed=1)
        caches = self.computed(tokens[:64])
        for at in range(64, 400):
            compute(self.model, caches, tokens[at : at + 1])
        cache = self.worker()
        with self.assertLogs("prefixd.mlx", "INFO") as said:
            cache.insert_cache(ME, tokens, caches)
        self.assertIn("stored=False", said.output[-1])
        self.assertRegex(said.output[-1], "why='the rows of tokens 256 to 272 are gone'")
        self.assertEqual(len(cache), 1)

    def test_keep_their_first_tokens_with_a_maximum_size(self):
        self.load("qwen3")  # makes no caches of its own
        options, tokens = {"max_kv_size": 96}, prompt(400, seed=1)
        caches = make_prompt_cache(self.model, 96)
        for end in (50, 100, 200):
            compute(self.model, caches, tokens[end - (50 if end < 200 else 100) : end])
            self.worker(**options).insert_cache(ME, tokens[:end], caches)
        found, rest = self.worker(**options).fetch_nearest_cache(ME, tokens)
        self.assertEqual(len(tokens) - len(rest), 200)
        self.assertEqual((found[0].keep, found[0].keys.shape[2]), (4, 96))
        self.assert_go_on_alike(caches, found, tokens[200:280])
        plain, rest = self.worker().fetch_nearest_cache(ME, tokens)
        self.assertEqual((plain, len(rest)), (None, 400))  # others have other rows

    def test_of_a_window_that_is_too_small_to_share_are_refused_in_a_sentence(self):
        self.load("gpt_oss", sliding_window=32)
        with self.assertLogs("prefixd.mlx", "WARNING") as said:
            self.worker().fetch_nearest_cache(ME, prompt(50, seed=1))
        self.assertIn("keeps the last 32 tokens, windows of 64 and more can be shared", said.output[0])
        self.assertNotIn("Traceback", "".join(said.output))

    def test_take_the_memory_of_their_window_alone(self):
        tokens = prompt(2000, seed=1)
        caches = make_prompt_cache(self.model)
        for at in range(0, 2000, 500):
            compute(self.model, caches, tokens[at : at + 500], step=500)
            self.worker().insert_cache(ME, tokens[: at + 500], caches)
        token_bytes = 2 * 2 * 32 * 4  # K and V, heads, dims, float32: of one layer
        full, sliding = 2000, 4 * (WINDOW + 32)
        self.assertLessEqual(self.space()["ram_payload_bytes"], (full + sliding) * token_bytes)


class ServersThatGenerate(OfModels):
    """What mlx_lm.server does, in this process: a batch, whose requests are saved on the way."""

    family = "gpt_oss"

    def generate(self, cache: PromptCache, tokens: list[int], count: int) -> list[int]:
        """A request from its lookup to the save of its answer; returns prompt and answer."""
        batches = saving_batch_generator(BatchGenerator, cache, lambda: ME)
        generator = batches(self.model, prefill_step_size=64)
        found, rest = cache.fetch_nearest_cache(ME, tokens)
        held = tokens[: len(tokens) - len(rest)]
        generator.insert_segments([[rest]], [count], caches=[found], all_tokens=[list(held)])
        while True:
            prompts, generated = generator.next()
            ended = [one.uid for one in prompts if one.end_of_segment and not one.end_of_prompt]
            for caches, done in generator.extract_cache(ended).values():
                cache.insert_cache(ME, done[:], caches, cache_type="user")
            for one in generated:
                if one.finish_reason is not None:
                    cache.insert_cache(ME, one.all_tokens[:], one.prompt_cache)
                    return one.all_tokens

    def test_answers_longer_than_the_window_are_gone_on_from(self):
        for count in range(100, 4 * WINDOW, 41):
            with self.subTest(f"{count} tokens"):
                first = self.generate(self.worker(), prompt(150, seed=count), count)
                asked = first + prompt(20, seed=2)
                _, rest = self.worker().fetch_nearest_cache(ME, asked)
                self.assertEqual(len(rest), 20)

    def test_a_prompt_whose_last_step_is_short_is_gone_on_from(self):
        """Of a step of 8 tokens after others only the window's rows are left."""
        first = self.generate(self.worker(), prompt(64 * 4 + 9, seed=1), 10)
        _, rest = self.worker().fetch_nearest_cache(ME, first + prompt(7, seed=2))
        self.assertEqual(len(rest), 7)

    def test_what_is_announced_is_not_written_by_others_meanwhile(self):
        self.load("llama")
        cache, tokens = self.worker(), prompt(400, seed=1)
        cache.fetch_nearest_cache(ME, tokens)  # computes it now
        (part,) = self.worker().shared(ME)._parts
        waiting = part.space.match(tokens)
        self.assertEqual((waiting.restorable_tokens, waiting.pending_tokens), (0, 399))
        self.assertEqual(self.daemon.control("stats")["reservations"], 1)
        cache.insert_cache(ME, tokens[:399], self.computed(tokens[:399]))
        self.assertEqual(part.space.match(tokens).restorable_tokens, 399)
        wait_for(
            "the announcement to end",
            lambda: self.daemon.control("stats")["reservations"] == 0,
            deadline_s=20,
        )


class Batches(OfModels):
    family = "gpt_oss"

    def test_of_one_sequence_are_saved_as_the_sequences_own(self):
        tokens = prompt(120, seed=1)
        caches = self.computed(tokens)
        batch = [cache.merge([cache]) for cache in caches]
        self.worker().insert_cache(ME, tokens, batch)
        found, rest = self.worker().fetch_nearest_cache(ME, [*tokens, 1])
        self.assertEqual(len(rest), 1)
        self.assert_go_on_alike(caches, found, prompt(30, seed=2))

    def test_of_several_sequences_are_to_be_taken_apart_first(self):
        caches = self.computed(prompt(40, seed=1))
        with self.assertRaisesRegex(Unsupported, "a batch of 2 sequences: extract"):
            unbatched([cache.merge([cache, cache]) for cache in caches])


class OtherObjects(OfModels):
    def test_a_cache_that_concatenates_is_saved_as_the_rows_it_has(self):
        tokens = prompt(90, seed=1)
        caches = []
        for cache in self.computed(tokens):
            caches.append(engine.ConcatenateKVCache())
            caches[-1].update_and_fetch(*cache.keys_and_values())
        self.worker().insert_cache(ME, tokens, caches)
        found, rest = self.worker().fetch_nearest_cache(ME, [*tokens, 1])
        self.assertEqual(len(rest), 1)
        np.testing.assert_array_equal(found[0].keys, caches[0].keys)

    def test_a_class_that_nobody_knows_is_refused_by_name(self):
        self.load("deepseek_v41")
        with self.assertRaisesRegex(Unsupported, "keep a LayerCache, which prefixd.mlx cannot read"):
            look_at(self.model)

    def test_a_subclass_may_hold_rows_otherwise(self):
        self.assertFalse(convert.keeps_all_rows(type("Mine", (engine.KVCache,), {})()))

    def test_lists_in_lists_are_taken_apart_and_put_together(self):
        inner = CacheList(engine.KVCache(), CacheList(engine.ArraysCache(2)))
        self.assertEqual(
            [type(leaf).__name__ for leaf in leaves_of([inner])], ["KVCache", "ArraysCache"]
        )


class QuantizedToBeSaved(OfModels):
    """X3: full and sliding layers, in every format that caches are saved in."""

    FORMATS = {
        "8 bits": {"store_bits": 8},
        "4 bits": {"store_bits": 4},
        "K 8, V 4 bits": {"store_bits": 8, "store_value_bits": 4},
    }

    def test_X3_full_and_sliding_rows_come_back_as_they_were_quantized(self):
        for family in ("llama", "qwen3", "gpt_oss", "gemma3_text", "llama4", "qwen3_next"):
            for name, form in self.FORMATS.items():
                with self.subTest(f"{family}, {name}"):
                    self.load(family)
                    options = {**form, "store_group_size": 32, "min_quantize_tokens": 0}
                    tokens = prompt(200, family)
                    caches = self.computed(tokens)
                    self.worker(**options).insert_cache(ME, tokens, caches)
                    found, rest = self.worker(**options).fetch_nearest_cache(ME, [*tokens, 1])
                    self.assertEqual(len(rest), 1)
                    self.assert_quantized_once(caches, found, **form)

    def assert_quantized_once(
        self, caches: list[Any], found: list[Any], store_bits: int, store_value_bits: int = 0
    ) -> None:
        bits = (store_bits, store_value_bits or store_bits)
        for one, other in zip(leaves_of(caches), leaves_of(found), strict=True):
            if type(one) is engine.ArraysCache:
                continue  # states are saved as they are
            rows = other.keys.shape[2]
            for side, own in enumerate(("keys", "values")):
                whole = one.keys_and_values()[side][..., -rows:, :]
                packed = mx.quantize(whole, group_size=32, bits=bits[side])
                again = mx.dequantize(*packed, group_size=32, bits=bits[side])
                np.testing.assert_array_equal(getattr(other, own)[..., :rows, :], again)

    def test_X3_the_engines_own_quantized_caches_stand_beside_states_and_chunks(self):
        for family in ("qwen3_next", "llama4", "llama"):
            for bits in (8, 4):
                with self.subTest(f"{family}, {bits} bits"):
                    self.load(family)
                    options, tokens = {"kv_bits": bits, "kv_group_size": 32}, prompt(200, family)
                    caches = [
                        c.to_quantized(32, bits) if type(c) is engine.KVCache else c
                        for c in self.computed(tokens)
                    ]
                    self.worker(**options).insert_cache(ME, tokens, caches)
                    found, rest = self.worker(**options).fetch_nearest_cache(ME, [*tokens, 1])
                    self.assertEqual(len(rest), 1)
                    self.assertEqual([type(c) for c in found], [type(c) for c in caches])
                    self.assert_go_on_alike(caches, found, prompt(30, seed=2))

    def test_X3_what_mlx_lm_cannot_quantize_is_said_before_a_request(self):
        for family in ("gpt_oss", "deepseek_v3"):
            with self.subTest(family), self.assertLogs("prefixd.mlx", "WARNING") as said:
                self.load(family)
                worker = self.worker(kv_bits=8, kv_group_size=32)
                worker.fetch_nearest_cache(ME, prompt(9, seed=1))
            self.assertIn("mlx-lm cannot generate with quantized caches", said.output[0])
            self.assertIn("--kv-cache-quantization saves quantized", said.output[0])
