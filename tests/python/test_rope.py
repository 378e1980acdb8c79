"""X2: the Rope of any configuration. One meaning is one space, two meanings are two."""

import copy
import hashlib
import json
import random
import shutil
import subprocess
import unittest
from dataclasses import dataclass
from pathlib import Path

import prefixd
from support import BUILD, DaemonTest

DATA = Path(__file__).resolve().parents[1] / "data"
LAYER = prefixd.FullLayer(2, 64, 64, [prefixd.raw("float16")])


@dataclass(frozen=True)
class Row:
    """A published configuration, and the row that means the same: "" where none before it does."""

    name: str
    config: dict
    like: str = ""


with open(DATA / "rope" / "configurations.jsonl") as lines:
    ROWS = [Row(**json.loads(line)) for line in lines]
BY_NAME = {row.name: row for row in ROWS}


def open_space(client, rope, **given):
    given = {"model": "rope", "weights": bytes([4]) * 32, "layers": [LAYER], **given}
    return client.open_space(rope=rope, **given)


THETAS = ({}, {"rope_theta": 1e4}, {"rope_theta": 1e6})


def paths_in(config, kinds, path=()):
    """Where in a configuration values of these kinds stand."""
    for name, value in config.items() if isinstance(config, dict) else enumerate(config):
        if isinstance(value, (dict, list)):
            yield from paths_in(value, kinds, (*path, name))
        elif isinstance(value, kinds):
            yield (*path, name)


def numbers_about_rope(config):
    """Where numbers stand of which each counts: not those that only a quotient or a share is of."""
    text = json.dumps(config)
    sizes = ["hidden_size", "num_attention_heads", "n_embd", "n_head", "d_model", "n_heads"]
    sizes += ["head_dim", "num_hidden_layers", "qk_nope_head_dim", "clip_qkv", "kv_n_heads"]
    if not any(f'"{kind}"' in text for kind in ("dynamic", "longrope", "su")):
        sizes.append("max_position_embeddings")
    for path in paths_in(config, (int, float)):
        value = config
        for name in path:
            value = value[name]
        if path[-1] not in sizes and not isinstance(value, bool):
            yield path


def changed(config, path, change):
    """The configuration with another value at `path`."""
    config = copy.deepcopy(config)
    inner = config
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = change(inner.get(path[-1]) if isinstance(inner, dict) else inner[path[-1]])
    return config


class X2PublishedConfigurations(DaemonTest):
    def setUp(self):
        super().setUp()
        self.daemon.start()
        self.client = self.attached()

    def test_X2_each_opens_a_space_that_those_of_its_meaning_share_and_no_others(self):
        self.assertGreaterEqual(len({row.like or row.name for row in ROWS}), 30)
        self.assertEqual(len(BY_NAME), len(ROWS))
        ids = {row.name: open_space(self.client, prefixd.rope_of(row.config)).id for row in ROWS}
        for row in ROWS:
            meaning = row.like or row.name
            self.assertEqual(ids[row.name], ids[meaning], row.name)
            self.assertEqual(len(ids[row.name]), 64, row.name)
            self.assertEqual(BY_NAME[meaning].like, "", row.name)
        meanings = [ids[row.name] for row in ROWS if not row.like]
        self.assertEqual(len(set(meanings)), len(meanings))

    def test_X2_garbage_in_any_field_opens_a_space(self):
        rng = random.Random(2)
        for _ in range(400):
            config = garbled(rng, copy.deepcopy(rng.choice(ROWS).config))
            head_dim = rng.choice((None, None, 128, 64, 1, 0, 7, 10**6, -2))
            rope = prefixd.rope_of(config, head_dim)
            self.assertEqual(len(open_space(self.client, rope).id), 64, config)

    def test_X2_what_the_daemon_refuses_is_told_apart_all_the_same(self):
        refused = (0, 0.0, -1, -2, 1e400, -1e400, float("nan"), 10**400, 10**400 + 1, 2**53 + 1)
        refused += ("10000", "", "x" * 100_000, [], {}, True, False, [10000.0])
        configs = [{"model_type": "llama", "rope_theta": theta} for theta in refused]
        configs += [{"model_type": "llama", "partial_rotary_factor": share} for share in refused]
        configs += [
            {"model_type": "llama", "rope_scaling": value} for value in refused if value != {}
        ]
        configs += [
            {"model_type": "llama", "rope_scaling": {"type": "linear", "factor": factor}}
            for factor in refused[4:]
        ]
        configs += [{"model_type": "gptj", "rotary_dim": dims} for dims in (1, 63, 65, 63.5, 16386)]
        ropes = [prefixd.rope_of(config, 128) for config in configs]
        ids = [open_space(self.client, rope).id for rope in ropes]
        # 0 and 0.0 are one number, three times: theta, share, and rope_scaling.
        self.assertEqual(len(set(ids)), len(ids) - 3)

    def test_X2_nested_more_deeply_than_a_stack_a_field_still_counts(self):
        def nested(depth, core):
            for _ in range(depth):
                core = {"a": [core]}
            return {"model_type": "llama", "rope_of_tomorrow": core}

        ropes = [prefixd.rope_of(nested(10_000, core), 128) for core in (1, 2)]
        self.assertNotEqual(*(open_space(self.client, rope).id for rope in ropes))


def garbled(rng, config):
    """A configuration with values of any kind in its fields about RoPE, and unknown ones."""
    values = (
        0, -1, 1, 2, 3.5, -0.0, 1e308, 1e-320, 1e400, float("nan"), 10**400, 2**63, True, False,
        None, "", "default", "yarn", "longrope", "nope", "\ud800\0", "x" * 10_000, [], {}, [[]],
        [None, "a"], [1.0] * 2000, {"rope_type": "linear"}, {"full_attention": None},
        {"full_attention": {"rope_theta": "a"}, "sliding_attention": [1]}, {"sliding_attention": {}},
        {"": {"type": []}}, {"rope_type": {"a": 1}, "type": ["b"]},
        {"type": "longrope", "short_factor": 1.0},
    )  # fmt: skip
    names = (
        "rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "rotary_pct",
        "type", "rotary_dim", "rotary_emb_base", "rope_local_base_freq", "rope_traditional",
        "rope_interleave", "qk_rope_head_dim", "head_dim", "global_head_dim", "hidden_size",
        "num_attention_heads", "no_rope_layers", "no_rope_layer_interval", "num_hidden_layers",
        "max_position_embeddings", "original_max_position_embeddings", "position_embedding_type",
        "alibi", "text_config", "rope_of_tomorrow", "rotary_of_tomorrow", "rope_type", "factor",
        "mrope_section", "beta_fast", "mscale", "mscale_all_dim", "attention_factor",
        "short_factor", "model_type", "attn_config",
    )  # fmt: skip
    for _ in range(rng.randrange(1, 5)):
        inner = config
        deeper = [value for value in inner.values() if isinstance(value, dict)]
        while deeper and rng.random() < 0.5:
            inner = rng.choice(deeper)
            deeper = [value for value in inner.values() if isinstance(value, dict)]
        inner[rng.choice(names)] = copy.deepcopy(rng.choice(values))
    return config


class X2OneChangeIsAnotherRope(unittest.TestCase):
    # Defaults of a family or a scaling, which may be said or not.
    SAID_FOR_NOTHING = {
        "rope_theta": (10000, 150000, 160000, 500000, 1000000, 5000000),
        "rotary_emb_base": (10000,),
        "global_rope_theta": (160000,),
        "local_rope_theta": (10000,),
        "rope_local_base_freq": (10000,),
        "partial_rotary_factor": (0.25, 0.5, 1),
        "rotary_pct": (0.25, 1),
        "beta_fast": (32,),
        "beta_slow": (1,),
        "low_freq_factor": (1,),
        "high_freq_factor": (4,),
        "no_rope_layer_interval": (4,),
    }
    SAID_TWICE = ("original_max_position_embeddings", "qk_rope_head_dim")  # by rows that have both

    def test_X2_of_any_number_about_rope(self):
        rng = random.Random(1)
        changes = (
            lambda n: n + 1,
            lambda n: n * 2 + 1,
            lambda n: n * 1.001 + 1e-9,
            lambda n: -n - 1,
        )
        changes += (lambda n: str(n), lambda n: [n], lambda n: 10**400 + int(n))
        for row in ROWS:
            rope = prefixd.rope_of(row.config)
            for path in numbers_about_rope(row.config):
                for change in rng.sample(changes, 3):
                    config = changed(row.config, path, change)
                    self.assertNotEqual(prefixd.rope_of(config), rope, f"{row.name}: {path}")

    def test_X2_of_a_number_that_is_taken_away_unless_it_is_the_default(self):
        for row in ROWS:
            rope = prefixd.rope_of(row.config)
            for path in numbers_about_rope(row.config):
                value = row.config
                for name in path:
                    value = value[name]
                less = prefixd.rope_of(changed(row.config, path, lambda _: None))
                if less == rope and path[-1] not in self.SAID_TWICE:
                    defaults = self.SAID_FOR_NOTHING.get(path[-1], ())
                    self.assertIn(value, defaults, f"{row.name}: {path}")

    def test_X2_of_any_text_or_flag_about_rope(self):
        for row in ROWS:
            rope = prefixd.rope_of(row.config)
            for path in paths_in(row.config, (str, bool)):
                if path[-1] == "model_type":
                    continue
                config = changed(row.config, path, lambda value: f"{value} of tomorrow")
                self.assertNotEqual(prefixd.rope_of(config), rope, f"{row.name}: {path}")

    def test_X2_of_a_field_that_nobody_here_knows(self):
        for row in ROWS:
            rope = prefixd.rope_of(row.config)
            for name in ("rope_of_tomorrow", "rotary_of_tomorrow", "use_rope", "ntk_of_tomorrow"):
                others = [
                    prefixd.rope_of({**row.config, name: value}) for value in (0, 1, "a", False)
                ]
                self.assertEqual(len({rope, *others}), 5, f"{row.name}: {name}")
                self.assertEqual(prefixd.rope_of({**row.config, name: None}), rope)

    def test_X2_of_what_engines_take_for_different_things_where_it_is_unsaid(self):
        yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
        llama3 = {"rope_type": "llama3", "factor": 8.0}
        for configs in (
            [{"model_type": "qwen2", **theta} for theta in THETAS],
            [{"model_type": "of tomorrow", **theta} for theta in THETAS],
            [{**theta} for theta in THETAS],
            [
                {"model_type": "llama", "rope_scaling": {**yarn, "mscale_all_dim": 1.0, **more}}
                for more in ({}, {"mscale": 1.0}, {"mscale": 0})
            ],
            [
                {"model_type": "llama", "max_position_embeddings": most, "rope_scaling": llama3}
                for most in (8192, 16384)
            ],
            [
                {"model_type": "of tomorrow", "rope_theta": 1e4, "rope_interleave": said}
                for said in (None, False, True)
            ],
        ):
            ropes = {prefixd.rope_of(config, 128) for config in configs}
            self.assertEqual(len(ropes), len(configs), configs)

    def test_X2_of_what_one_of_two_places_says(self):
        twice = BY_NAME["Qwen2.5-VL 7B, said twice"].config
        once = BY_NAME["Qwen2.5-VL 7B"].config
        llama = BY_NAME["Llama 3.1 8B"].config
        both = {**llama, "rope_parameters": {**llama["rope_scaling"], "rope_theta": 500000.0}}
        self.assertEqual(prefixd.rope_of(both), prefixd.rope_of(llama))
        ropes = [
            prefixd.rope_of(config)
            for config in (
                once,
                {**twice, "rope_theta": 2e6},
                {**twice, "rope_scaling": None, "rope_theta": 3e6},
                changed(twice, ("text_config", "rope_theta"), lambda _: 2e6),
                llama,
                {**both, "rope_theta": 2e6},
                changed(both, ("rope_scaling", "factor"), lambda _: 4.0),
                changed(both, ("rope_parameters", "factor"), lambda _: 4.0),
                changed(both, ("rope_parameters", "type"), lambda _: "linear"),
            )
        ]
        self.assertEqual(len(set(ropes)), len(ropes))


class X2WhatItIsCalled(unittest.TestCase):
    """Names and orders that other clients write too, and that stand on disks."""

    def rope(self, name):
        return prefixd.rope_of(BY_NAME[name].config)

    def test_X2_scalings_have_their_names_and_numbers_in_their_order(self):
        for name, rope in (
            ("Llama 2 7B", prefixd.Rope(10000, 128)),
            ("Llama 3.1 8B", prefixd.Rope(500000, 128, "llama3", (8, 1, 4, 8192))),
            ("LongChat 7B 16k", prefixd.Rope(10000, 128, "linear", (8,))),
            ("Gemma 3 1B", prefixd.Rope(1e6, 256, "local", (10000,))),
            ("Gemma 3 27B", prefixd.Rope(1e6, 128, "linear+local", (8, 10000))),
            ("Qwen2.5 7B, 128k", prefixd.Rope(1e6, 128, "yarn", (4, 32768, 32, 1, 1, 0))),
            (
                "DeepSeek V3",
                prefixd.Rope(1e4, 64, "yarn", (40, 4096, 32, 1, 1, 1), interleaved=True),
            ),
            ("InternLM3 8B", prefixd.Rope(5e7, 128, "dynamic", (6, 32768))),
            ("Qwen2.5-VL 7B", prefixd.Rope(1e6, 128, "mrope", (16, 24, 24))),
            ("GPT-J 6B", prefixd.Rope(10000, 64, interleaved=True)),
            ("Pythia 1.4B", prefixd.Rope(10000, 32)),
            ("GPT-2", prefixd.Rope()),
        ):
            self.assertEqual(self.rope(name), rope, name)
        factors = self.rope("Phi-3.5 mini")
        self.assertEqual((factors.scaling, len(factors.scaling_params)), ("longrope", 99))
        self.assertEqual(factors.scaling_params[:4], (4096.0, 131072.0, 48.0, 1.0))
        yarn = self.rope("OLMo 3 7B")
        self.assertEqual(yarn.scaling, "yarn+local")
        self.assertEqual(yarn.scaling_params[6:], (1.2079441541679836, 500000.0))

    def test_X2_what_is_left_to_say_stands_in_a_digest_that_stays(self):
        for name, scaling in DIGESTS.items():
            self.assertEqual(self.rope(name).scaling, scaling, name)

    def test_X2_lists_of_more_numbers_than_the_daemon_takes_stand_in_the_digest(self):
        def longrope(count, last):
            factors = {"short_factor": [1.5] * count, "long_factor": [2.5] * (count - 1) + [last]}
            return prefixd.rope_of(
                {"rope_theta": 1e4, "rope_scaling": {"type": "longrope", **factors}}, 128
            )

        self.assertEqual(len(longrope(510, 1.0).scaling_params), 1023)
        self.assertEqual(longrope(511, 1.0).scaling_params, ())
        self.assertNotEqual(longrope(511, 1.0), longrope(511, 2.0))

    def test_X2_the_callers_head_dim_counts_before_the_configurations(self):
        config = BY_NAME["Qwen3-Next 80B"].config
        self.assertEqual(prefixd.rope_of(config, 128).rotary_dim, 32)
        self.assertEqual(prefixd.rope_of(BY_NAME["DeepSeek V3"].config, 576).rotary_dim, 64)


DIGESTS = {
    "Llama 4 Scout": "llama3:e990774302d93ea22ce2741bcf529091",
    "Qwen3.5": "mrope:292ca919df023c2fa3cb03fa751652f9",
    "Gemma 4 E2B": "proportional+local:3524c7d338f843dd39545649a0e67aef",
    "gpt-oss 20B": "yarn:8213a2815ca499a503a74eb284065599",
    "Granite 4.0 H": "none:8339fe9655255eacb2b5a959004c063c",
    "SmolLM3 3B": "default:0ed7b415b09ee37436feeef384eaa7cc",
}


class X2TheWorkerInCpp(DaemonTest):
    """prefixd-worker reads config.json itself: of one meaning it must be one space."""

    def setUp(self):
        super().setUp()
        self.daemon.start()

    def space_of_worker(self, checkpoint):
        worker = [BUILD / "prefixd-worker", "--model", checkpoint, "--tokens", "1,2,3"]
        worker += ["--max-tokens", "1", "--server", self.daemon.address]
        subprocess.run(worker, check=True, capture_output=True, timeout=120)
        control = [BUILD / "prefixctl", "--server", self.daemon.address, "spaces", "--json"]
        said = subprocess.run(control, check=True, capture_output=True, timeout=120, text=True)
        return [
            space["space_id"]
            for space in json.loads(said.stdout)["spaces"]
            if space["model"] == checkpoint.name
        ]

    def test_X2_shares_its_space_with_an_engine_in_python(self):
        linear = {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}
        unsaid = {"rope_theta": None, "rope_local_base_freq": None}
        flat = {
            "rope_scaling": None,
            "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
        }
        for name, family, fields in (
            ("llama3", "llama3", {}),
            ("llama3 linear", "llama3", linear),
            ("llama3 default", "llama3", flat),
            ("gemma3", "gemma3", {}),
            ("gemma3 linear", "gemma3", {**linear, **unsaid}),
            ("qwen3", "qwen3", {}),
        ):
            checkpoint = Path(shutil.copytree(DATA / "tiny" / family, self.folder / name))
            config = {**json.loads((checkpoint / "config.json").read_text()), **fields}
            config = {field: value for field, value in config.items() if value is not None}
            (checkpoint / "config.json").write_text(json.dumps(config))
            space = open_space(
                self.attached(),
                prefixd.rope_of(config),
                model=name,
                weights=prefixd.digest_checkpoint(checkpoint),
                tokenizer=hashlib.sha256(b"prefixd: token id = byte value").digest(),
                layers=layers_of(config),
            )
            self.assertEqual(self.space_of_worker(checkpoint), [space.id], name)


def layers_of(config):
    shape = (config["num_key_value_heads"], config["head_dim"], config["head_dim"])
    formats = [prefixd.raw("float32")]
    layers = [prefixd.FullLayer(*shape, formats)] * config["num_hidden_layers"]
    every = config.get("sliding_window_pattern", 1)
    for at in range(len(layers)):
        if (at + 1) % every != 0:
            layers[at] = prefixd.SlidingLayer(*shape, formats, window=config["sliding_window"])
    return layers
