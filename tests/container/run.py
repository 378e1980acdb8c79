"""Builds images of a build folder's programs and runs them: run.py BUILD_DIR [TEST...]"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "support"), str(HERE)]

import engine  # noqa: E402
import suite  # noqa: E402

if __name__ == "__main__":
    sys.exit(suite.run(HERE, engine.missing()))
