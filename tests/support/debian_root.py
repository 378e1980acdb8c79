"""Bare Debian systems of debootstrap, for tests that install what this project packs. Wants root."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path

_PATIENCE_S = 600


def mirror() -> str:
    """Returns where this machine takes Debian's packages from."""
    asked = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Label: Debian"]
    said = subprocess.run(asked, capture_output=True, text=True).stdout.split()
    return said[0] if said else "http://deb.debian.org/debian"


class Root:
    """A bare Debian system in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def make(self, suite: str, packages: Collection[str] = ()) -> None:
        """Makes the system: what Debian itself needs, and `packages`. One that is there is used again."""
        made = self.folder.with_name(f"{self.folder.name}.made")
        if made.exists():
            return
        include = [f"--include={','.join(packages)}"] if packages else []
        command = ["debootstrap", "--variant=minbase", *include, suite]
        subprocess.run([*command, self.folder, mirror()], check=True, stdout=subprocess.DEVNULL)
        made.touch()

    def enter(self, stack: ExitStack) -> None:
        """Mounts what a machine has, until `stack` is left."""
        for kind, place in ("proc", "proc"), ("tmpfs", "dev/shm"):
            (self.folder / place).mkdir(parents=True, exist_ok=True)
            subprocess.run(["mount", "-t", kind, kind, self.folder / place], check=True)
            stack.callback(subprocess.run, ["umount", "-l", self.folder / place])
        stack.callback(self.end_all)

    def end_all(self) -> None:
        """Ends the processes of this root."""
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and (entry / "root").readlink() == self.folder:
                    os.kill(int(entry.name), signal.SIGKILL)
            except OSError:
                continue  # it ended meanwhile

    def run(self, command: str, *, fails: bool = False) -> str:
        """Runs a shell command in root's home with an empty environment. Returns what it says."""
        print(f"  $ {command}", flush=True)
        clean = ["env", "-i", "HOME=/root", "PATH=/root/venv/bin:/usr/sbin:/usr/bin:/sbin:/bin"]
        shell = [*clean, "sh", "-c", f"cd && {command}"]
        with tempfile.TemporaryFile("w+") as out:  # no pipe: what goes on in the background keeps it
            done = subprocess.run(
                ["chroot", self.folder, *shell], stdout=out, stderr=out, timeout=_PATIENCE_S
            )
            out.seek(0)
            said = out.read()
        print("".join(f"    {line}\n" for line in said.splitlines()[:8]), end="", flush=True)
        if (done.returncode != 0) != fails:
            raise SystemExit(f"debian_root: ended with {done.returncode}: {command}\n{said}")
        return said


def says(said: str, wanted: str) -> None:
    if wanted not in said:
        raise SystemExit(f"debian_root: {wanted!r} is not in:\n{said}")
