"""One installation that the tests of this folder share: `cmake --install` into a folder of its own."""

from __future__ import annotations

import atexit
import functools
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

BUILD = Path(os.environ["PREFIXD_BUILD"])
ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("prefixd", "prefixctl", "prefixd-llama", "prefixd-worker")
PATIENCE_S = 120
VERSION = re.search(r"^project\(prefixd VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text(), re.M)[1]


@functools.cache
def prefix() -> Path:
    """Returns the prefix of the installation; the process removes it at its end."""
    folder = Path(tempfile.mkdtemp(prefix="prefixd_installed_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    install(folder)
    return folder


def install(folder: Path, *options: str, destination: Path | None = None) -> str:
    """Installs below `folder`, or below `destination`/`folder`. Returns what cmake said."""
    environment = {"PATH": os.environ["PATH"], "DESTDIR": str(destination or "")}
    return output("cmake", "--install", BUILD, "--prefix", folder, *options, environment=environment)


def output(*command: object, environment: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    """Returns what the command says. AssertionError, with its words, if it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(words, env=environment, cwd=cwd, capture_output=True, text=True, timeout=PATIENCE_S)
    if done.returncode != 0:
        raise AssertionError(f"{words} ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return done.stdout


@functools.cache
def help_of(program: str, *command: str) -> str:
    return output(prefix() / "bin" / program, *command, "--help")


@functools.cache
def commands_of(program: str) -> tuple[str, ...]:
    """Returns the commands that --help lists."""
    listed = help_of(program).partition("\nSubcommands:\n")[2].partition("\n\n")[0]
    return tuple(re.findall(r"^  (\S+)", listed, re.M))


def flags_in(said: str) -> set[str]:
    """Returns the flags that a --help lists: lines that begin with one, short names before long ones."""
    flags = set()
    for line in re.findall(r"^ {2,4}(-[-\w,]+)", said, re.M):
        flags |= {name for name in line.split(",") if name.startswith("-")}
    return flags


def flags_of(program: str, *command: str) -> set[str]:
    """Returns what --help says that may follow `command`, the program's own flags too."""
    return flags_in(help_of(program)) | (flags_in(help_of(program, *command)) if command else set())
