"""Who shares: models whose rows are the same, and no others."""

import json
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.tuner.utils import linear_to_lora_layers
from prefixd.mlx import Model
from rows import WithDaemon, prompt, same_bits

ME = "model"


class ModelsOfTheSameWeights(WithDaemon):
    def copy_with(self, name: str, **fields: Any) -> Model:
        """The checkpoint with other fields in its config.json."""
        path = shutil.copytree(self.checkpoint, self.folder / name)
        config = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps({**config, **fields}))
        return Model(mlx_lm.load(str(path))[0], str(path))

    def shared_with(self, other: Model) -> int:
        """Tokens of 100 that a server of `other` has of what one of the checkpoint saved."""
        tokens = prompt(100, seed=1)
        named = {"model_name": "the same"}
        self.prompt_cache(**named).insert_cache(ME, tokens, self.engine_caches(100))
        _, rest = self.prompt_cache(models=[other], **named).fetch_nearest_cache(ME, [*tokens, 1])
        return 101 - len(rest)

    def test_share_nothing_when_another_eps_makes_other_rows(self):
        self.assertEqual(self.shared_with(self.copy_with("eps", rms_norm_eps=1e-3)), 0)

    def test_share_nothing_when_a_field_differs_that_nobody_here_knows(self):
        self.assertEqual(self.shared_with(self.copy_with("field", some_scale={"of": 2})), 0)

    def test_share_everything_when_only_where_they_come_from_differs(self):
        copy = self.copy_with("copy", _name_or_path="a/b", transformers_version="9", eos_token_id=9)
        self.assertEqual(self.shared_with(copy), 100)


class Adapters(WithDaemon):
    """LoRA as mlx-lm saves it: the same tensors mean other rows at another scale."""

    def write_adapter(self, name: str, scale: float) -> Path:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        config = {
            "fine_tune_type": "lora",
            "num_layers": 2,
            "lora_parameters": {"rank": 4, "scale": scale, "dropout": 0.0},
        }
        (folder / "adapter_config.json").write_text(json.dumps(config))
        model, _ = mlx_lm.load(str(self.checkpoint))
        linear_to_lora_layers(model, config["num_layers"], config["lora_parameters"])
        lora = {
            path: mx.random.normal(value.shape, key=mx.random.key(number))
            for number, (path, value) in enumerate(tree_flatten(model.parameters()))
            if path.endswith(("lora_a", "lora_b"))
        }
        mx.save_safetensors(str(folder / "adapters.safetensors"), lora)
        return folder

    def load(self, adapter: Path) -> Model:
        model, _ = mlx_lm.load(str(self.checkpoint), adapter_path=str(adapter))
        return Model(model, str(self.checkpoint), str(adapter))

    def caches_of(self, model: Model, tokens: list[int]) -> list[Any]:
        caches = make_prompt_cache(model.module)
        model.module(mx.array([tokens]), cache=caches)
        return caches

    def test_of_one_scale_share_and_of_another_do_not_nor_does_the_bare_model(self):
        tokens = prompt(100, seed=1)
        one, two = (self.load(self.write_adapter(f"scale {s}", s)) for s in (4.0, 8.0))
        caches = self.caches_of(one, tokens)
        self.assertFalse(same_bits(caches, self.caches_of(two, tokens)))
        self.prompt_cache(models=[one]).insert_cache(ME, tokens, caches)
        again, rest = self.prompt_cache(models=[one]).fetch_nearest_cache(ME, [*tokens, 1])
        self.assertEqual(len(rest), 1)
        self.assertTrue(same_bits(again, caches))
        for other in (two, Model(self.model, str(self.checkpoint))):
            found, _ = self.prompt_cache(models=[other]).fetch_nearest_cache(ME, [*tokens, 1])
            self.assertIsNone(found)
