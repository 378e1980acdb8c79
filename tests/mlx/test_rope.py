"""X2: what mlx-lm's models turn their keys by is what rope_of() and rotation() tell apart."""

import importlib
import itertools
import json
import random
import shutil
import unittest

import mlx.core as mx
import mlx_lm
import prefixd
from mlx_lm.models.cache import make_prompt_cache
from prefixd.mlx import Model, geometry
from rows import WithDaemon, prompt, same_bits

SIZES = {
    "hidden_size": 128,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 64,
    "rms_norm_eps": 1e-5,
    "layer_norm_epsilon": 1e-5,
    "layer_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "max_position_embeddings": 128,
    "sliding_window": 32,
    "attention_bias": False,
    "use_qkv_bias": False,
    "use_parallel_residual": False,
}
LINEAR = [{"type": "linear", "factor": factor} for factor in (1.0, 2.0, 2)]
LINEAR += [{"rope_type": "linear", "factor": 2.0}]
LLAMA3 = [
    {"rope_type": "llama3", "factor": factor, "original_max_position_embeddings": 32, **more}
    for factor in (2.0, 4.0)
    for more in ({}, {"low_freq_factor": 1.0, "high_freq_factor": 4.0}, {"low_freq_factor": 2.0})
]
YARN = [
    {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, **more}
    for more in (
        {},
        {"beta_fast": 32, "beta_slow": 1},
        {"beta_fast": 16},
        {"mscale": 1.0, "mscale_all_dim": 0},
        {"mscale": 1.0, "mscale_all_dim": 1.0},
        {"mscale_all_dim": 1.0},
        {"mscale": 0.7},
    )
]
LONG = [
    {"type": kind, "short_factor": [1.0] * 32, "long_factor": [1.0] * 31 + [last]}
    for kind in ("su", "longrope")
    for last in (1.0, 2.0)
]
THETAS = [{}, {"rope_theta": 10000}, {"rope_theta": 10000.0}, {"rope_theta": 5e5}]
NONE = [{}, {"rope_scaling": None}]


def scaled(*scalings):
    return NONE + [{"rope_scaling": scaling} for scaling in itertools.chain(*scalings)]


TRADITIONAL = [{}, {"rope_traditional": False}, {"rope_traditional": True}]
SHARES = [{"partial_rotary_factor": share} for share in (0.25, 0.5, 1.0)]
# By the module of mlx_lm.models: what each of several fields may be.
SPACES = {
    "llama": (THETAS, scaled(LINEAR, LLAMA3, YARN), TRADITIONAL),
    "mixtral": (
        [*THETAS, {"rope_theta": 1e6}],
        TRADITIONAL,
        [{"num_local_experts": 2, "num_experts_per_tok": 1}],
    ),
    "gemma2": (THETAS, TRADITIONAL),
    "gemma3_text": (
        [*THETAS, {"rope_theta": 1e6}],
        scaled(LINEAR, LLAMA3),
        [{}, {"rope_local_base_freq": 10000}, {"rope_local_base_freq": 2e4}],
        [{"query_pre_attn_scalar": 64, "sliding_window_pattern": 2}],
    ),
    "olmo3": (
        THETAS[1:],
        scaled(LINEAR, YARN),
        [{"layer_types": ["sliding_attention", "full_attention"] * 2}],
    ),
    "phi3": (
        THETAS,
        scaled(LONG),
        [{}, SHARES[2]],
        [{"original_max_position_embeddings": n} for n in (32, 64)],
    ),
    "smollm3": (
        THETAS[1:],
        [
            {},
            {"no_rope_layers": [1, 1, 1, 0]},
            {"no_rope_layers": [1, 0, 1, 0]},
            {"no_rope_layer_interval": 2},
        ],
    ),
    "stablelm": (THETAS[1:], SHARES),
    "gpt_neox": (
        [{"rotary_emb_base": n} for n in (10000, 10000.0, 20000)],
        [{"rotary_pct": n} for n in (0.25, 0.5)],
    ),
    "gpt_oss": (
        [{}, {"rope_theta": 150000}, {"rope_theta": 1e4}],
        scaled(YARN),
        [{"num_local_experts": 2, "num_experts_per_tok": 1}],
    ),
}


def turned(family, fields):
    """A key turned by each layer of a model with this configuration."""
    module = importlib.import_module(f"mlx_lm.models.{family}")
    config = {**SIZES, "model_type": family, **fields}
    model = module.Model(module.ModelArgs.from_dict(config))
    key = mx.random.normal((1, 1, 3, SIZES["head_dim"]), key=mx.random.key(1))
    rows = []
    for layer in model.layers:
        attention = layer.attention if "attention" in layer else layer.self_attn
        rows.append(bytes(memoryview(attention.rope(key, offset=100))))
    return config, b"".join(rows)


class X2KeysThatTurnAlike(unittest.TestCase):
    def test_X2_of_one_Rope_are_the_same_bits(self):
        for family, fields in SPACES.items():
            seen = {}
            choices = list(itertools.product(*fields))
            for chosen in random.Random(3).sample(choices, min(len(choices), 120)):
                given = {name: value for part in chosen for name, value in part.items()}
                config, rows = turned(family, given)
                rope = prefixd.rope_of(config, SIZES["head_dim"])
                self.assertEqual(seen.setdefault(rope, rows), rows, f"{family}: {given}")
            self.assertGreater(len(seen), 3, family)


LINEAR_2 = {"type": "linear", "factor": 2.0}
# Ids of spaces before rope_of() was there: configuration, width of a key, id.
BEFORE = [
    ({}, 64, "ddc8ed7ca51b6c00b1e02e2397915fbf68c140a15a06c43eb24080c4ca690783"),
    (
        {"rope_scaling": None, "rope_theta": 10000.0},
        128,
        "9dd15ed97262d0fa721c042670a649a5b6c5b120f7cfb25f58be1e58503fcfca",
    ),
    (
        {"model_type": "llama", "rope_theta": 500000.0},
        128,
        "55f75f840c2e37df7deb60f5901c132e64dfc6c7721f9fcc94c526fecead8fb5",
    ),
    (
        {"model_type": "qwen2", "rope_theta": 1000000.0},
        128,
        "2ce94863427bcc40ec4423cd6b2ce2bb80100af2105a6297f3722a298688ca9d",
    ),
    (
        {"model_type": "qwen3", "rope_theta": 1000000, "head_dim": 128},
        128,
        "2ce94863427bcc40ec4423cd6b2ce2bb80100af2105a6297f3722a298688ca9d",
    ),
    (
        {"rope_theta": 10000000, "partial_rotary_factor": 0.25},
        256,
        "cb31ca2b7fb0e5e37c2c5acede6e95c922f5846ca3d0ef53114e42cf1d412fd4",
    ),
    (
        {"rope_theta": 1000000, "rope_local_base_freq": 10000, "rope_scaling": None},
        256,
        "b688fd0d098f69f01169eea33eb31756d1c1dc0c4a77918e3302f8a097c2da93",
    ),
    (
        {
            "model_type": "gemma3",
            "text_config": {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}},
        },
        256,
        "e9e5823d9cb23563bc96d79a727fd3da07f00319083074482b577664e6157353",
    ),
    (
        {"rotary_emb_base": 10000, "rotary_pct": 0.25},
        64,
        "ddc8ed7ca51b6c00b1e02e2397915fbf68c140a15a06c43eb24080c4ca690783",
    ),
    (
        {"rope_parameters": {"rope_theta": 10000.0}},
        64,
        "8e6fde59454638255b4791c959c8502ba17748373a3bdd625eef2b54d02b54eb",
    ),
    (
        {"rope_parameters": {"partial_rotary_factor": 0.5}},
        64,
        "c19de2d62372838ab6b316881f8e4c4353ec6f897fa9127341c0f0cc917f1ff5",
    ),
    (
        {"rope_scaling": LINEAR_2, "rope_theta": 10000.0},
        64,
        "cf7eded64367eeb1ea8f75c7bae272c6e6644553ba1712ae7bbc5fc69ed2eabc",
    ),
    (
        {"rope_theta": 10000.0, "rope_traditional": True},
        64,
        "78415cde8544e8f69e951c122767fcb1e3de9518ce013dc61fa1527567281ede",
    ),
    (
        {"rope_theta": 10000.0, "rope_interleave": True},
        64,
        "83faaeac81bba377c1600f44cbb9b74a35b8a05e6689472e36f9d713d1f139c7",
    ),
    (
        {"partial_rotary_factor": 0.0},
        64,
        "6045f1f64eaa7cfb1f0ce428c9d2ed35e0041b02c54a11f5dffd11072620b3fd",
    ),
    (
        {"rope_theta": "10000"},
        64,
        "ddc8ed7ca51b6c00b1e02e2397915fbf68c140a15a06c43eb24080c4ca690783",
    ),
    (
        {"rope_of_an_unknown_field": "x" * 32},
        64,
        "988da40b2afa3d408558c5851d72ba17eacd2db26ac530c43cec07a0f6206637",
    ),
]
LLAMA31 = {
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
REFUSED_BEFORE = [
    ({"rope_scaling": LLAMA31, "rope_theta": 500000.0}, 128),
    ({"rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"}}, 128),
    ({"rope_of_an_unknown_field": "x" * 33}, 64),
    ({"partial_rotary_factor": 0.334}, 64),  # 21 channels
    ({"partial_rotary_factor": -1.0}, 64),
    ({"partial_rotary_factor": 1000.0}, 64),
    ({"rope_theta": 0}, 64),
    ({"rope_theta": -1.0}, 64),
    ({"rope_theta": float("nan")}, 64),
    ({"rope_theta": 10**400}, 64),
    ({"rope_theta": "a"}, 64),
    ({"rope_theta": None}, 64),
    ({"rope_parameters": [1]}, 64),
    ({"partial_rotary_factor": "1"}, 64),
    ({"text_config": [1]}, 64),
]


class X2ModelsThatWereRefused(WithDaemon):
    def test_X2_share_their_caches(self):
        path = shutil.copytree(self.checkpoint, self.folder / "llama31")
        config = json.loads((path / "config.json").read_text())
        config = {**config, "rope_theta": 500000.0, "rope_scaling": LLAMA31}
        (path / "config.json").write_text(json.dumps(config))
        model = Model(mlx_lm.load(str(path))[0], str(path))
        tokens = prompt(100, seed=1)
        caches = make_prompt_cache(model.module)
        model.module(mx.array([tokens]), cache=caches)
        self.prompt_cache(models=[model]).insert_cache("model", tokens, caches)
        again = self.prompt_cache(models=[model])
        found, rest = again.fetch_nearest_cache("model", [*tokens, 1])
        self.assertEqual(rest, [1])
        self.assertTrue(same_bits(found, caches))


class X2SpacesThatWereThere(WithDaemon):
    def setUp(self):
        self.client = prefixd.connect(self.daemon.address)
        self.assertTrue(self.client.wait_attached(60_000), self.client.error)

    def open(self, rope):
        return self.client.open_space(
            model="rotation",
            weights=bytes([7]) * 32,
            tokenizer=bytes([8]) * 32,
            rope=rope,
            layers=[prefixd.FullLayer(2, 64, 64, [prefixd.mlx_affine(8, 64, "bfloat16")])],
        )

    def test_X2_keep_their_ids(self):
        for config, head_dim, space_id in BEFORE:
            rope = geometry.rotation(config, head_dim)
            self.assertEqual(self.open(rope).id, space_id, config)

    def test_X2_and_those_that_could_not_be_open_now(self):
        for config, head_dim in REFUSED_BEFORE:
            rope = geometry.rotation(config, head_dim)
            self.assertEqual(rope, prefixd.rope_of(config, head_dim), config)
            self.assertEqual(len(self.open(rope).id), 64, config)
