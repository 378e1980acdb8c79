"""Packs the wheel that carries prefixd: pack_wheel.py BUILD_DIR OUT_DIR [--of-this-machine] [--fast]

It has the Python package, the programs and libprefixd.so of BUILD_DIR, and the shared libraries that
they need and that not every Linux has. Those get names of their own, so that no other copy in a
process is taken for them. scripts/wheel builds what is to be packed first. The same files give the
same wheel. Needs patchelf and binutils; with --of-this-machine neither: the wheel then runs only
where the libraries are installed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from build_wheel import BUNDLED, SOURCE_TREE, package_files, platform_tag, stem, write_wheel

PROGRAMS = ("prefixd", "prefixctl", "prefixd-llama")
_TAG = "py3-none-manylinux_2_36_x86_64"
# What the tag promises of every machine: the newest versions of their symbols that it has.
_NEWEST = {"GLIBC": (2, 36), "GLIBCXX": (3, 4, 30), "CXXABI": (1, 3, 13), "GCC": (12, 0, 0)}
_EVERYWHERE = re.compile(
    r"(lib(c|m|dl|rt|pthread|resolv|util|nsl|stdc\+\+|gcc_s|z)\.so\.\d+|ld-linux.*|linux-vdso.*)"
)
# Debian's packages of what is compiled or linked in. Their licences travel along. A star stands for
# the newest version of the compiler that is installed.
_LINKED = (
    "libabsl-dev libbz2-dev libc-ares-dev libcivetweb-dev libcli11-dev libcpp-httplib-dev libfmt-dev libgrpc-dev "
    "libbrotli1 libhwy-dev liblz4-dev libncurses-dev libprotobuf-dev libre2-dev librocksdb-dev libsnappy-dev libspdlog-dev "
    "libssl-dev libstdc++-*-dev libxxhash-dev libzstd-dev nlohmann-json3-dev prometheus-cpp-dev zlib1g-dev"
).split()
_LAUNCHER = """#!python
import os
import sys
from importlib.util import find_spec

package = find_spec("prefixd")  # does not import it
if package is None or package.origin is None:
    sys.exit("{name}: the package prefixd is not installed here")
program = os.path.join(os.path.dirname(package.origin), "bin", "{name}")
os.execv(program, [program, *sys.argv[1:]])
"""


class PackError(RuntimeError):
    """The wheel cannot be packed. The text says why."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Packs the wheel that carries prefixd's programs.")
    parser.add_argument("build", type=Path, help="folder with the programs and libprefixd.so.1")
    parser.add_argument("out", type=Path, help="folder that the wheel is written to")
    parser.add_argument(
        "--of-this-machine", action="store_true", help="leave the shared libraries out"
    )
    parser.add_argument("--fast", action="store_true", help="compress less")
    options = parser.parse_args()
    try:
        wheel = pack(options.build, options.out, options.of_this_machine, 1 if options.fast else 9)
    except (PackError, OSError) as error:
        sys.exit(f"pack_wheel: {error}")
    print(f"{wheel} ({wheel.stat().st_size / 1e6:.1f} MB)")


def pack(build: Path, out: Path, of_this_machine: bool, level: int) -> Path:
    files = package_files()
    files |= {f"{stem()}.dist-info/licenses/{name}": text for name, text in licences().items()}
    scripts = {
        f"{stem()}.data/scripts/{name}": _LAUNCHER.format(name=name).encode() for name in PROGRAMS
    }
    with tempfile.TemporaryDirectory() as scratch:
        staged = _staged(build, Path(scratch))
        if not of_this_machine:
            for path in staged:
                _run("strip", "--strip-unneeded", path)
            staged += _with_libraries(staged, Path(scratch) / "prefixd" / "lib")
            for path in staged:
                check_versions(path.name, _run("readelf", "--wide", "--version-info", path))
        binaries = {path.relative_to(scratch).as_posix(): path.read_bytes() for path in staged}
    out.mkdir(parents=True, exist_ok=True)
    tag = platform_tag() if of_this_machine else _TAG
    programs = scripts.keys() | binaries.keys()
    return write_wheel(out, files | scripts | binaries, tag, programs, level)


def _staged(build: Path, scratch: Path) -> list[Path]:
    """Copies the programs and the library to their places below `scratch`."""
    places = {build / name: scratch / "prefixd" / "bin" / name for name in PROGRAMS}
    places[build / Path(BUNDLED).name] = scratch / BUNDLED
    for built, place in places.items():
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(built, place)
    return list(places.values())


def _with_libraries(carriers: list[Path], folder: Path) -> list[Path]:
    """Copies into `folder` the libraries that `carriers` need, and makes everything find them
    there. Returns the copies."""
    found: dict[str, Path] = {}
    for carrier in carriers:
        found |= _needed(carrier)
    folder.mkdir()
    names: dict[str, str] = {}
    copies = []
    for name, path in sorted(found.items()):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
        names[name] = f"{name.partition('.so')[0]}-{digest}.so"
        copies.append(folder / names[name])
        shutil.copy(path, copies[-1])
        _run("patchelf", "--set-soname", names[name], copies[-1])
    for path in [*carriers, *copies]:
        needed = _run("patchelf", "--print-needed", path).split()
        renamed = [name for name in needed if name in names]
        if renamed:
            changes = [word for name in renamed for word in ("--replace-needed", name, names[name])]
            _run("patchelf", *changes, path)
            place = "$ORIGIN/" + os.path.relpath(folder, path.parent)
            _run("patchelf", "--set-rpath", place, path)
    for path in [*carriers, *copies]:
        for name, place in _needed(path).items():
            if place.parent.resolve() != folder.resolve():
                raise PackError(f"{path.name} needs {name} and would take it from {place.parent}")
    return copies


def _needed(path: Path) -> dict[str, Path]:
    """Returns where the loader finds what `path` needs, but for what every Linux has."""
    found = {}
    for line in _run("ldd", path).splitlines():
        name, arrow, place = line.strip().partition(" => ")
        if not arrow or _EVERYWHERE.fullmatch(name):
            continue
        if not place.startswith("/"):
            raise PackError(f"{path.name} needs {name}, which is not installed")
        found[name] = Path(place.partition(" (")[0])
    return found


def check_versions(name: str, said: str) -> None:
    """Raises PackError if the file needs newer symbols than the wheel's tag promises.
    `said`: what readelf --version-info says of it."""
    for library, version in re.findall(r"Name: (GLIBC|GLIBCXX|CXXABI|GCC)_([\d.]+)", said):
        if tuple(map(int, version.split("."))) > _NEWEST[library]:
            raise PackError(
                f"{name} needs {library}_{version}, newer than {_TAG} has: pack it on Debian 12"
            )


def _newest(files: Iterable[Path], package: str) -> Path:
    found = sorted(files, key=lambda file: [int(n) for n in re.findall(r"\d+", file.parent.name)])
    if not found:
        raise PackError(f"{package}: its licence is not in /usr/share/doc")
    return found[-1]


def licences() -> dict[str, bytes]:
    """Returns prefixd's licence, those of what is linked in, and the texts that they refer to."""
    texts = {"LICENSE": (SOURCE_TREE / "LICENSE").read_bytes()}
    common = Path("/usr/share/common-licenses")
    for package in _LINKED:
        said = _newest(Path("/usr/share/doc").glob(f"{package}/copyright"), package).read_bytes()
        texts[f"{package.replace('-*', '')}.txt"] = said
        for name in re.findall(rb"/usr/share/common-licenses/([\w.+-]*\w)", said):
            text = common / name.decode()
            if text.exists():
                texts[f"common-licenses/{text.name}"] = text.read_bytes()
    return texts


def _run(*command: str | Path) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        raise PackError(f"there is no program {command[0]}: scripts/install-deps --wheel") from None
    if done.returncode != 0:
        raise PackError(f"{command[0]} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


if __name__ == "__main__":
    main()
