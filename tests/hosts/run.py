"""Runs these tests against the programs of a build folder: run.py BUILD_DIR [TEST...]"""

import os
import shutil
import sys
import unittest
from pathlib import Path

SKIPPED = 77  # what CTest shows as "Skipped"
HERE = Path(__file__).resolve().parent


def missing() -> str:
    for program in ("redis-server", "redis-cli"):
        if shutil.which(program) is None:
            return f"there is no {program} (scripts/redis-server-link)"
    try:
        import numpy  # noqa: F401
    except ImportError as error:
        return f"{error} (Debian: python3-numpy)"
    return ""


def main() -> int:
    build = Path(sys.argv[1]).resolve()
    # Each test gives prefixd its own.
    for name in [name for name in os.environ if name.startswith("PREFIXD_")]:
        if not name.startswith(("PREFIXD_HOSTS_", "PREFIXD_TEST_")):
            del os.environ[name]
    os.environ["PREFIXD_BUILD"] = str(build)
    os.environ["PREFIXD_LIBRARY"] = str(build / "libprefixd.so")
    root = HERE.parents[1]
    sys.path[:0] = [str(root / of) for of in ("client/python", "tests/support", "tests/stress", "tests/hosts")]
    lacking = missing()
    if lacking:
        print(f"SKIP: tests of several hosts: {lacking}")
        return SKIPPED
    loader = unittest.defaultTestLoader
    chosen = sys.argv[2:]
    suite = loader.loadTestsFromNames(chosen) if chosen else loader.discover(str(HERE))
    passed = unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful()
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
