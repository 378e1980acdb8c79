"""pip installs the package from the source tree, with the library in it."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from support import PACKAGE

_SCRIPT = """
import prefixd, prefixd.mlx, sys
client = prefixd.connect("unix:///nonexistent/prefixd.sock")
client.wait_attached(1000)
assert client.error == "client: no daemon at unix:///nonexistent/prefixd.sock", client.error
assert prefixd.__file__.startswith(sys.prefix), prefixd.__file__
"""


class InstallTest(unittest.TestCase):
    def test_pip_installs_it_from_the_source_tree_without_a_network(self):
        folder = Path(tempfile.mkdtemp(prefix="prefixd_install_"))
        self.addCleanup(shutil.rmtree, folder)
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        venv = [sys.executable, "-m", "venv", "--system-site-packages", folder / "venv"]
        made = subprocess.run(venv, env=environment, capture_output=True, text=True)
        if made.returncode != 0:
            self.skipTest("no venv (Debian: python3-venv): " + made.stdout.strip()[-200:])
        pip = [folder / "venv/bin/pip", "install", "--no-index", PACKAGE]
        installed = subprocess.run(pip, env=environment, capture_output=True, text=True)
        self.assertEqual(installed.returncode, 0, installed.stdout + installed.stderr)
        del environment["PREFIXD_LIBRARY"]  # that of the wheel
        used = subprocess.run(
            [folder / "venv/bin/python", "-c", _SCRIPT],
            env=environment,
            cwd=folder,
            capture_output=True,
            text=True,
        )
        self.assertEqual((used.returncode, used.stderr), (0, ""))
        self.assertFalse((PACKAGE / "build").exists(), "the source tree stays as it was")


class GivenLibraryTest(unittest.TestCase):
    def test_a_wheel_takes_a_library_by_its_absolute_path_only(self):
        folder = Path(tempfile.mkdtemp(prefix="prefixd_wheel_"))
        self.addCleanup(shutil.rmtree, folder)
        library = Path(os.environ["PREFIXD_LIBRARY"])
        for given, sentence in (
            (os.path.relpath(library, PACKAGE), "must be an absolute path"),
            (str(folder / "libnone.so"), "there is no such file"),
            (str(library), ""),
        ):
            built = subprocess.run(
                [sys.executable, "-B", "-c", _BUILD, folder],
                env={**os.environ, "PREFIXD_LIBRARY": given},
                cwd=PACKAGE,
                capture_output=True,
                text=True,
            )
            self.assertIn(sentence, built.stderr)
            self.assertEqual(built.returncode == 0, sentence == "", built.stderr)
        self.assertEqual(len(list(folder.glob("*.whl"))), 1)


_BUILD = "import sys, build_wheel; build_wheel.build_wheel(sys.argv[1])"


if __name__ == "__main__":
    unittest.main()
