"""prefixd.engine.own_daemon: a prefixd that the first process starts for all."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import prefixd
from prefixd.engine import own_daemon
from prefixd.engine.own_daemon import StartError, start_if_absent
from support import BUILD, PACKAGE

CALL = """
import sys
from prefixd.engine.own_daemon import start_if_absent
print(start_if_absent(sys.argv[1], sys.argv[3:], sys.argv[2]))
"""


class OwnDaemonTest(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory(prefix="prefixd-own-")
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name) / "not there yet"
        self.address = f"unix://{self.folder}/prefixd.sock"
        self.settings = ["--arena=off", "--ssd=off", "--ram=32MiB"]
        self.addCleanup(self.end)

    def starter(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", CALL, self.address, str(BUILD / "prefixd"), *self.settings]
        return subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(PACKAGE)},
        )

    def running(self) -> list[int]:
        """The processes that serve the socket of this test."""
        named = f"--socket={self.folder}/prefixd.sock".encode()
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and named in (entry / "cmdline").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue  # it ended meanwhile
        return found

    def end(self) -> None:
        for pid in self.running():
            os.kill(pid, signal.SIGKILL)

    def test_one_prefixd_stays_when_several_processes_start_it_and_end(self) -> None:
        starters = [self.starter() for _ in range(4)]
        said = [one.communicate() for one in starters]
        self.assertEqual([one.returncode for one in starters], [0] * 4, said)
        self.assertEqual(sorted(out.strip() for out, _ in said), ["False"] * 3 + ["True"])
        with prefixd.connect(self.address) as client:
            self.assertTrue(client.wait_attached(60_000))
        running = self.running()
        self.assertEqual(len(running), 1)
        self.assertEqual(os.getsid(running[0]), running[0], "no Ctrl-C of a starter reaches it")
        self.assertIn("listening on", (self.folder / "prefixd.log").read_text())

    def test_a_prefixd_that_listens_is_used(self) -> None:
        program = str(BUILD / "prefixd")
        self.assertTrue(start_if_absent(self.address, self.settings, program))
        self.assertFalse(start_if_absent(self.address, ["--no-such-setting"], "no such program"))

    def test_whoever_comes_while_another_starts_it_waits(self) -> None:
        self.folder.mkdir()
        with (self.folder / "prefixd.start.lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with self.assertRaisesRegex(StartError, "another process has begun"):
                start_if_absent(self.address, self.settings, str(BUILD / "prefixd"), patience_s=0.1)
        self.assertEqual(self.running(), [])

    def test_why_it_could_not_be_started_is_said(self) -> None:
        program = str(BUILD / "prefixd")
        for text, address, arguments, named in (
            ("no program 'no-prefixd'", self.address, [], "no-prefixd"),
            ("unix socket alone", "127.0.0.1:7777", [], program),
            ("ended with 2: ", self.address, ["--ram=3 elephants"], program),
            ("cannot be started", "unix:///proc/1/x/prefixd.sock", [], program),
        ):
            with self.subTest(text=text), self.assertRaisesRegex(StartError, text):
                start_if_absent(address, arguments, named)

    def settings_and(self, **more: str):
        """Small settings of a prefixd that is started without arguments, and `more`."""
        small = {"PREFIXD_RAM": "32MiB", "PREFIXD_SSD": "off", "PREFIXD_ARENA": "off"}
        return mock.patch.dict(os.environ, small | more)

    def test_connect_starts_one_where_it_is_asked_to(self) -> None:
        with self.settings_and(PATH=str(BUILD)):
            with prefixd.connect(self.address):
                self.assertEqual(self.running(), [])
            with prefixd.connect(self.address, start=True) as client:
                self.assertTrue(client.wait_attached(60_000), client.error)
        self.assertEqual(len(self.running()), 1)

    def test_connect_starts_one_where_the_environment_asks_and_the_caller_does_not_refuse(self) -> None:
        with self.settings_and(PATH=str(BUILD), PREFIXD_START="1"):
            with prefixd.connect(self.address, start=False):
                self.assertEqual(self.running(), [])
            with prefixd.connect(self.address) as client:
                self.assertTrue(client.wait_attached(60_000), client.error)

    def test_a_client_says_why_none_could_be_started(self) -> None:
        with self.settings_and(PATH="/nonexistent"), prefixd.connect(self.address, start=True) as client:
            self.assertIn("there is no program 'prefixd'", client.error)

    def test_the_program_that_the_package_carries_comes_before_that_of_the_path(self) -> None:
        self.folder.mkdir()
        (self.folder / "prefixd").write_text("carried")
        with mock.patch.object(own_daemon, "_CARRIED", self.folder):
            self.assertEqual(own_daemon.find_program("prefixd"), str(self.folder / "prefixd"))
            self.assertEqual(own_daemon.find_program("sh"), shutil.which("sh"))
        self.assertNotEqual(own_daemon.find_program("prefixd"), str(self.folder / "prefixd"))


if __name__ == "__main__":
    unittest.main()
