"""Runs these tests against the programs of a build folder: run.py BUILD_DIR"""

import os
import sys
import unittest
from pathlib import Path

SKIPPED = 77  # what CTest shows as "Skipped"


class _Both:
    """stderr, and the file that PREFIXD_RESULTS names, from which tests/features reads."""

    def __init__(self):
        path = os.environ.get("PREFIXD_RESULTS", os.devnull)
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "w", encoding="utf-8", buffering=1)

    def write(self, text: str) -> None:
        sys.stderr.write(text)
        self._file.write(text)

    def flush(self) -> None:
        sys.stderr.flush()
        self._file.flush()


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
    passed = unittest.TextTestRunner(_Both(), verbosity=2).run(suite).wasSuccessful()
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
