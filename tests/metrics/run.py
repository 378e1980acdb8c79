"""Runs these tests against the programs of a build folder: run.py BUILD_DIR [TEST...]"""

import os
import subprocess
import sys
import unittest
from pathlib import Path

SKIPPED = 77  # what CTest shows as "Skipped"
HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def missing(tools: Path) -> str:
    try:
        import numpy  # noqa: F401
    except ImportError as error:
        return f"{error} (Debian: python3-numpy)"
    linked = subprocess.run([ROOT / "scripts" / "prometheus-link", tools], capture_output=True, text=True)
    if linked.returncode != 0:
        return f"Debian's package prometheus cannot be had: {linked.stderr.strip()[-300:]}"
    return ""


def main() -> int:
    build = Path(sys.argv[1]).resolve()
    for name in [name for name in os.environ if name.startswith("PREFIXD_") and not name.startswith("PREFIXD_TEST_")]:
        del os.environ[name]  # each test gives prefixd its own
    tools = build / "Testing" / "prometheus"
    os.environ["PREFIXD_BUILD"] = str(build)
    os.environ["PREFIXD_LIBRARY"] = str(build / "libprefixd.so")
    os.environ["PREFIXD_TEST_TOOLS"] = str(tools)
    folders = ("client/python", "tests/support", "tests/stress", "tests/hosts", "tests/metrics")
    sys.path[:0] = [str(ROOT / folder) for folder in folders]
    lacking = missing(tools)
    if lacking:
        print(f"SKIP: tests of the metrics: {lacking}")
        return SKIPPED
    loader = unittest.defaultTestLoader
    chosen = sys.argv[2:]
    suite = loader.loadTestsFromNames(chosen) if chosen else loader.discover(str(HERE))
    passed = unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful()
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
