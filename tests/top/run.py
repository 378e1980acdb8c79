"""Runs these tests against the programs of a build folder: run.py BUILD_DIR [TEST...]"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))

import suite  # noqa: E402

if __name__ == "__main__":
    sys.exit(suite.run(HERE, suite.missing_numpy()))
