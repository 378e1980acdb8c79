"""Bare Debian systems of debootstrap, for tests that install what this project packs. Wants root."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path

_PATIENCE_S = 600
# systemd wants a tree of control groups of its own: version 1's named one, or version 2's only one.
_CGROUPS = (
    (Path("/sys/fs/cgroup/systemd"), "mount -t tmpfs tmpfs sys/fs/cgroup && mkdir sys/fs/cgroup/systemd && mount -t cgroup -o none,name=systemd cgroup sys/fs/cgroup/systemd"),
    (Path("/sys/fs/cgroup"), "mount -t cgroup2 cgroup2 sys/fs/cgroup"),
)
_BOOTED = (
    "for i in $(seq 600); do case $(systemctl is-system-running 2>&1) in running|degraded) exit 0 ;; esac; sleep 0.1; done; "
    "systemctl --failed; exit 1"
)
# What a machine has before its first process begins. The root becomes a mount of its own.
_BOOT = """echo $$ >"$2"/cgroup.procs && exec unshare --mount --pid --uts --ipc --cgroup --fork --kill-child sh -c '
mount --make-rprivate / && mount --bind "$1" "$1" && cd "$1" && mount -t proc proc proc && mount -t sysfs -o ro sysfs sys && '"$3"' &&
mount -t tmpfs -o mode=755 tmpfs run && mount -t tmpfs tmpfs dev/shm && exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot . /sbin/init' sh "$1"
"""


def mirror() -> str:
    """Returns where this machine takes Debian's packages from."""
    asked = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Label: Debian"]
    said = subprocess.run(asked, capture_output=True, text=True).stdout.split()
    return said[0] if said else "http://deb.debian.org/debian"


class Root:
    """A bare Debian system in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._enter: list[str | Path] = ["chroot", folder]

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

    def boot(self, stack: ExitStack) -> str:
        """Starts the system's own systemd, until `stack` is left; run() then runs beside it. Returns
        "", or why it cannot be: the host lets nobody make control groups, say."""
        for cgroups, mounts in _CGROUPS:
            if (cgroups / "cgroup.procs").exists():
                break
        else:
            return "this host has no control groups for systemd"
        own = cgroups / f"prefixd-test-{os.getpid()}"
        try:
            own.mkdir()
        except OSError as error:
            return str(error)
        stack.callback(_remove_cgroup, own)
        log = self.folder.with_name(f"{self.folder.name}.boot.log")
        with log.open("wb") as out:
            parent = subprocess.Popen(["sh", "-c", _BOOT, "sh", self.folder, own, mounts], stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        stack.callback(parent.wait)
        stack.callback(parent.kill)  # and with it, by --kill-child, the system's first process
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
        deadline = time.monotonic() + _PATIENCE_S
        while parent.poll() is None and time.monotonic() < deadline:
            first = children.read_text().strip()
            if first and (Path("/proc") / first / "comm").read_text().strip() == "systemd":
                root = f"/proc/{first}/root"
                self._enter = ["nsenter", "-t", first, "-m", "-p", "-u", "-i", "-C", f"--root={root}", f"--wd={root}"]
                self.run(_BOOTED)
                return ""
            time.sleep(0.05)
        return f"systemd does not start: {log.read_text(errors='replace')[-500:]}"

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
            done = subprocess.run([*self._enter, *shell], stdout=out, stderr=out, timeout=_PATIENCE_S)
            out.seek(0)
            said = out.read()
        print("".join(f"    {line}\n" for line in said.splitlines()[:8]), end="", flush=True)
        if (done.returncode != 0) != fails:
            raise SystemExit(f"debian_root: ended with {done.returncode}: {command}\n{said}")
        return said


def _remove_cgroup(folder: Path) -> None:
    """Removes it and those in it, once their processes are gone."""
    deadline = time.monotonic() + _PATIENCE_S
    while folder.exists() and time.monotonic() < deadline:
        for below, _, _ in os.walk(folder, topdown=False):
            try:
                os.rmdir(below)
            except OSError:
                time.sleep(0.05)  # a process is still there


def says(said: str, wanted: str) -> None:
    if wanted not in said:
        raise SystemExit(f"debian_root: {wanted!r} is not in:\n{said}")
