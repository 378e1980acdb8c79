"""How long two processes on one GPU wait for the first token behind a long prefix that both use:
`tests/transformers/run BUILD_DIR first_token`. No test of times: figures depend on the machine.

Models have published shapes and random weights. The prefix is computed (cold), copied as bfloat16
from shared memory, as engines that share a cache do, or taken from prefixd, in copies and in place.
PREFIXD_TOKENS: of the prefix. PREFIXD_FAMILIES: of SHAPES, by commas."""

from __future__ import annotations

import json
import logging
import os
import statistics
import sys
import time
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

import prefixd
import prefixd.torch
import torch
from models import prompt
from prefixd.transformers import Options, PrefixCache
from prefixd_process import Daemon
from support import Child, TransformersTest
from transformers import (
    AutoModelForCausalLM,
    DynamicCache,
    Gemma3TextConfig,
    LlamaConfig,
    Qwen3Config,
)

TOKENS = int(os.environ.get("PREFIXD_TOKENS", "32768"))
FAMILIES = os.environ.get("PREFIXD_FAMILIES", "llama,qwen3,gemma3").split(",")
QUESTION_TOKENS = 64
ANSWER_TOKENS = 32
ROUNDS = 5
RAM_GIB = 16
LATE_MS = 60_000
# As published: Llama 3.1 8B, Qwen3 8B, Gemma 3 12B.
SHAPES = {
    "llama": lambda: LlamaConfig(
        vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
        num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=131072,
    ),
    "qwen3": lambda: Qwen3Config(
        vocab_size=151936, hidden_size=4096, intermediate_size=12288, num_hidden_layers=36,
        num_attention_heads=32, num_key_value_heads=8, head_dim=128, max_position_embeddings=40960,
    ),
    "gemma3": lambda: Gemma3TextConfig(
        vocab_size=262208, hidden_size=3840, intermediate_size=15360, num_hidden_layers=48,
        num_attention_heads=16, num_key_value_heads=8, head_dim=256, sliding_window=1024,
        query_pre_attn_scalar=256, max_position_embeddings=131072,
    ),
}  # fmt: skip


class Worker:
    """One of the processes: a model, and the ways that it has to a cache of the prefix."""

    def __init__(self, family: str, address: str, file: str) -> None:
        self.ids = prompt(TOKENS + QUESTION_TOKENS, seed=5)
        self.model = model = made(family)
        self.client = prefixd.connect(address)
        options = Options(
            bits=8, value_bits=4, salt=family, deadline_ms=LATE_MS, load_deadline_ms=LATE_MS,
            store_deadline_ms=LATE_MS, pin=False,
        )  # fmt: skip
        self.prefixd = PrefixCache(self.client, model, weights=b"1" * 32, options=options)
        assert not self.prefixd.why_not, self.prefixd.why_not
        self.file = Path(file)
        self.shared: list[torch.Tensor] = []
        self.pinned: Any = None

    def run(self) -> None:
        """Answers each line of its input, the name of a function and its arguments."""
        print(json.dumps("ready"), flush=True)
        for line in sys.stdin:
            name, *arguments = json.loads(line)
            print(json.dumps(getattr(self, name)(*arguments)), flush=True)

    def write(self) -> dict[str, Any]:
        """Computes the prefix, and stores it in both places."""
        cache = self.prefixd.fetch(self.ids[:TOKENS])  # empty, and notes what saving needs
        self.step(self.ids[:TOKENS], cache)
        began = time.monotonic()
        stored = self.prefixd.store(self.ids[:TOKENS], cache)
        took = time.monotonic() - began
        cache = DynamicCache(config=self.model.config)
        self.step(self.ids[:TOKENS], cache)
        sides = [side for layer in cache.layers for side in (layer.keys, layer.values)]
        self.shapes = [side.shape for side in sides]
        for to, side in zip(self.map(self.shapes), sides, strict=True):
            to.copy_(side)
        return {"stored": stored, "store_s": took, "shapes": [list(one) for one in self.shapes]}

    def map(self, shapes: list[list[int]]) -> list[torch.Tensor]:
        """Maps the file of bfloat16 rows that both processes share."""
        counts = [torch.Size(one).numel() for one in shapes]
        whole = torch.from_file(
            str(self.file), shared=True, size=sum(counts), dtype=torch.bfloat16
        )
        parts = whole.split(counts)
        self.whole = whole
        self.shared = [part.view(one) for part, one in zip(parts, shapes, strict=True)]
        return self.shared

    def attach(self, shapes: list[list[int]]) -> None:
        self.map(shapes)

    def pin(self) -> dict[str, float]:
        """Pins both memories for the GPU, as before serving. Returns what that took."""
        began = time.monotonic()
        size = self.whole.numel() * self.whole.element_size()
        code = torch.cuda.cudart().cudaHostRegister(self.whole.data_ptr(), size, 0)
        assert int(code) == 0, code
        between = time.monotonic()
        with self.prefixd._core.acquire(self.ids, TOKENS) as lease:
            lease.wait_all()
            self.pinned = prefixd.torch.gpu().pin(lease)
        return {"file_s": between - began, "arena_s": time.monotonic() - between}

    def measure(self, way: str, rounds: int = ROUNDS) -> dict[str, Any]:
        """The median time to a first token and to the cache alone, and the answer's beginning."""
        self.model.set_attn_implementation("prefixd" if way == "in_place" else "sdpa")
        first, got, text = [], [], []
        for _ in range(rounds + 1):  # the first one does not count
            cache = None  # and its pages go
            torch.cuda.synchronize()
            began = time.monotonic()
            cache = self.ways[way](self)
            torch.cuda.synchronize()
            between = time.monotonic()
            held = cache.get_seq_length()
            assert held == (0 if way == "cold" else TOKENS), f"{way}: {held} tokens"
            token = self.step(self.ids[held:], cache)
            first.append(time.monotonic() - began)
            got.append(between - began)
            text = [token]
        for _ in range(ANSWER_TOKENS - 1):
            text.append(self.step(text[-1:], cache))
        return {
            "first_s": statistics.median(first[1:]),
            "cache_s": statistics.median(got[1:]),
            "text": text,
        }

    def step(self, ids: list[int], cache: DynamicCache) -> int:
        asked = torch.tensor([ids], device="cuda")
        with torch.no_grad():
            out = self.model(
                input_ids=asked, past_key_values=cache, use_cache=True, logits_to_keep=1
            )
        return int(out.logits[0, -1].argmax())

    def from_file(self) -> DynamicCache:
        cache = DynamicCache(config=self.model.config)
        sides = iter([one.to("cuda", non_blocking=True) for one in self.shared])
        for layer in cache.layers:
            keys, values = next(sides), next(sides)
            layer.lazy_initialization(keys, values)
            layer.keys, layer.values = keys, values
            if hasattr(layer, "cumulative_length"):
                layer.cumulative_length = TOKENS
        return cache

    def from_prefixd(self) -> DynamicCache:
        return self.prefixd.fetch(self.ids[: TOKENS + 1])

    ways: dict[str, Callable[[Worker], DynamicCache]] = {
        "cold": lambda self: DynamicCache(config=self.model.config),
        "file": from_file,
        "copy": from_prefixd,
        "in_place": from_prefixd,
    }


def made(family: str) -> Any:
    """The model, on the GPU, the same weights in each process."""
    torch.manual_seed(7)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(SHAPES[family](), dtype=torch.bfloat16).eval()
    generator = torch.Generator("cuda").manual_seed(7)
    with torch.no_grad():
        for one in model.parameters():
            if one.ndim > 1:
                one.normal_(0, one.shape[-1] ** -0.5, generator=generator)
    return model


@unittest.skipUnless(torch.cuda.is_available(), "torch sees no GPU")
class FirstToken(TransformersTest):
    @classmethod
    def start_daemon(cls) -> None:
        cls.daemon = Daemon(cls.folder / "daemon", ram=f"{RAM_GIB}GiB", ssd="off")

    def test_C6_the_first_token_behind_a_prefix_that_two_processes_share(self) -> None:
        name = torch.cuda.get_device_name()
        print(f"\n{name}, {TOKENS} tokens and a question of {QUESTION_TOKENS}")
        for family in FAMILIES:
            with self.subTest(model=family):
                self.measure(family)

    held = 0  # by prefixd, of earlier models

    def measure(self, family: str) -> None:
        file = Path("/dev/shm") / f"{self.folder.name}-{family}"
        self.addCleanup(file.unlink, missing_ok=True)
        pair = [Child(__file__, "worker", family, self.daemon.address, file) for _ in range(2)]
        for one in pair:
            self.addCleanup(one.end)
            self.assertEqual(one.hear(), "ready")
        written = pair[0].ask("write")
        self.assertEqual(written["stored"], TOKENS)
        pair[1].ask("attach", written["shapes"])
        cold = pair[0].ask("measure", "cold", 2)
        say(f"{family}: cold", cold, cold)
        for pinned in (False, True):
            if pinned:
                took = [one.ask("pin") for one in pair]
                print(f"  pinned: {took}", flush=True)
            for way in ("file", "copy", "in_place"):
                name = f"{family}: {way}{' pinned' if pinned else ''}"
                say(name, pair[1].ask("measure", way), cold)
                for one in pair:
                    one.tell("measure", way)
                for one in pair:
                    say(f"{name}, both at once", one.hear(), cold)
        held = sum(one["ram_extent_bytes"] for one in self.daemon.control("stats")["spaces"])
        sizes = file.stat().st_size / 1e9, (held - self.held) / 1e9
        print("  {}: file {:.2f} GB, prefixd {:.2f} GB".format(family, *sizes), flush=True)
        self.held = held
        for one in pair:
            one.end()
        file.unlink()


def say(name: str, found: dict[str, Any], cold: dict[str, Any]) -> None:
    same = sum(1 for mine, theirs in zip(found["text"], cold["text"]) if mine == theirs)
    print(
        f"  {name}: first token {1000 * found['first_s']:.1f} ms, of it the cache "
        f"{1000 * found['cache_s']:.1f} ms; cold takes {cold['first_s'] / found['first_s']:.1f} x; "
        f"{same} of {len(cold['text'])} tokens as cold",
        flush=True,
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        logging.basicConfig(level=logging.WARNING)
        Worker(*sys.argv[2:]).run()
    else:
        unittest.main()
