"""Runs these tests against the programs of a build folder: run.py BUILD_DIR [TEST...]"""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))

import suite  # noqa: E402


def missing(tools: Path) -> str:
    """Puts Prometheus and promtool into `tools`."""
    linked = subprocess.run([suite.ROOT / "scripts" / "prometheus-link", tools], capture_output=True, text=True)
    if linked.returncode != 0:
        return f"Debian's package prometheus cannot be had: {linked.stderr.strip()[-300:]}"
    return suite.missing_numpy()


if __name__ == "__main__":
    tools = Path(sys.argv[1]).resolve() / "Testing" / "prometheus"
    os.environ["PREFIXD_TEST_TOOLS"] = str(tools)
    sys.exit(suite.run(HERE, missing(tools)))
