"""Installs the Python package for the system's Python: python_files.py FOLDER

The files and the description that a wheel of client/python has, without a library: the package finds
the system's libprefixd.so.1.
"""

import sys
import tempfile
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "client" / "python"))

import build_wheel  # noqa: E402


def main() -> None:
    folder = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as scratch:
        wheel = build_wheel.write_wheel(Path(scratch), build_wheel.package_files(), "py3-none-any")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


if __name__ == "__main__":
    main()
