"""Packs wheels of a build folder's programs, installs them and makes first hits: run.py BUILD_DIR"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
import urllib.request
from pathlib import Path

SKIPPED = 77  # what CTest shows as "Skipped"
ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / "client" / "python"
PATIENCE_S = 120

sys.path[:0] = [str(PYTHON)]
import build_wheel
import pack_wheel

BUILD = Path()  # set by main()


class WheelTest(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="prefixd_wheel_"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.address = f"unix://{self.folder}/prefixd.sock"
        self.addCleanup(self.end)
        # Nothing of the caller's: a user has no settings of prefixd and none of this project's paths.
        self.environment = {"PATH": "/usr/bin:/bin", "HOME": str(self.folder)}

    def end(self) -> None:
        """Ends the prefixd that was started at the socket of this test, and removes its arena."""
        named = f"--socket={self.folder}/prefixd.sock".encode()
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and named in (entry / "cmdline").read_bytes().split(b"\0"):
                    ended = os.pidfd_open(int(entry.name))
                    signal.pidfd_send_signal(ended, signal.SIGTERM)
                    select.select([ended], [], [], PATIENCE_S)
                    os.close(ended)
            except OSError:
                continue  # it ended meanwhile
        for path in Path("/dev/shm").glob(f"{self.folder.name}.arena*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def run_it(self, *command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env=self.environment | environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )

    def installed(self, *options: str) -> Path:
        """Packs and installs a wheel. Returns the folder of the environment's commands."""
        packed = self.run_it(
            sys.executable, "-B", PYTHON / "pack_wheel.py", BUILD, self.folder, "--fast", *options
        )
        self.assertEqual(packed.returncode, 0, packed.stderr)
        (wheel,) = self.folder.glob("*.whl")
        # NumPy is the machine's: this test downloads nothing.
        made = self.run_it(sys.executable, "-m", "venv", "--system-site-packages", "venv")
        if made.returncode != 0:
            self.skipTest("no venv (Debian: python3-venv): " + made.stdout.strip()[-200:])
        commands = self.folder / "venv" / "bin"
        done = self.run_it(commands / "pip", "install", "--no-index", wheel)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return commands

    def hits(self, commands: Path) -> None:
        """The two commands of the README after the first: `pip install`."""
        hit = self.run_it(
            commands / "python",
            "-m",
            "prefixd",
            self.address,
            PREFIXD_START="1",
            # Root's defaults would be those of the host's own prefixd.
            PREFIXD_DIRECTORY=f"{self.folder}/ssd",
            PREFIXD_SSD_ID_FILE="off",
            PREFIXD_ARENA=f"/dev/shm/{self.folder.name}.arena",
        )
        self.assertEqual((hit.returncode, hit.stderr), (0, ""), hit.stdout)
        self.assertIn("exact      1023 of 1024 tokens", hit.stdout)
        self.assertIn("bit for bit the same", hit.stdout)
        status = self.run_it(commands / "prefixctl", "--server", self.address, "status")
        self.assertEqual(status.returncode, 0, status.stderr)
        self.assertIn("first-hit", status.stdout)

    def test_a_first_hit_is_two_commands_away_in_an_empty_environment(self) -> None:
        commands = self.installed("--of-this-machine")
        self.hits(commands)
        for name in pack_wheel.PROGRAMS:
            said = self.run_it(commands / name, "--help")
            self.assertEqual(said.returncode, 0, said.stderr)
        found = self.run_it(
            commands / "python", "-c", "import prefixd._abi; print(prefixd._abi._find())"
        )
        self.assertEqual(Path(found.stdout.strip()).parent.name, "prefixd", "the one it carries")
        given = self.run_it(
            commands / "python",
            "-c",
            "import prefixd; print(prefixd.connect('unix:///none').error)",
            PREFIXD_LIBRARY="/no/such/libprefixd.so",
        )
        self.assertIn("/no/such/libprefixd.so", given.stdout, "the one that is named wins")

    @unittest.skipUnless(shutil.which("patchelf"), "no patchelf (scripts/install-deps --wheel)")
    def test_a_wheel_for_other_machines_takes_nothing_from_this_one(self) -> None:
        commands = self.installed()
        self.hits(commands)
        (package,) = (commands.parent / "lib").glob("python3*/site-packages/prefixd")
        everywhere = pack_wheel._EVERYWHERE
        for binary in [*package.glob("bin/*"), *package.glob("*.so*"), *package.glob("lib/*")]:
            for line in self.run_it("ldd", binary).stdout.splitlines():
                name, _, place = line.strip().partition(" => ")
                if place and not everywhere.fullmatch(name):
                    self.assertEqual(Path(place.split()[0]).parent.resolve(), package / "lib", line)

    @unittest.skipUnless(shutil.which("patchelf"), "no patchelf (scripts/install-deps --wheel)")
    def test_the_prefixd_of_a_wheel_serves_metrics(self) -> None:
        commands = self.installed()
        options = [f"--socket={self.folder}/prefixd.sock", "--ram=64MiB", "--ssd=off", "--arena=off"]
        program = subprocess.Popen(
            [commands / "prefixd", *options, "--metrics=127.0.0.1:0"],
            env=self.environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(program.stderr.close)
        self.addCleanup(program.wait, PATIENCE_S)
        self.addCleanup(program.terminate)
        said = []
        for line in program.stderr:
            said.append(line)
            if "serving after" in line:
                break
        address = next(line.split()[-1] for line in said if "metrics: http://" in line)
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(address) as reply:
            self.assertIn("prefixd_build_info{version=", reply.read().decode())

    def test_what_is_linked_in_has_its_licence_in_the_wheel(self) -> None:
        texts = pack_wheel.licences()
        self.assertIn(b"Apache License", texts["LICENSE"])
        for name in ("libgrpc-dev.txt", "librocksdb-dev.txt", "prometheus-cpp-dev.txt", "common-licenses/Apache-2.0"):
            self.assertIn(name, texts)

    def test_the_same_files_give_the_same_wheel(self) -> None:
        files = {"prefixd/b.py": b"b", "prefixd/a.py": b"a" * 10_000, "prefixd/bin/p": b"p"}
        wheels = []
        for name, order in ("one", list(files)), ("two", sorted(files)):
            (self.folder / name).mkdir()
            some = {path: files[path] for path in order}
            made = build_wheel.write_wheel(self.folder / name, some, "py3-none-any", {"prefixd/bin/p"})
            wheels.append(made.read_bytes())
        self.assertEqual(*wheels)

    def test_a_file_that_needs_a_newer_glibc_is_refused(self) -> None:
        said = "0x0010: Name: GLIBC_2.{}  Flags: none  Version: 2"
        pack_wheel.check_versions("prefixd", said.format(36))
        with self.assertRaisesRegex(pack_wheel.PackError, "prefixd needs GLIBC_2.38, newer than"):
            pack_wheel.check_versions("prefixd", said.format(38))


def main() -> int:
    global BUILD
    BUILD = Path(sys.argv[1]).resolve()
    try:
        import numpy
    except ImportError as error:
        print(f"SKIP: tests of the wheel: {error} (Debian: python3-numpy)")
        return SKIPPED
    print(f"NumPy {numpy.__version__}, Python {sys.version.split()[0]}", flush=True)
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(WheelTest)
    return 0 if unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
