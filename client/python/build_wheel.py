"""The build backend of this package (PEP 517): a wheel of the Python files and libprefixd.so.1.

It needs nothing but the standard library, so pip installs without a network. The library is that of
PREFIXD_LIBRARY. Without it, cmake builds the library from the source tree around this folder.
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
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCE_TREE = HERE.parent.parent
BUNDLED = "prefixd/libprefixd.so.1"


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    with open(HERE / "pyproject.toml", "rb") as file:
        project = tomllib.load(file)["project"]
    name = f"{project['name']}-{project['version']}"
    tag = "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")
    with tempfile.TemporaryDirectory() as scratch:
        files = {
            file.relative_to(HERE).as_posix(): file.read_bytes()
            for file in sorted((HERE / "prefixd").rglob("*"))
            if file.suffix in (".py", ".pyi", ".typed") or file.name == "py.typed"
        }
        files[BUNDLED] = _library(Path(scratch)).read_bytes()
    info = f"{name}.dist-info"
    files[f"{info}/METADATA"] = _metadata(project).encode()
    files[f"{info}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: prefixd\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    )
    if "entry-points" in project:
        files[f"{info}/entry_points.txt"] = _entry_points(project["entry-points"]).encode()
    files[f"{info}/RECORD"] = _record(files, f"{info}/RECORD").encode()
    wheel = f"{name}-{tag}.whl"
    with zipfile.ZipFile(Path(wheel_directory) / wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            archive.writestr(path, data)
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
