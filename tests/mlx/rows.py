"""Prompt caches filled with noise: a row of its own for every layer, side, head and token."""

from __future__ import annotations

import random
import tempfile
import unittest
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
import numpy as np
import prefixd
from mlx_lm.models.cache import make_prompt_cache
from prefixd.mlx import Model, Options, PromptCache, convert, open_model
from processes import Daemon
from tiny_model import Geometry, write_checkpoint


def prompt(tokens: int, seed: int | str) -> list[int]:
    return random.Random(seed).choices(range(250), k=tokens)


def bits_of(cache: Any) -> list[np.ndarray]:
    """Of everything that a cache object holds."""
    rows = convert.from_cache(cache)
    return [convert.to_numpy(tensor) for tensor in (*rows.key, *rows.value)]


def same_bits(left: list[Any], right: list[Any]) -> bool:
    return all(
        len(a) == len(b) and all(map(np.array_equal, a, b))
        for a, b in zip(map(bits_of, left), map(bits_of, right), strict=True)
    )


class WithDaemon(unittest.TestCase):
    """A daemon, a tiny model in this process, and prompt caches on both. Tests share nothing: each
    has a salt of its own."""

    geometry = Geometry()
    drafts: list[Model] = []

    @classmethod
    def setUpClass(cls):
        temp = tempfile.TemporaryDirectory(prefix="prefixd-mlx-")
        cls.addClassCleanup(temp.cleanup)
        cls.folder = Path(temp.name)
        cls.checkpoint = write_checkpoint(cls.folder / "tiny", cls.geometry)
        cls.model, cls.tokenizer = mlx_lm.load(str(cls.checkpoint))
        cls.start_daemon()
        cls.addClassCleanup(lambda: cls.daemon.stop())
        cls.addClassCleanup(lambda: cls.daemon.lose_arena())

    @classmethod
    def start_daemon(cls) -> None:
        cls.daemon = Daemon(cls.folder / "daemon")

    def reboot(self) -> None:
        """What was stored is on the SSD alone."""
        self.daemon.stop()
        self.daemon.lose_arena()
        self.start_daemon()

    def prompt_cache(self, models: Sequence[Model] = (), **options: Any) -> PromptCache:
        """Of a worker of its own, with the checkpoint unless told."""
        client = prefixd.connect(self.daemon.address)
        chosen = Options(salt=self.id(), deadline_ms=30_000, **options)
        models = models or [Model(self.model, str(self.checkpoint)), *self.drafts]
        return PromptCache(lambda _: open_model(client, models, chosen))

    def engine_caches(self, tokens: int, bits: int = 0, layers: int | None = None) -> list[Any]:
        """As the engine has them after `tokens`: the same rows each time."""
        caches = make_prompt_cache(self.model)[:layers]
        for layer, cache in enumerate(caches):
            cache.update_and_fetch(*(self.noise(tokens, layer, side) for side in (0, 1)))
        if bits:
            caches = [cache.to_quantized(group_size=64, bits=bits) for cache in caches]
        return caches

    def cut(self, caches: list[Any], tokens: int) -> list[Any]:
        return [convert.to_cache(convert.from_cache(cache).cut(0, tokens)) for cache in caches]

    def space(self) -> dict[str, Any]:
        """The space that this test stored into."""
        spaces = self.daemon.control("stats")["spaces"]
        (mine,) = [s for s in spaces if s["space_id"] not in self._spaces_before]
        return mine

    def setUp(self):
        self._spaces_before = {s["space_id"] for s in self.daemon.control("stats")["spaces"]}

    def noise(self, tokens: int, layer: int, side: int) -> mx.array:
        """[1, heads, tokens, dim]; longer ones begin with shorter ones."""
        shape = (2048, 1, self.geometry.kv_heads, self.geometry.head_dim)
        key = mx.random.key(2 * layer + side)
        noise = mx.random.normal(shape, key=key)[:tokens]
        return noise.transpose(1, 2, 0, 3).astype(getattr(mx, self.geometry.dtype))
