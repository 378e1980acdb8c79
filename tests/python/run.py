"""Runs these tests against the programs of a build folder: run.py BUILD_DIR"""

import os
import sys
import unittest
from pathlib import Path

SKIPPED = 77  # what CTest shows as "Skipped"


def main() -> int:
    here = Path(__file__).resolve().parent
    build = Path(sys.argv[1]).resolve()
    os.environ["PREFIXD_BUILD_DIR"] = str(build)
    os.environ["PREFIXD_LIBRARY"] = str(build / "libprefixd.so")
    sys.path[:0] = [str(here.parents[1] / "client" / "python"), str(here)]
    try:
        import numpy
    except ImportError as error:
        print(f"SKIP: tests of the Python package: {error} (Debian: python3-numpy)")
        return SKIPPED
    print(f"NumPy {numpy.__version__}, Python {sys.version.split()[0]}", flush=True)
    suite = unittest.defaultTestLoader.discover(str(here))
    runner = unittest.TextTestRunner(verbosity=2)
    return 0 if runner.run(suite).wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
