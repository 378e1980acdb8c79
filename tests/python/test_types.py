"""mypy --strict over a user's program, and over what it uses of the package."""

import os
import subprocess
import unittest
from pathlib import Path

from support import BUILD, PACKAGE

HERE = Path(__file__).parent


class TypesTest(unittest.TestCase):
    def test_a_users_program_passes_mypy_strict_and_its_mistakes_are_found(self):
        make = [HERE.parents[1] / "scripts" / "python-venv", "types", BUILD / "types-venv"]
        made = subprocess.run(make, capture_output=True, text=True)
        if made.returncode != 0:
            self.skipTest(made.stderr.strip())
        checked = subprocess.run(
            [made.stdout.strip(), "-m", "mypy", "--strict", HERE / "typed_user.py"],
            env={**os.environ, "MYPYPATH": str(PACKAGE), "MYPY_CACHE_DIR": str(BUILD / "mypy")},
            cwd=HERE,
            capture_output=True,
            text=True,
        )
        self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)


if __name__ == "__main__":
    unittest.main()
