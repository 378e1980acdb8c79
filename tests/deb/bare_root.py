"""Installs the packages of scripts/deb on a bare Debian 12 and takes them away again: bare_root.py DEBS NEWER_DEBS

The must-show S1 of the packages: they install, prefixd starts and serves workers, an upgrade keeps
the cache and the settings, a purge leaves nothing; systemd finds the unit right and safe. The folder
NEWER_DEBS has packages of a higher version. `scripts/deb --test` runs it. Needs root, debootstrap and
the network, so CTest does not run it; without root or debootstrap it says so and ends with 77.
First without systemd, as in a container: the test starts prefixd as the user that the package made.
Then, where the host lets it, under the root's own systemd, with the unit as it is.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from debian_root import Root, says  # noqa: E402

SKIPPED = 77
NAMES = ("prefixd", "libprefixd1", "python3-prefixd", "prefixd-dev")
_MODEL = ROOT / "tests" / "data" / "model"
_CONF = "/etc/prefixd/prefixd.conf"
_UNITS = "/usr/lib/systemd/system"
_MOST_EXPOSED = 30  # of 100; systemd shows it as 3.0
_AS_PREFIXD = "setpriv --reuid prefixd --regid prefixd --init-groups"
_QUIET = "-qq -o Dpkg::Use-Pty=0"
_STARTED = "for i in $(seq 600); do grep -q 'serving after' /tmp/prefixd.log && exit 0; sleep 0.1; done; cat /tmp/prefixd.log; exit 1"
_STOPPED = "kill $(cat /tmp/prefixd.pid) && for i in $(seq 600); do test -e /proc/$(cat /tmp/prefixd.pid) || exit 0; sleep 0.1; done; exit 1"


def main() -> int:
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    debs, newer = Path(sys.argv[1]), Path(sys.argv[2])
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        print("SKIP: bare_root: wants root and debootstrap (Debian: debootstrap)")
        return SKIPPED
    with tempfile.TemporaryDirectory(prefix="prefixd_deb_") as scratch, ExitStack() as stack:
        root = Root(Path(scratch).resolve() / "bookworm")
        root.make("bookworm")
        root.enter(stack)
        before = files(root)
        install(root, debs)
        unit_is_right_and_safe(root)
        start(root)
        serves_workers(root)
        stop(root)
        upgrade(root, newer)
        start(root)
        keeps_the_cache(root)
        purge(root)
        leaves_nothing(root, before)
        under_systemd(root, debs, newer, before, stack)
    print("S1: the packages install, start, serve workers, upgrade with their cache and purge cleanly")
    return 0


def files(root: Root) -> set[str]:
    """Returns every path of the system that has to do with prefixd."""
    said = root.run(r"find / \( -path /proc -o -path /sys -o -path /root -o -path /tmp \) -prune -o -iname '*prefixd*' -print")
    return set(said.split())


def install(root: Root, debs: Path) -> None:
    put(root, debs)
    root.run(f"apt-get update {_QUIET}")
    # A host has nothing else of this project's: what the packages depend on must be enough.
    root.run(f"DEBIAN_FRONTEND=noninteractive apt-get install {_QUIET} -y --no-install-recommends ./debs/*.deb")
    root.run("getent passwd prefixd | grep :/usr/sbin/nologin && test ! -e /home/prefixd")
    says(root.run("stat -c '%U:%G %a' /var/lib/prefixd /var/lib/prefixd-known /run/prefixd"), "prefixd:prefixd 700\nprefixd:prefixd 700\nprefixd:prefixd 750")
    says(root.run("readlink -f /etc/systemd/system/multi-user.target.wants/prefixd.service"), f"{_UNITS}/prefixd.service")
    root.run("for program in prefixd prefixctl prefixd-llama prefixd-worker; do $program --help >/dev/null || exit 1; done")


def put(root: Root, debs: Path) -> None:
    """Copies the four packages into root's home."""
    shutil.rmtree(root.folder / "root/debs", ignore_errors=True)
    (root.folder / "root/debs").mkdir()
    for name in NAMES:
        (deb,) = debs.glob(f"{name}_*.deb")
        shutil.copy(deb, root.folder / "root/debs")


def unit_is_right_and_safe(root: Root) -> None:
    said = root.run(f"systemd-analyze verify {_UNITS}/prefixd.service {_UNITS}/run-prefixd_arena.mount 2>&1")
    if said.strip():
        raise SystemExit(f"bare_root: systemd-analyze verify is not clean:\n{said}")
    # Its line about the exposure is the last one; above the threshold it fails.
    said = root.run(f"systemd-analyze security --offline=true --threshold={_MOST_EXPOSED} {_UNITS}/prefixd.service")
    print(f"    {said.strip().splitlines()[-1]}")


def start(root: Root) -> None:
    """Starts prefixd with the settings of the package, made small enough for any host, as its user."""
    root.run(f"""sed -i 's/^ram = .*/ram = "256MiB"/; s/^ssd = .*/ssd = "1GiB"/; s/^ssd-floor = .*/ssd-floor = "100MiB"/; s/^direct-io = .*/direct-io = "off"/' {_CONF}""")
    command = f"{_AS_PREFIXD} env XDG_STATE_HOME=/var/lib prefixd --config {_CONF}"
    root.run(f"rm -f /tmp/prefixd.log && ({command} >/tmp/prefixd.log 2>&1 & echo $! >/tmp/prefixd.pid)")
    root.run(_STARTED)


def stop(root: Root) -> None:
    root.run(_STOPPED)
    says(root.run("cat /tmp/prefixd.log"), "stopped")


def serves_workers(root: Root) -> None:
    shutil.copytree(_MODEL, root.folder / "root/model", dirs_exist_ok=True)
    # Workers are members of the group prefixd and have nothing else.
    root.run("useradd --system --groups prefixd engine && chmod 755 /root && chmod -R a+rX /root/model")
    hit = root.run("runuser -u engine -- python3 -m prefixd")
    says(hit, "exact      1023 of 1024 tokens")
    says(hit, "bit for bit the same")
    if cached_by_worker(root) != 0:
        raise SystemExit("bare_root: the first run of prefixd-worker found something")
    hits_by_worker(root)
    says(root.run("prefixctl status"), "first-hit")


def cached_by_worker(root: Root) -> int:
    """Runs the C++ worker on one prompt. Returns how many of its tokens were cached."""
    prompt = "In the beginning God created the heaven and the earth. " * 8
    said = root.run(f"runuser -u engine -- prefixd-worker --model /root/model --kv-bits 8 --max-tokens 4 --json --prompt '{prompt}'")
    return json.loads(said.strip().splitlines()[-1])["cached_tokens"]


def hits_by_worker(root: Root) -> None:
    if (cached := cached_by_worker(root)) < 400:
        raise SystemExit(f"bare_root: prefixd-worker found {cached} tokens of a prompt that it stored")


def upgrade(root: Root, newer: Path) -> None:
    old = root.run("dpkg-query -W -f '${Version}' prefixd").strip()
    upgrade_packages(root, newer)
    new = root.run("dpkg-query -W -f '${Version}' prefixd").strip()
    root.run(f"dpkg --compare-versions {new} gt {old}")
    says(root.run(f"cat {_CONF}"), 'ram = "256MiB"')


def upgrade_packages(root: Root, newer: Path) -> None:
    put(root, newer)
    # An operator answers dpkg that the changed settings stay, where the new package has other ones.
    root.run(f"DEBIAN_FRONTEND=noninteractive apt-get install {_QUIET} -o Dpkg::Options::=--force-confold -y --no-install-recommends ./debs/*.deb")


def keeps_the_cache(root: Root) -> None:
    hits_by_worker(root)
    says(root.run("prefixctl status"), "first-hit")


def purge(root: Root) -> None:
    root.run("useradd --system stranger && install -o stranger -m 600 /dev/null /dev/shm/prefixd-of-another.arena")
    root.run(f"DEBIAN_FRONTEND=noninteractive apt-get remove {_QUIET} -y {' '.join(NAMES)}")
    root.run("test -e /proc/$(cat /tmp/prefixd.pid)", fails=True)  # a removal stops it
    says(root.run("cat /tmp/prefixd.log"), "stopped")
    root.run(f"test -d /var/lib/prefixd && test -e {_CONF} && ls /dev/shm/*.arena")  # a removal keeps cache and settings
    root.run(f"DEBIAN_FRONTEND=noninteractive apt-get purge {_QUIET} -y prefixd")
    root.run("rm /dev/shm/prefixd-of-another.arena")  # another user's file is there still


def leaves_nothing(root: Root, before: set[str]) -> None:
    if left := files(root) - before:
        raise SystemExit(f"bare_root: the purge left {sorted(left)}")
    root.run("getent passwd prefixd || getent group prefixd", fails=True)
    root.run(f"dpkg-query -W {' '.join(NAMES)} 2>/dev/null", fails=True)


def under_systemd(root: Root, debs: Path, newer: Path, before: set[str], stack: ExitStack) -> None:
    root.run(f"DEBIAN_FRONTEND=noninteractive apt-get install {_QUIET} -y --no-install-recommends systemd-sysv")
    if why := root.boot(stack):
        print(f"SKIP: bare_root: under systemd: {why}")
        return
    put(root, debs)
    root.run(f"DEBIAN_FRONTEND=noninteractive apt-get install {_QUIET} -y --no-install-recommends ./debs/*.deb")
    root.run("systemctl is-enabled prefixd && systemctl is-active prefixd")
    root.run("usermod --append --groups prefixd engine")
    waits_until_it_serves(root)
    says(root.run("runuser -u engine -- python3 -m prefixd"), "bit for bit the same")
    cached_by_worker(root)
    old = main_pid(root)
    upgrade_packages(root, newer)
    if main_pid(root) == old:
        raise SystemExit("bare_root: the upgrade did not restart prefixd")
    waits_until_it_serves(root)
    hits_by_worker(root)
    the_mount_holds_the_arena(root)
    root.run(f"DEBIAN_FRONTEND=noninteractive apt-get purge {_QUIET} -y {' '.join(NAMES)}")
    says(root.run("systemctl list-units --all --no-legend '*prefixd*' | wc -l"), "0")
    leaves_nothing(root, before)


def main_pid(root: Root) -> str:
    return root.run("systemctl show --property MainPID --value prefixd").strip()


def waits_until_it_serves(root: Root) -> None:
    root.run("for i in $(seq 600); do prefixctl status >/dev/null 2>&1 && exit 0; sleep 0.1; done; systemctl status prefixd; exit 1")


def the_mount_holds_the_arena(root: Root) -> None:
    """The tmpfs of the package, as deploy/README.md says; the pages in it outlive kill -9."""
    drop_in = "/etc/systemd/system/prefixd.service.d"
    root.run(f"mkdir {drop_in} && cp /usr/share/doc/prefixd/examples/arena.conf {drop_in}")
    root.run(f"""sed -i 's|^arena = .*|arena = "/run/prefixd_arena/arena"|' {_CONF} && systemctl daemon-reload && systemctl restart prefixd""")
    waits_until_it_serves(root)
    root.run("mountpoint /run/prefixd_arena && test -e /run/prefixd_arena/arena")
    cached_by_worker(root)
    old = main_pid(root)
    root.run(f"kill -9 {old}")
    root.run(f"for i in $(seq 600); do test $(systemctl show --property MainPID --value prefixd) != {old} && exit 0; sleep 0.1; done; exit 1")
    waits_until_it_serves(root)
    hits_by_worker(root)
    root.run(f"rm -r {drop_in}")  # the operator's, not the package's


if __name__ == "__main__":
    sys.exit(main())
