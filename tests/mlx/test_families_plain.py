"""The ground that test_families stands on: what mlx-lm itself does with each family.

Every file of mlx_lm.models is in a table of families/, and a family's server answers a
conversation from its own cache as it answers it without one.
"""

import importlib
import os
import tempfile
import unittest
from pathlib import Path

import families
import mlx.core as mx
import mlx_lm.models
from conversation import TURNS, Conversation
from families.unserved import CONFIGS
from mlx_lm import generate
from mlx_lm.utils import _get_classes, load
from processes import Answer, Server

NO_MODELS = {
    *("activations", "base", "bitlinear_layers", "cache", "gated_delta", "mla", "pipeline"),
    *("rope_utils", "ssm", "switch_layers"),
}
"""What model files are made of."""


class ModelFiles(unittest.TestCase):
    def test_are_families_or_it_is_said_why_not(self):
        files = {path.stem for path in Path(mlx_lm.models.__path__[0]).glob("*.py")}
        named = {
            made.__module__.rpartition(".")[2]
            for config in families.FAMILIES.values()
            for made in _get_classes(config)
        }
        self.assertEqual(files - {"__init__"}, named | set(families.CANNOT) | NO_MODELS)
        self.assertFalse(named & set(families.CANNOT))
        for name in NO_MODELS:
            self.assertFalse(hasattr(importlib.import_module(f"mlx_lm.models.{name}"), "ModelArgs"))

    @unittest.skipIf(mx.metal.is_available(), "they can where there is Metal")
    def test_that_cannot_be_served_still_cannot(self):
        self.assertEqual(set(CONFIGS), set(families.CANNOT))
        for name, config in CONFIGS.items():
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                with self.assertRaises((RuntimeError, SystemExit)):
                    model, tokenizer = load(str(families.write_config(Path(folder) / name, config)))
                    generate(model, tokenizer, "w1 w2", max_tokens=1)

    def test_are_written_the_same_every_time(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("qwen3", "rwkv7"):
                once, again = (
                    families.write_family(Path(folder) / f"{name}{n}", name) for n in range(2)
                )
                for file in sorted(os.listdir(once)):
                    self.assertEqual((once / file).read_bytes(), (again / file).read_bytes(), file)


class PlainServers(unittest.TestCase):
    """mlx_lm.server as it is, with its cache and without; they load one family after another."""

    @classmethod
    def setUpClass(cls):
        temp = tempfile.TemporaryDirectory(prefix="prefixd-families-")
        cls.addClassCleanup(temp.cleanup)
        cls.folder = Path(temp.name)
        cls.caching = cls.server("caching", size=100)
        cls.cold = cls.server("cold", size=0)

    @classmethod
    def server(cls, name: str, size: int) -> Server:
        server = Server(cls.folder, name, None, [f"--prompt-cache-size={size}"])
        cls.addClassCleanup(server.stop)
        return server

    def test_answer_a_conversation_from_their_cache_as_without_one(self):
        for name in families.selected():
            with self.subTest(name):
                model = families.write_family(self.folder / name, name)
                for server in (self.caching, self.cold):
                    server.load(model)
                first, repeated, other = (converse(self.caching, number) for number in (0, 0, 1))
                self.assertEqual([len(set(tokens(turns))) for turns in (first, other)], [TURNS] * 2)
                cached = [answer.cached_tokens for answer in first]
                self.assertEqual(cached, sorted(set(cached)))  # a turn goes on from the last one
                answered = [tokens(turns) for turns in (first, repeated, other)]
                expected = [tokens(converse(self.cold, number)) for number in (0, 1)]
                same = answered == [expected[0], expected[0], expected[1]]
                otherwise = families.PLAIN_WRONG.keys() | families.AS_CACHED.keys()
                self.assertEqual(same, name not in otherwise)
        for server in (self.caching, self.cold):
            self.assertNotIn("Traceback", server.log())


def converse(server: Server, number: int) -> list[Answer]:
    conversation = Conversation(number)
    return [conversation.ask(server) for _ in range(TURNS)]


def tokens(answers: list[Answer]) -> list[tuple[int, ...]]:
    return [tuple(answer.tokens) for answer in answers]


if __name__ == "__main__":
    unittest.main()
