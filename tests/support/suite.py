"""What the folders of tests that run the built programs share: their run.py."""

from __future__ import annotations

import os
import sys
import unittest
from pathlib import Path

SKIPPED = 77  # what CTest shows as "Skipped"
ROOT = Path(__file__).resolve().parents[2]


def run(folder: Path, skip_because: str, keeps: tuple[str, ...] = ()) -> int:
    """Runs the tests of `folder`, or those that the command line names after BUILD_DIR. Returns
    their exit status. Tests find the programs and the packages, and no settings of the caller's but
    PREFIXD_TEST_* and those that begin as `keeps` says: each test gives prefixd its own."""
    if skip_because:
        print(f"SKIP: tests/{folder.name}: {skip_because}")
        return SKIPPED
    build = Path(sys.argv[1]).resolve()
    for name in [name for name in os.environ if name.startswith("PREFIXD_")]:
        if not name.startswith(("PREFIXD_TEST_", *keeps)):
            del os.environ[name]
    os.environ["PREFIXD_BUILD"] = str(build)
    os.environ["PREFIXD_LIBRARY"] = str(build / "libprefixd.so")
    folders = ("client/python", "tests/support", "tests/stress", "tests/hosts", f"tests/{folder.name}")
    sys.path[:0] = [str(ROOT / one) for one in dict.fromkeys(folders)]
    loader = unittest.defaultTestLoader
    chosen = sys.argv[2:]
    suite = loader.loadTestsFromNames(chosen) if chosen else loader.discover(str(folder))
    passed = unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful()
    return 0 if passed else 1


def missing_numpy() -> str:
    try:
        import numpy  # noqa: F401
    except ImportError as error:
        return f"{error} (Debian: python3-numpy)"
    return ""
