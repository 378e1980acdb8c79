"""Caches that prefixd stores quantized and vLLM computes on in full precision."""

from __future__ import annotations

import signal
import unittest

import numpy as np
from engines import MODEL, Answer, DaemonTest, Engine, most, prompt
from numpy.typing import NDArray
from fake_pages import Opaque, Writer, fake_pages
from prefixd_process import wait_for
from stored import DIM, HEADS, LAYERS, RAW, damage, layers_of, space_of

import prefixd
from prefixd.vllm import OptionError, Options

LONG, OTHER = prompt(0, 1500), prompt(40_000, 1000)
GROUP = 64
TEXTS = [prompt(begin, 700) for begin in (2_000, 50_000, 90_000, 130_000)]


class QuantizedTest(DaemonTest):
    """An engine that stores 8 bits, for all tests; and others beside it."""

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.one = cls.engine("8")
        cls.cold = cls.one.ask(*TEXTS, max_tokens=24)

    @classmethod
    def engine(cls, format: str, **settings: object) -> Engine:
        folder = cls.folder / f"format {format}"
        folder.mkdir()
        engine = Engine(
            folder,
            "engine",
            cls.daemon.address,
            module="looking",
            environment={"PREFIXD_LOOKS": str(folder)},
            extra={"format": format},
            **settings,
        )
        cls.addClassCleanup(engine.end)
        engine.wait_until_shared()
        return engine

    def hits(self, engine: Engine, tokens: list[int]) -> bool:
        return engine.ask(tokens, max_tokens=1, forget=True).external_hits == most(len(tokens))

    def test_greedy_text_of_8_bits_is_that_of_computed_prompts(self) -> None:
        for text, cold in zip(TEXTS, self.cold.each, strict=True):
            self.assertEqual(cold.cached, 0)
            wait_for("hits", lambda text=text, cold=cold: self.loads(text, cold))

    def loads(self, text: list[int], cold: Answer) -> bool:
        loaded = self.one.ask(text, max_tokens=24, forget=True)
        self.assertEqual(loaded[0].tokens, cold.tokens)
        return loaded.external_hits == most(len(text))

    def test_loaded_rows_are_within_half_a_step_of_the_saved_ones(self) -> None:
        self.check(self.one, "8", (8, 8))

    def test_each_format_is_a_space_and_any_engine_reads_its_rows(self) -> None:
        wait_for("hits of 8 bits", lambda: self.hits(self.one, TEXTS[0]))
        other = self.engine("8,4", one_process=True)
        self.assertEqual(other.ask(TEXTS[0], max_tokens=1).external_hits, 0)
        loaded = self.check(other, "8,4", (8, 4))
        other.end()
        address, count = self.daemon.address, most(len(OTHER))
        with space_of(address, MODEL, layers_of(*RAW)) as space:
            for tokens in (TEXTS[0], OTHER):
                self.assertEqual(space.match(tokens).restorable_tokens, 0)
        format = prefixd.mlx_affine(8, GROUP, "float32", value_bits=4)
        with space_of(address, MODEL, layers_of(format)) as space, space.acquire(OTHER) as lease:
            for layer in range(LAYERS):
                found = lease.gather(layer, count)
                assert found is not None, lease.error
                for side, planes, bits in zip(loaded[layer], found, (8, 4), strict=True):
                    np.testing.assert_array_equal(side, dequantized(planes, bits))

    def check(self, engine: Engine, format: str, bits: tuple[int, int]) -> NDArray[np.float32]:
        """Stores a prompt, loads it, and compares. Returns what was loaded."""
        cold = engine.ask(OTHER, max_tokens=1)
        self.assertEqual(cold.external_hits, 0)
        saved = self.rows(format, "saved")
        wait_for("hits", lambda: self.hits(engine, OTHER))
        loaded = self.rows(format, "loaded")
        self.assertEqual(saved.shape, (LAYERS, 2, HEADS, most(len(OTHER)), DIM))
        self.assertFalse(np.array_equal(saved, loaded))
        for side in (0, 1):
            error = np.abs(saved[:, side] - loaded[:, side])
            self.assertLessEqual((error - bound(saved[:, side], bits[side], 1e-6)).max(), 0)
        return loaded

    def rows(self, format: str, which: str) -> NDArray[np.float32]:
        with np.load(self.folder / f"format {format}" / f"{which}.npz") as found:
            return found["rows"]

    def test_a_corrupt_page_is_computed_again(self) -> None:
        before = self.one.ask(LONG, max_tokens=24)
        wait_for("hits", lambda: self.hits(self.one, LONG))
        assert self.daemon.control("flush") is not None
        self.daemon.stop()
        self.daemon.lose_arena()
        damage(self.folder / "d" / "ssd")
        self.start_daemon()
        self.daemon.wait_for_sessions(2)

        def recovers() -> bool:
            answers = self.one.ask(LONG, max_tokens=24, forget=True)
            self.assertEqual(answers[0].tokens, before[0].tokens)
            return "Recovered from KV load failure" in self.one.log()

        wait_for("a load that fails", recovers)
        wait_for("all of it to be there again", lambda: self.hits(self.one, LONG))

    def test_a_killed_prefixd_costs_hits_alone(self) -> None:
        new = prompt(110_000, 700)
        before = self.one.ask(new, max_tokens=24)
        wait_for("hits", lambda: self.hits(self.one, new))
        self.daemon.stop(signal.SIGKILL)
        gone = self.one.ask(new, max_tokens=24, forget=True)
        self.assertEqual((gone.external_hits, gone[0].tokens), (0, before[0].tokens))
        self.start_daemon()
        wait_for("hits again", lambda: self.hits(self.one, new))


def bound(rows: NDArray[np.float32], bits: int, slack: float) -> NDArray[np.float32]:
    """Returns how far each element of the rows [..., dim] may be off: half a step between codes.
    MLX changes the step so that zero has a code, by half a step at most over all codes; so the
    elements at the edge next to zero may be off by a whole one. `slack`: of the largest number,
    for rounding."""
    groups = rows.reshape(*rows.shape[:-1], -1, GROUP)
    low, high = groups.min(-1, keepdims=True), groups.max(-1, keepdims=True)
    codes = 2**bits - 1
    step = (high - low) / (codes - 1)
    edge = np.where(np.abs(low) > np.abs(high), high, low)
    steps = np.where(np.abs(groups - edge) <= step, 1.0, 0.5)
    off = steps * step + slack * np.maximum(np.abs(low), np.abs(high))
    return off.reshape(rows.shape)


def dequantized(planes: tuple[NDArray, ...], bits: int) -> NDArray[np.float32]:
    """Returns rows [heads, tokens, dim] of MLX's codes, by NumPy alone."""
    words, scales, biases = (plane[0] for plane in planes)
    codes = (words[..., None] >> np.arange(0, 32, bits, dtype=np.uint32)) & (2**bits - 1)
    groups = codes.reshape(*scales.shape, GROUP).astype(np.float32)
    return (groups * scales[..., None] + biases[..., None]).reshape(*words.shape[:-1], -1)


class PagesTest(unittest.TestCase):
    def test_a_format_that_does_not_exist_is_refused_with_those_that_do(self) -> None:
        for format in ("8", "8,4", "4", "raw"):
            self.assertEqual(Options.of({"format": format}).format, format)
        for wrong in ("6", "4,8", "8, 4", "fp8", ""):
            with self.assertRaises(OptionError) as refusal:
                Options.of({"format": wrong})
            self.assertEqual(
                str(refusal.exception),
                f"format is {wrong!r}, must be one of 'raw', '8', '8,4', '4'",
            )
        with self.assertRaisesRegex(OptionError, "format is 8, must be of type str"):
            Options.of({"format": 8})

    def test_whole_pages_are_not_quantized(self) -> None:
        Options.of({"format": "raw", "rows": False})
        with self.assertRaisesRegex(
            OptionError, "format is '8', must be 'raw' where rows is false"
        ):
            Options.of({"format": "8", "rows": False})
        with self.assertRaisesRegex(ValueError, "rows .* in pages of Opaque: format must be 'raw'"):
            fake_pages(Opaque(), 64, (8, 8))
        self.assertIsNotNone(fake_pages(Opaque(), 64, None))

    def test_groups_are_the_largest_that_divide_a_row(self) -> None:
        for dim, group in ((64, 64), (128, 64), (192, 64), (32, 32), (96, 32), (160, 32)):
            format = fake_pages(Writer(), dim, (8, 4)).layer().formats[0]
            self.assertEqual(format, prefixd.mlx_affine(8, group, "float32", value_bits=4))
        for dim in (16, 48, 80, 112):
            with self.assertRaisesRegex(ValueError, f"64 or 32 do not divide its rows of {dim}"):
                fake_pages(Writer(), dim, (8, 4))
            self.assertEqual(
                fake_pages(Writer(), dim, None).layer().formats, (prefixd.raw("float32"),)
            )


if __name__ == "__main__":
    unittest.main()
