"""Requests with a LoRA adapter: V3."""

from __future__ import annotations

import json
import shutil
import unittest
from pathlib import Path

import torch
from engines import MODEL, DaemonTest, Engine, most, prompt
from prefixd_process import wait_for
from safetensors.torch import save_file
from stored import LAYERS, RAW, layers_of, space_of

TEXT = prompt(0, 700)
HIDDEN, RANK = 320, 8
WIDTHS = {"q_proj": 512, "k_proj": 128, "v_proj": 128}  # of their outputs


def write_adapter(folder: Path, seed: int) -> Path:
    """An adapter of the shipped model, loud enough to change its text. The same bytes for the same
    seed."""
    folder.mkdir()
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(LAYERS):
        for name, width in WIDTHS.items():
            place = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            for side, shape in (("A", (RANK, HIDDEN)), ("B", (width, RANK))):
                tensors[f"{place}.lora_{side}.weight"] = 0.1 * torch.randn(
                    shape, generator=generator
                )
    save_file(tensors, folder / "adapter_model.safetensors")
    said = {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": 2 * RANK,
        "target_modules": list(WIDTHS),
        "bias": "none",
        "base_model_name_or_path": "model",
    }
    (folder / "adapter_config.json").write_text(json.dumps(said))
    return folder


class LoraTest(DaemonTest):
    """An engine that stores under two adapters and under none, and one that comes after it."""

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        folders = [write_adapter(cls.folder / name, seed) for seed, name in enumerate("abc")]
        cls.a, cls.b, cls.c = (
            (f"adapter {folder.name}", at + 1, str(folder)) for at, folder in enumerate(folders)
        )
        alone = cls.engine("alone", shared=False, one_process=True)
        cls.expected = {lora: alone.ask(TEXT, lora=lora)[0].tokens for lora in (None, cls.a, cls.b)}
        alone.end()
        cls.first = cls.engine("first")
        cls.cold = cls.first.ask(TEXT, lora=cls.a)
        wait_for("hits", lambda: cls.hits(cls.first, cls.a))

    @classmethod
    def engine(cls, name: str, shared: bool = True, one_process: bool = False) -> Engine:
        engine = Engine(
            cls.folder,
            name,
            cls.daemon.address if shared else None,
            one_process=one_process,
            enable_lora=True,
            max_lora_rank=RANK,
            max_loras=3,
        )
        cls.addClassCleanup(engine.end)
        engine.wait_until_shared()
        return engine

    @classmethod
    def hits(cls, engine: Engine, lora: tuple[str, int, str] | None) -> bool:
        answers = engine.ask(TEXT, max_tokens=1, lora=lora, forget=True)
        return answers.external_hits == most(len(TEXT))

    def test_V3_an_adapter_hits_nothing_of_another_one_or_of_the_model_and_all_of_its_own(self):
        self.assertEqual(len({str(tokens) for tokens in self.expected.values()}), 3)
        self.assertEqual(self.cold[0].tokens, self.expected[self.a])
        for lora in (None, self.b):
            other = self.first.ask(TEXT, lora=lora, forget=True)
            self.assertEqual(other.external_hits, 0)
            self.assertEqual(other[0].tokens, self.expected[lora])
            wait_for("hits", lambda lora=lora: self.hits(self.first, lora))
        for lora, tokens in self.expected.items():
            again = self.first.ask(TEXT, lora=lora, forget=True)
            self.assertEqual(again.external_hits, most(len(TEXT)))
            self.assertEqual(again[0].tokens, tokens)

    def test_V3_another_server_finds_them_by_the_files_whatever_their_name_and_number(self):
        moved = shutil.copytree(self.a[2], self.folder / "elsewhere")
        second = self.engine("second", one_process=True)
        renamed = ("another name", 7, str(moved))
        found = second.ask(TEXT, lora=renamed)
        self.assertEqual(found.external_hits, most(len(TEXT)))
        self.assertEqual(found[0].tokens, self.expected[self.a])
        second.end()

    def test_V3_an_adapter_whose_files_change_is_not_shared_any_more_and_the_log_says_so(self):
        before = self.first.ask(TEXT, lora=self.c)
        self.assertEqual(before.external_hits, 0)
        wait_for("hits", lambda: self.hits(self.first, self.c))
        config = Path(self.c[2]) / "adapter_config.json"
        config.write_text(config.read_text().replace('"lora_alpha": 16', '"lora_alpha": 8'))
        after = self.first.ask(TEXT, lora=self.c, forget=True)
        self.assertEqual((after.external_hits, after[0].tokens), (0, before[0].tokens))
        self.assertIn("adapter c are computed without prefixd: it changed", self.first.log())

    def test_an_engine_that_knows_the_model_alone_finds_nothing_of_an_adapter(self):
        text = prompt(20_000, 500)
        self.first.ask(text, lora=self.b, max_tokens=1)
        wait_for(
            "hits",
            lambda: self.first.ask(text, max_tokens=1, lora=self.b, forget=True).external_hits,
        )
        with space_of(self.daemon.address, MODEL, layers_of(*RAW)) as space:
            self.assertEqual(space.match(text).restorable_tokens, 0)


if __name__ == "__main__":
    unittest.main()
