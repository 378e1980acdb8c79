"""Runs these tests against the programs of a build folder: run.py BUILD_DIR [TEST...]"""

import os
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))

import suite  # noqa: E402


def missing() -> str:
    for program in (os.environ.get("PREFIXD_REDIS_SERVER", "redis-server"), "redis-cli"):
        if shutil.which(program) is None:
            return f"there is no {program} (scripts/redis-server-link)"
    return suite.missing_numpy()


if __name__ == "__main__":
    sys.exit(suite.run(HERE, missing(), keeps=("PREFIXD_HOSTS_", "PREFIXD_REDIS_SERVER")))
