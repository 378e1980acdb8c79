"""Starting a prefixd where none runs, for users who allow it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

_LOOK_S = 0.02
_CARRIED = Path(__file__).parents[1] / "bin"  # only a wheel of scripts/wheel has it
_children: list[subprocess.Popen[bytes]] = []  # that go on: nobody waits for their end


class StartError(RuntimeError):
    """prefixd did not start. The text says why."""


def start_if_absent(
    address: str, arguments: Sequence[str] = (), program: str = "prefixd", patience_s: float = 20.0
) -> bool:
    """Starts prefixd at `address`, a unix socket, if nobody listens there, and waits until it does.
    Returns whether it was started here.

    It goes on when this process ends, as others share it by then, and writes its log beside the
    socket ("prefixd.log"). `arguments`: more settings, such as "--ram=8GiB". `program`: a name on
    the PATH or a path; "prefixd" is the one that this package carries, if it does. Several processes
    may call this at once: one prefixd stays. Raises StartError.
    """
    path = _path_of(address)
    if _listens(path):
        return False
    found = find_program(program)
    if found is None:
        raise StartError(f"no prefixd listens at {address}, and there is no program {program!r}")
    until = time.monotonic() + patience_s
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with path.with_suffix(".start.lock").open("wb") as lock:
            _lock(lock, until)
            if _listens(path):  # another process was first
                return False
            _start([found, f"--socket={path}", *arguments], path, until)
    except OSError as error:
        raise StartError(f"prefixd cannot be started at {address}: {error}") from error
    return True


def find_program(name: str) -> str | None:
    """Returns the path of the program that this package carries under this name, else of the one on
    the PATH; None if there is none."""
    carried = _CARRIED / name
    return str(carried) if carried.is_file() else shutil.which(name)


def _lock(lock: IO[bytes], until: float) -> None:
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _tick(until, "another process has begun to start prefixd, and does not end")


def _start(command: list[str], path: Path, until: float) -> None:
    """Returns once prefixd listens."""
    log_path = path.with_suffix(".log")
    with log_path.open("ab") as log:
        began = log.tell()
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # a Ctrl-C to this process does not end it
            env=_environment(),
        )
    while not _listens(path):
        if child.poll() is not None:
            said = log_path.read_bytes()[began:].decode(errors="replace").strip()
            last = said.splitlines()[-1] if said else "it said nothing"
            raise StartError(f"prefixd ended with {child.returncode}: {last}")
        try:
            _tick(until, f"prefixd does not listen at {path}")
        except StartError:
            child.kill()
            child.wait()
            raise
    _children.append(child)


def _tick(until: float, late: str) -> None:
    if time.monotonic() > until:
        raise StartError(late)
    time.sleep(_LOOK_S)


def _path_of(address: str) -> Path:
    scheme, _, path = address.partition(":")
    if scheme != "unix" or not path:
        raise StartError(f"prefixd is started at a unix socket alone, the address is {address!r}")
    return Path(path.removeprefix("//"))


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, contextlib.suppress(OSError):
        probe.settimeout(1.0)
        probe.connect(str(path))
        return True
    return False


def _environment() -> dict[str, str]:
    """Without the settings that are meant for this process alone."""
    ours = ("PREFIXD_ADDRESS", "PREFIXD_SALT", "PREFIXD_START", "PREFIXD_LIBRARY", "PREFIXD")
    return {name: value for name, value in os.environ.items() if name not in ours}
