"""The examples that need no model."""

import os
import subprocess
import sys

from support import PACKAGE, DaemonTest

EXAMPLES = PACKAGE.parent / "examples"


class ExamplesTest(DaemonTest):
    def run_example(self, name):
        command = [sys.executable, EXAMPLES / name, self.daemon.address]
        environment = {**os.environ, "PYTHONPATH": str(PACKAGE)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_of_a_sliding_layer_an_engine_gathers_the_window(self):
        self.daemon.start()
        cold = self.run_example("sliding_window.py")
        self.assertIn("0 of 1000 tokens cached; first rows of the layers: [0, 0, 0]", cold)
        warm = self.run_example("sliding_window.py")
        self.assertIn("999 of 1000 tokens cached; first rows of the layers: [0, 743, 743]", warm)
