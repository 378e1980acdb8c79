"""Tells stories until the minutes are over: run.py BUILD_DIR [--minutes M] [--seed S] [--story N]

A story that finds something is told again with fewer steps, as long as it still finds something;
then its seed, the steps that are left and the finding are printed, its files are kept, and the exit
status is 1. `--story N` tells that one alone. Standard library and NumPy.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

SKIPPED = 77  # what CTest shows as "Skipped"
HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parents[1] / "client" / "python"
SHRINK_TRIES = 12


def tell(story: dict, build: Path, seen: Counter, keep: bool) -> str:
    """What it found, "" when nothing."""
    import story as stories
    from host import Finding

    folder = Path(tempfile.mkdtemp(prefix="prefixd_stress_"))
    arena = Path("/dev/shm") / folder.name / "arena"
    arena.parent.mkdir()
    teller = stories.Teller(story, build, PACKAGE, folder, arena)
    found = ""
    try:
        teller.tell()
    except Finding as finding:
        found = str(finding)
    finally:
        seen.update(teller.seen)
        seen.update(teller.workers.totals())
        seen["lives of the daemon"] += teller.host.lives
        seen["stops that said what is not saved"] += teller.host.unsaved
        shutil.rmtree(arena.parent, ignore_errors=True)
        if found and keep:
            found += f"\nits files: {folder}"
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return found


def shrink(story: dict, build: Path) -> dict:
    """The same story with fewer steps that still finds something. Workers race, so that it may find
    it by chance: a few tries."""
    tries = SHRINK_TRIES
    part = max(1, len(story["steps"]) // 2)
    while part >= 1 and tries > 0:
        for at in range(0, len(story["steps"]), part):
            steps = story["steps"][:at] + story["steps"][at + part :]
            tries -= 1
            if steps and tell({**story, "steps": steps}, build, Counter(), keep=False):
                story = {**story, "steps": steps}
                break
            if tries == 0:
                break
        else:
            part //= 2
    return story


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--story", type=int)
    arguments = parser.parse_args()
    build = arguments.build.resolve()
    os.environ["PREFIXD_LIBRARY"] = str(build / "libprefixd.so")
    sys.path[:0] = [str(PACKAGE), str(HERE), str(HERE.parent / "support"), str(HERE.parent / "hosts")]
    try:
        import numpy  # noqa: F401
    except ImportError as error:
        print(f"SKIP: stress: {error} (Debian: python3-numpy)")
        return SKIPPED
    if shutil.disk_usage("/dev/shm").free < 160 << 20:
        print("SKIP: stress: /dev/shm has less than 160 MiB free")
        return SKIPPED
    import story as stories
    from shared_server import SharedServer

    if not SharedServer.possible():
        print("there is no redis-server: stories of a server that hosts share are told without it")
    seen: Counter[str] = Counter()
    until = time.monotonic() + arguments.minutes * 60
    first = arguments.story if arguments.story is not None else arguments.seed * 1_000_000
    number = first
    while number == first or (arguments.story is None and time.monotonic() < until):
        story = stories.plan(number)
        print(f"story {number}: {story['workers']} workers, {' '.join(s['kind'].replace(' ', '-') for s in story['steps'])}", flush=True)
        found = tell(story, build, seen, keep=True)
        if found:
            print(f"\nFOUND in story {number} (run.py BUILD_DIR --story {number}):\n{found}\n", flush=True)
            print("its shortest form that still finds something:\n" + json.dumps(shrink(story, build), indent=1))
            return 1
        number += 1
    print(f"\nseed {arguments.seed}: {number - first} stories, 0 findings")
    for name in sorted(seen):
        print(f"  {seen[name]:>12,}  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
