"""Runs these tests against the programs of a build folder: run.py BUILD_DIR [TEST...]

Those of test_http.py always; those of test_browser.py where there is a Chromium."""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "support"), str(HERE)]

import suite  # noqa: E402


def missing(tools: Path) -> str:
    """What the browser's tests lack. Puts axe-core into `tools`."""
    from browser import program

    if program() is None:
        return "no Chromium (scripts/install-deps --page, or name one in PREFIXD_TEST_BROWSER)"
    linked = subprocess.run([suite.ROOT / "scripts" / "axe-link", tools], capture_output=True, text=True)
    if linked.returncode != 0:
        return f"axe-core cannot be had: {linked.stderr.strip()[-300:]}"
    return ""


if __name__ == "__main__":
    build = Path(sys.argv[1]).resolve()
    os.environ["PREFIXD_BUILD"] = str(build)
    tools = build / "Testing" / "page"
    os.environ["PREFIXD_TEST_TOOLS"] = str(tools)
    lacks = missing(tools)
    if lacks and len(sys.argv) == 2:
        sys.argv.append("test_http")
    status = suite.run(HERE, suite.missing_numpy())
    if status == 0 and lacks:
        print(f"SKIP: tests/page: {lacks}; what needs no browser passed")
        status = suite.SKIPPED
    sys.exit(status)
