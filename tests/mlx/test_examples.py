"""The examples do what they say: a second run, a process of its own, computes one token."""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from processes import DEADLINE_S, Daemon
from rows import prompt
from tiny_model import Geometry, words, write_checkpoint

EXAMPLES = Path(__file__).resolve().parents[2] / "client" / "examples"


class Examples(unittest.TestCase):
    geometry = Geometry()

    @classmethod
    def setUpClass(cls):
        temp = tempfile.TemporaryDirectory(prefix="prefixd-mlx-")
        cls.addClassCleanup(temp.cleanup)
        folder = Path(temp.name)
        cls.model = write_checkpoint(folder / "tiny", cls.geometry)
        cls.daemon = Daemon(folder / "daemon")
        cls.addClassCleanup(lambda: cls.daemon.stop())
        cls.addClassCleanup(lambda: cls.daemon.lose_arena())

    def run_example(
        self, name: str, *flags: str, address: str | None = None, library: str | None = None
    ) -> tuple[str, int]:
        """What was generated, and how many tokens were cached."""
        command = [sys.executable, str(EXAMPLES / name), address or self.daemon.address]
        command += [str(self.model), words(prompt(80, self.id())), *flags]
        environment = {**os.environ, **({"PREFIXD_LIBRARY": library} if library else {})}
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=DEADLINE_S, env=environment
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        text, cached = re.fullmatch(r"(.*)\n80 prompt tokens, (\d+) cached\n", done.stdout).groups()
        self.assertTrue(text)
        return text, int(cached)

    def assert_second_run_is_warm(self, name: str, *flags: str) -> None:
        first, cached = self.run_example(name, *flags)
        self.assertEqual(cached, 0)
        self.assertEqual(self.run_example(name, *flags), (first, 79))

    def test_a_loop_of_ones_own_around_mlx_lm(self):
        self.assert_second_run_is_warm("mlx_generate.py")

    def test_the_same_with_quantized_caches(self):
        self.assert_second_run_is_warm("mlx_generate.py", "--kv-bits=4")

    def test_nothing_but_the_core_package(self):
        self.assert_second_run_is_warm("mlx_by_hand.py")

    def test_without_a_daemon_they_compute_everything(self):
        for name in ("mlx_generate.py", "mlx_by_hand.py"):
            with self.subTest(name):
                _, cached = self.run_example(name, address="unix:///nowhere/prefixd.sock")
                self.assertEqual(cached, 0)

    def test_without_the_library_too(self):
        for name in ("mlx_generate.py", "mlx_by_hand.py"):
            with self.subTest(name):
                _, cached = self.run_example(name, library="/nowhere/libprefixd.so")
                self.assertEqual(cached, 0)


class ExamplesInFloat16(Examples):
    """With a config.json that leaves head_dim out, as many do."""

    geometry = Geometry(dtype="float16", query_heads=2)

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        config = json.loads((cls.model / "config.json").read_text())
        assert config.pop("head_dim") == config["hidden_size"] // config["num_attention_heads"]
        (cls.model / "config.json").write_text(json.dumps(config))


if __name__ == "__main__":
    unittest.main()
