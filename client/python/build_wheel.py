"""The build backend of this package (PEP 517): a wheel of the Python files and libprefixd.so.1.

It needs nothing but the standard library, so pip installs without a network. The library is that of
PREFIXD_LIBRARY. Without it, cmake builds the library from the source tree around this folder.
pack_wheel.py packs the wheel that carries the programs, too.
"""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import zipfile
from collections.abc import Collection
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCE_TREE = HERE.parent.parent
BUNDLED = "prefixd/libprefixd.so.1"


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    files = package_files()
    with tempfile.TemporaryDirectory() as scratch:
        files[BUNDLED] = _library(Path(scratch)).read_bytes()
    return write_wheel(Path(wheel_directory), files, platform_tag()).name


def platform_tag() -> str:
    """Returns the tag of a wheel that runs where Python runs now, and on machines like it."""
    return "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")


def package_files() -> dict[str, bytes]:
    """Returns the Python files of the package, by their path in a wheel."""
    return {
        file.relative_to(HERE).as_posix(): file.read_bytes()
        for file in sorted((HERE / "prefixd").rglob("*"))
        if file.suffix in (".py", ".pyi") or file.name == "py.typed"
    }


def project() -> dict:
    with open(HERE / "pyproject.toml", "rb") as file:
        return tomllib.load(file)["project"]


def stem() -> str:
    """Returns the name that a wheel's file and folders begin with: "prefixd-0.1.0"."""
    about = project()
    return f"{about['name']}-{about['version']}"


def write_wheel(
    folder: Path, files: dict[str, bytes], tag: str, programs: Collection[str] = (), level: int = 9
) -> Path:
    """Writes a wheel of `files`, by their path in it. Those named in `programs` can be executed.
    `level`: 1 (fast) to 9 (small). The same files give the same bytes."""
    about, info = project(), f"{stem()}.dist-info"
    files = dict(files)
    files[f"{info}/METADATA"] = _metadata(about).encode()
    files[f"{info}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: prefixd\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    )
    if "entry-points" in about:
        files[f"{info}/entry_points.txt"] = _entry_points(about["entry-points"]).encode()
    files = dict(sorted(files.items(), key=lambda item: (item[0].startswith(info), item[0])))
    files[f"{info}/RECORD"] = _record(files, f"{info}/RECORD").encode()
    wheel = folder / f"{stem()}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, data in files.items():
            entry = zipfile.ZipInfo(path)  # of 1980, whenever it is packed
            entry.create_system = 3  # Unix: the mode counts
            entry.external_attr = (0o100755 if path in programs else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data, compresslevel=level)
    return wheel


def build_sdist(sdist_directory, config_settings=None):
    raise RuntimeError("no sdist: the library is built from the whole source tree of prefixd")


def _library(scratch: Path) -> Path:
    given = os.environ.get("PREFIXD_LIBRARY")
    if given:
        library = Path(given)
        if not library.is_absolute():  # pip does not run this in the caller's folder
            raise RuntimeError(f"PREFIXD_LIBRARY is {given}, must be an absolute path")
        if not library.is_file():
            raise RuntimeError(f"PREFIXD_LIBRARY is {given}: there is no such file")
        return library
    configure = ["cmake", "-S", SOURCE_TREE, "-B", scratch, "-DCMAKE_BUILD_TYPE=RelWithDebInfo"]
    build = ["cmake", "--build", scratch, "--target", "prefixd_c", "--parallel"]
    for command in (configure, [*build, str(os.cpu_count() or 1)]):
        print(*command, flush=True)
        if subprocess.run(command, stdout=sys.stderr).returncode != 0:
            raise RuntimeError(
                "libprefixd.so was not built: install what scripts/install-deps names, "
                "or give one by PREFIXD_LIBRARY"
            )
    return scratch / "libprefixd.so.1"


def _metadata(project: dict) -> str:
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {project['name']}",
        f"Version: {project['version']}",
        f"Summary: {project['description']}",
        "License: Apache-2.0",
        f"Requires-Python: {project['requires-python']}",
        *(f"Requires-Dist: {each}" for each in project["dependencies"]),
    ]
    for extra, packages in project.get("optional-dependencies", {}).items():
        lines.append(f"Provides-Extra: {extra}")
        for package, _, where in (each.partition(";") for each in packages):
            marker = f'({where.strip()}) and extra == "{extra}"' if where else f'extra == "{extra}"'
            lines.append(f"Requires-Dist: {package}; {marker}")
    readme = (HERE / project["readme"]).read_text()
    return "\n".join([*lines, "Description-Content-Type: text/markdown", "", readme])


def _entry_points(groups: dict[str, dict[str, str]]) -> str:
    return "".join(
        f"[{group}]\n" + "".join(f"{name} = {place}\n" for name, place in entries.items()) + "\n"
        for group, entries in groups.items()
    )


def _record(files: dict[str, bytes], own_path: str) -> str:
    rows = []
    for path, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(data)}")
    return "\n".join([*rows, f"{own_path},,", ""])
