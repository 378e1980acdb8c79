"""Installs a wheel of scripts/wheel on bare Debian systems and makes first hits: bare_root.py WHEEL [SUITE...]

By default on Debian 12 and 13. Each is a root folder of debootstrap with Python, pip and NumPy, and
none of the libraries that prefixd is built from. Needs root, debootstrap and the network, so CTest
does not run it; without root or debootstrap it says so and ends with 77. Roots are kept in the folder
that PREFIXD_ROOTS names, else removed. gRPC's own Python package is used beside prefixd in one process
where pip can download it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from debian_root import Root, says  # noqa: E402

SKIPPED = 77
SUITES = {"bookworm": "3.11", "trixie": "3.13"}  # and the Python that each has
_PACKAGES = ("python3", "python3-venv", "python3-pip", "python3-numpy")
_ADDRESS = "unix:///tmp/first/prefixd.sock"
_BESIDE_GRPC = Path(__file__).with_name("beside_grpc.py")


def first_hits(root: Root, wheel: Path) -> None:
    shutil.copy(wheel, root.folder / "root")
    root.run("rm -rf venv /tmp/first && python3 -m venv --system-site-packages venv")
    root.run(f"pip install -q --no-index ./{wheel.name}")
    says(root.run(f"python3 -m prefixd {_ADDRESS}", fails=True), "no cache: ")
    hit = root.run(f"PREFIXD_START=1 python3 -m prefixd {_ADDRESS}")
    says(hit, "exact      1023 of 1024 tokens")
    says(hit, "bit for bit the same")
    says(root.run(f"prefixctl --server {_ADDRESS} status"), "first-hit")
    says(root.run("prefixd-llama --help"), "llama-server")
    own = "--socket /tmp/first/2.sock --directory /tmp/first/2 --ram 128MiB --ssd off"
    root.run(f"(prefixd {own} >/tmp/first/2.log 2>&1 &)")
    says(root.run("python3 -m prefixd unix:///tmp/first/2.sock"), "bit for bit the same")
    root.run("test ! -e /usr/lib/x86_64-linux-gnu/libgrpc.so.29 && ! ls /usr/lib/x86_64-linux-gnu | grep -q absl")


def beside_grpc(root: Root, python: str) -> None:
    """Uses grpcio and prefixd in one process, imported in either order."""
    with tempfile.TemporaryDirectory() as scratch:
        wanted = ["--only-binary=:all:", "--platform=manylinux_2_17_x86_64", "--no-deps", f"--python-version={python}"]
        download = [sys.executable, "-m", "pip", "download", "-q", *wanted, "-d", scratch, "grpcio", "typing-extensions"]
        if subprocess.run(download, capture_output=True).returncode != 0:
            print("  skipped: grpcio cannot be downloaded")
            return
        shutil.copytree(scratch, root.folder / "root/wheels", dirs_exist_ok=True)
    shutil.copy(_BESIDE_GRPC, root.folder / "root")
    root.run("pip install -q --no-index wheels/*.whl")
    for first in "grpc", "prefixd":
        says(root.run(f"python3 {_BESIDE_GRPC.name} {first} {_ADDRESS}"), "both served")


def main() -> int:
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    wheel, suites = Path(sys.argv[1]).resolve(), sys.argv[2:] or list(SUITES)
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        print("SKIP: bare_root: wants root and debootstrap (Debian: debootstrap)")
        return SKIPPED
    with ExitStack() as kept:
        roots = os.environ.get("PREFIXD_ROOTS") or kept.enter_context(
            tempfile.TemporaryDirectory(prefix="prefixd_roots_")
        )
        for suite in suites:
            print(f"{suite}:", flush=True)
            root = Root(Path(roots).resolve() / suite)
            root.make(suite, _PACKAGES)
            with ExitStack() as stack:
                root.enter(stack)
                first_hits(root, wheel)
                beside_grpc(root, SUITES[suite])
    print(f"{wheel.name} works on {', '.join(suites)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
