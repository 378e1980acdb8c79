"""A network namespace with a link to this one, which a test cuts or narrows. Takes root, iproute2 and iptables."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache

_PROGRAMS = ("ip", "tc", "iptables")


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)


@cache
def lacking() -> str:
    """Why there are none here; empty: there are."""
    if os.geteuid() != 0:
        return "network namespaces take root"
    missing = [program for program in _PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"there is no {', '.join(missing)} (Debian: iproute2, iptables)"
    try:
        with Link() as link:
            link.drop(1)
            link.narrow("1mbit")
    except subprocess.CalledProcessError as error:
        return f"{' '.join(error.cmd)}: {error.stderr.strip()}"
    return ""


class Link:
    """`inside` is what goes before a command that is to run in the namespace, from where this one has the
    address `here`. Thread-safe."""

    _made = 0

    def __init__(self) -> None:
        Link._made += 1
        # RFC 2544 keeps these addresses for tests of networks; each process takes numbers of its own.
        number = (os.getpid() * 8 + Link._made) % (1 << 14)
        net = f"198.{18 + (number >> 13)}.{(number >> 5) & 0xFF}"
        low = (number & 31) * 8
        self.here, there = f"{net}.{low + 1}", f"{net}.{low + 2}"
        self._name = f"pfx{os.getpid()}n{Link._made}"
        self._ours, self._theirs = f"p{os.getpid()}h{Link._made}", f"p{os.getpid()}t{Link._made}"
        self.inside = ("ip", "netns", "exec", self._name)
        _run("ip", "netns", "add", self._name)
        try:
            _run("ip", "link", "add", self._ours, "type", "veth", "peer", "name", self._theirs, "netns", self._name)
            _run("ip", "address", "add", f"{self.here}/29", "dev", self._ours)
            _run("ip", "link", "set", self._ours, "up")
            _run(*self.inside, "ip", "address", "add", f"{there}/29", "dev", self._theirs)
            _run(*self.inside, "ip", "link", "set", self._theirs, "up")
            _run(*self.inside, "ip", "link", "set", "lo", "up")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """With it go its interfaces and rules."""
        subprocess.run(("ip", "netns", "del", self._name), capture_output=True, check=False)

    def drop(self, port: int) -> None:
        """What the namespace sends to the port is swallowed, without a word."""
        _run(*self.inside, "iptables", "-A", "OUTPUT", "-p", "tcp", "--dport", str(port), "-j", "DROP")

    def pass_on(self) -> None:
        _run(*self.inside, "iptables", "-F", "OUTPUT")

    def narrow(self, rate: str) -> None:
        """Both ways."""
        for inside, end in ((), self._ours), (self.inside, self._theirs):
            shape = ("tbf", "rate", rate, "burst", "16kb", "latency", "100ms")
            _run(*inside, "tc", "qdisc", "replace", "dev", end, "root", *shape)

    def widen(self) -> None:
        for inside, end in ((), self._ours), (self.inside, self._theirs):
            _run(*inside, "tc", "qdisc", "del", "dev", end, "root")
