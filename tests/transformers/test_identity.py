"""Who shares with whom: another dtype, salt, adapter, RoPE or weights is another space."""

import hashlib
import json
import shutil
import unittest
from pathlib import Path
from typing import Any

import models
import peft
import torch
from models import answer, prompt
from prefixd.transformers import Options, PrefixCache
from prefixd_process import BUILD
from support import TransformersTest

MLX_PYTHON = BUILD / "mlx-venv" / "bin" / "python"
ROOT = Path(__file__).resolve().parents[2]


def with_adapter(model: Any, seed: int) -> Any:
    """The model with a LoRA that changes its keys and values."""
    torch.manual_seed(seed)
    config = peft.LoraConfig(r=4, target_modules=["k_proj", "v_proj"], init_lora_weights=False)
    return peft.get_peft_model(model, config).eval()


class Identity(TransformersTest):
    def setUp(self) -> None:
        self.ids = prompt(200, seed=21)
        self.model = self.load("llama")
        self.ask(self.shared(self.model), self.ids, 4)

    def cached(self, model: Any, **more: Any) -> int:
        return self.shared(model, **more).fetch(self.ids).get_seq_length()

    def test_V3_the_same_files_in_another_folder_share(self):
        folder = self.folder / "copy" / "llama"
        shutil.copytree(self.path("llama"), folder)
        self.assertEqual(self.cached(models.load(folder)), 199)

    def test_V3_another_dtype_salt_or_checkpoint_has_0_hits(self):
        self.assertEqual(self.cached(self.model), 199)
        self.assertEqual(self.cached(self.load("llama", torch.bfloat16)), 0)
        self.assertEqual(self.cached(self.model, salt="tenant"), 0)
        folder = self.folder / "other" / "llama"
        models.write_model(folder, "llama", seed=8)
        self.assertEqual(self.cached(models.load(folder)), 0)

    def test_V3_another_epsilon_in_the_config_has_0_hits(self):
        folder = self.folder / "epsilon" / "llama"
        shutil.copytree(self.path("llama"), folder)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-3}))
        self.assertEqual(self.cached(models.load(folder)), 0)

    def test_V3_another_tokenizer_has_0_hits(self):
        folder = self.folder / "words" / "llama"
        shutil.copytree(self.path("llama"), folder)
        file = folder / "tokenizer.json"
        file.write_text(file.read_text().replace('"w17"', '"v17"'))
        self.assertEqual(self.cached(models.load(folder)), 0)

    def test_V3_what_is_changed_when_the_model_is_loaded_has_0_hits(self):
        rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
        for change in ({"rope_parameters": rope}, {"rms_norm_eps": 1e-2}):
            with self.subTest(**change):
                self.assertEqual(self.cached(self.load("llama", **change)), 0)
        self.assertEqual(self.cached(self.load("llama", attn_implementation="eager")), 199)

    def test_V3_a_lora_has_0_hits_and_shares_with_its_like(self):
        first = with_adapter(self.load("llama"), seed=1)
        whole, cached, _ = self.ask(self.shared(first), self.ids, 4)
        self.assertEqual((whole, cached), (answer(first, self.ids, 4), 0))
        self.assertEqual(self.cached(with_adapter(self.load("llama"), seed=1)), 199)
        self.assertEqual(self.cached(with_adapter(self.load("llama"), seed=2)), 0)

    def test_V3_a_lora_that_is_switched_off_or_on_later_is_not_shared(self):
        model = with_adapter(self.load("llama"), seed=1)
        shared = self.shared(model)
        with model.disable_adapter(), self.assertLogs("prefixd.transformers") as log:
            self.assertEqual(self.ask(shared, prompt(100, seed=22), 4)[2], 0)
            self.assertEqual(self.cached(model), 199)  # the base model, opened anew
        self.assertIn("weights or adapters changed", "".join(log.output))
        self.assertEqual(self.ask(shared, prompt(100, seed=23), 4)[2], 103)

    def test_V3_weights_that_are_trained_later_are_not_shared(self):
        model = self.load("llama")
        shared = self.shared(model)
        with torch.no_grad():
            model.model.layers[0].self_attn.k_proj.weight.mul_(1.1)
        self.assertEqual(shared.fetch(self.ids).get_seq_length(), 0)
        self.assertEqual(self.ask(shared, prompt(100, seed=24), 4)[2], 0)

    def test_V3_a_model_that_is_converted_later_is_not_shared(self):
        model, ids = self.load("llama"), prompt(200, seed=31)
        shared = self.shared(model)
        model.bfloat16()
        self.assertEqual(self.ask(shared, ids, 4), (answer(model, ids, 4), 0, 0))
        self.assertEqual(self.ask(self.shared(model), ids, 4)[1:], (0, 203))

    def test_V3_keys_that_depend_on_the_length_of_the_sequence_are_not_shared(self):
        for name in ("longrope", "dynamic"):
            with self.subTest(model=name):
                model = self.load(name)
                shared, ids = self.shared(model), prompt(200, seed=32)
                short, long = ids[:100], ids
                self.assertEqual(self.ask(shared, short, 4)[1:], (0, 103))
                self.assertEqual(self.ask(shared, long, 4), (answer(model, long, 4), 0, 0))
                self.assertEqual(self.ask(shared, short, 4)[1], 99)
                # An answer that passes the limit: its keys are of two kinds.
                out = model.generate(
                    torch.tensor([short]),
                    past_key_values=shared.fetch(short),
                    return_dict_in_generate=True,
                    max_new_tokens=80,
                    do_sample=False,
                )
                self.assertEqual(shared.store(ids[:140], out.past_key_values), 0)

    def test_a_model_made_in_memory_wants_a_digest_of_its_weights(self):
        model = type(self.model)(self.model.config.__class__(**self.model.config.to_dict()))
        model.load_state_dict(self.model.state_dict())
        model.config._name_or_path = ""
        client = self.client()
        with self.assertLogs("prefixd.transformers", "WARNING"):
            refused = PrefixCache(client, model, options=Options(model_name="memory"))
        self.assertIn("made in memory", refused.why_not)
        whole = self.ask(refused, self.ids, 4)
        self.assertEqual(whole, (answer(self.model, self.ids, 4), 0, 0))
        (mine,) = [one for one in self.daemon.control("sessions")["sessions"] if one["not_shared"]]
        self.assertEqual(mine["not_shared"], [{"model": "memory", "reason": refused.why_not}])
        digest = hashlib.sha256(b"mine").digest()
        given = PrefixCache(client, model, weights=digest, options=Options(deadline_ms=30_000))
        self.assertEqual(self.ask(given, self.ids, 4)[1:], (0, 203))
        self.assertEqual(given.fetch(self.ids).get_seq_length(), 199)

    def test_prompts_with_images_are_not_shared(self):
        self.model.config.image_token_id = self.ids[50]
        shared = self.shared(self.model)
        with self.assertLogs("prefixd.transformers", "WARNING") as log:
            self.assertEqual(self.ask(shared, self.ids, 4)[1:], (0, 0))
        self.assertIn("images", log.output[0])
        text = self.ids[:50]
        self.ask(shared, text, 1)
        self.assertEqual(self.ask(shared, text, 1)[1], 49)


MLX = """
import json, sys
import mlx_lm, prefixd
from prefixd.mlx import Model, Options, open_model
from prefixd.mlx.tokens import Prompt
address, path, ids = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
model, _ = mlx_lm.utils.load_model(__import__("pathlib").Path(path)), None
shared = open_model(prefixd.connect(address), [Model(model[0], path)], Options(deadline_ms=30000))
(part,) = shared._parts
caches, count = shared.fetch(Prompt(ids))
print(json.dumps({"space": part.space.id, "cached": count}))
"""


class MlxLm(TransformersTest):
    @unittest.skipUnless(MLX_PYTHON.exists(), "mlx-lm is not installed")
    def test_mlx_lm_has_the_same_space_and_finds_what_was_stored_here(self):
        for name in ("llama", "qwen3"):
            with self.subTest(model=name):
                model, ids = self.load(name), prompt(150, seed=25)
                shared = self.shared(model)
                self.ask(shared, ids, 4)
                command = [MLX_PYTHON, "-c", MLX, self.daemon.address, self.path(name)]
                printed = self.printed_by(*command, json.dumps(ids))
                seen = json.loads(printed.splitlines()[-1])
                self.assertEqual(seen, {"space": shared.space_id, "cached": 149})


if __name__ == "__main__":
    unittest.main()
