"""What `cmake --install` puts below a prefix is what engines and hosts need."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import installed
from prefixd_process import Process

_CONSUMER = Path(__file__).resolve().parent / "consumer"


class InstallationTest(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="prefixd_deb_"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.prefix = installed.prefix()
        (self.pkg_config,) = (path.parent for path in self.prefix.rglob("prefixd.pc"))

    def started(self) -> str:
        """Starts the installed prefixd. Returns its address."""
        options = [f"--socket={self.folder}/p.sock", "--ram=128MiB", "--ssd=off", "--arena=off"]
        process = Process([self.prefix / "bin" / "prefixd", *options], self.folder / "prefixd.log")
        self.addCleanup(process.stop)
        process.wait_for_line("serving after")
        return f"unix://{self.folder}/p.sock"

    def test_a_project_finds_prefixd_by_find_package_stores_and_hits(self) -> None:
        installed.output("cmake", "-S", _CONSUMER, "-B", self.folder / "b", f"-DCMAKE_PREFIX_PATH={self.prefix}")
        installed.output("cmake", "--build", self.folder / "b", "-j2")
        self.assertRegex(installed.output(self.folder / "b/by_c"), r"abi \d+")
        said = installed.output(self.folder / "b/by_cpp", self.started())
        self.assertEqual(said, "found 0, then 199 of 200\n")

    def test_a_version_that_is_not_there_is_not_found(self) -> None:
        text = "cmake_minimum_required(VERSION 3.25)\nproject(other LANGUAGES C)\nfind_package(prefixd 9.0 REQUIRED COMPONENTS c)\n"
        (self.folder / "CMakeLists.txt").write_text(text)
        with self.assertRaisesRegex(AssertionError, "version: " + re.escape(installed.VERSION)):
            installed.output("cmake", "-B", self.folder / "b", f"-DCMAKE_PREFIX_PATH={self.prefix}", cwd=self.folder)

    def test_pkg_config_compiles_and_links_a_c_program(self) -> None:
        environment = {"PATH": "/usr/bin:/bin", "PKG_CONFIG_PATH": str(self.pkg_config)}
        flags = installed.output("pkg-config", "--cflags", "--libs", "prefixd", environment=environment).split()
        installed.output("cc", _CONSUMER / "by_c.c", "-o", self.folder / "by_c", *flags)
        library = {"LD_LIBRARY_PATH": str(self.pkg_config.parent)}
        self.assertRegex(installed.output(self.folder / "by_c", environment=library), r"abi \d+")
        said = installed.output("pkg-config", "--modversion", "prefixd", "prefixd-client", environment=environment)
        self.assertEqual(set(said.split()), {installed.VERSION})

    def test_pkg_config_knows_what_the_cpp_client_is_linked_with(self) -> None:
        environment = {"PATH": "/usr/bin:/bin", "PKG_CONFIG_PATH": str(self.pkg_config)}
        flags = installed.output("pkg-config", "--cflags", "--libs", "prefixd-client", environment=environment).split()
        installed.output("c++", "-std=c++20", _CONSUMER / "by_cpp.cc", "-o", self.folder / "by_cpp", *flags)
        self.assertTrue((self.folder / "by_cpp").exists())

    def test_every_public_header_is_installed(self) -> None:
        public = {path.name for path in (installed.ROOT / "client/include/prefixd").glob("*.h")}
        self.assertEqual({path.name for path in (self.prefix / "include/prefixd").iterdir()}, public)
        of_c = {path.name for path in (installed.ROOT / "client/c").glob("prefixd*.h")}
        self.assertEqual({path.name for path in (self.prefix / "include").glob("*.h")}, of_c)

    def test_the_python_package_is_whole_and_has_its_version(self) -> None:
        packages = self.prefix / "lib/python3/dist-packages"
        program = "import importlib.metadata, prefixd; print(importlib.metadata.version('prefixd'), prefixd.__file__)"
        said = installed.output(sys.executable, "-c", program, environment={"PYTHONPATH": str(packages)}).split()
        self.assertEqual(said, [installed.VERSION, str(packages / "prefixd/__init__.py")])
        plugins = "import importlib.metadata as m; print([e.value for e in m.entry_points(group='vllm.general_plugins')])"
        said = installed.output(sys.executable, "-c", plugins, environment={"PYTHONPATH": str(packages)})
        self.assertIn("prefixd.vllm.plugin:register", said)

    def test_units_name_the_programs_and_settings_of_their_prefix(self) -> None:
        unit = (self.prefix / "lib/systemd/system/prefixd.service").read_text()
        self.assertIn(f"ExecStart={self.prefix}/bin/prefixd --config {self.prefix}/etc/prefixd/prefixd.conf\n", unit)

    def test_below_usr_the_settings_are_in_etc(self) -> None:
        installed.install(Path("/usr"), "--component", "prefixd", destination=self.folder)
        self.assertTrue((self.folder / "etc/prefixd/prefixd.conf").exists())
        unit = (self.folder / "usr/lib/systemd/system/prefixd.service").read_text()
        self.assertIn("ExecStart=/usr/bin/prefixd --config /etc/prefixd/prefixd.conf\n", unit)

    def test_installing_again_keeps_the_operators_settings(self) -> None:
        installed.install(self.folder, "--component", "prefixd")
        conf = self.folder / "etc/prefixd/prefixd.conf"
        conf.write_text('ram = "1GiB"\n')
        installed.install(self.folder, "--component", "prefixd")
        self.assertEqual(conf.read_text(), 'ram = "1GiB"\n')

    @unittest.skipUnless(shutil.which("systemd-analyze"), "no systemd-analyze (Debian: systemd)")
    def test_S1_systemd_finds_the_units_right_and_safe(self) -> None:
        units = self.prefix / "lib/systemd/system"
        verified = subprocess.run(["systemd-analyze", "verify", units / "prefixd.service"], capture_output=True, text=True)
        # Other units of the machine may be wrong.
        self.assertNotIn("prefixd", verified.stdout + verified.stderr)
        for unit in units / "prefixd.service", installed.ROOT / "deploy/prefixd-llama.service":
            installed.output("systemd-analyze", "security", "--offline=true", "--threshold=30", unit)


    @unittest.skipUnless(shutil.which("systemd-analyze"), "no systemd-analyze (Debian: systemd)")
    def test_S6_systemd_finds_the_drop_ins_right(self) -> None:
        folder = self.folder / "drop-ins"
        (folder / "prefixd.service.d").mkdir(parents=True)
        shutil.copy(self.prefix / "lib/systemd/system/prefixd.service", folder)
        shutil.copy(self.prefix / "lib/systemd/system/run-prefixd_arena.mount", folder)
        for name in "access.conf", "arena.conf":
            shutil.copy(installed.ROOT / "deploy" / name, folder / "prefixd.service.d")
        environment = {"PATH": os.environ["PATH"], "SYSTEMD_UNIT_PATH": f"{folder}:"}
        command = ["systemd-analyze", "verify", folder / "prefixd.service"]
        verified = subprocess.run(command, env=environment, capture_output=True, text=True)
        self.assertNotIn("prefixd", verified.stdout + verified.stderr)

    def test_S6_the_settings_beside_a_credential_name_it(self) -> None:
        text = (installed.ROOT / "deploy/access.conf").read_text()
        credentials = set(re.findall(r"LoadCredential=([\w.]+):/etc/prefixd/\1$", text, re.M))
        named = set(re.findall(r'"/run/credentials/prefixd.service/([\w.]+)"', text))
        self.assertEqual(credentials, named)
        flags = {flag.removeprefix("--") for flag in installed.flags_of("prefixd")}
        self.assertLessEqual(set(re.findall(r"^# +(?:mTLS: )?([\w-]+) = ", text, re.M)), flags)


class PapersTest(unittest.TestCase):
    def test_the_changelog_begins_with_the_version(self) -> None:
        first = (installed.ROOT / "deploy/debian/changelog").read_text().splitlines()[0]
        self.assertTrue(first.startswith(f"prefixd ({installed.VERSION}-1) "), first)

    @unittest.skipUnless(shutil.which("help2man"), "no help2man (scripts/install-deps --deb)")
    def test_the_manual_pages_have_every_flag_and_command(self) -> None:
        for program in installed.PROGRAMS:
            (page,) = (installed.prefix() / "share/man").glob(f"man?/{program}.?.gz")
            text = installed.output("gzip", "-dc", page).replace("\\-", "-")
            for command in [(), *((name,) for name in installed.commands_of(program))]:
                for flag in installed.flags_in(installed.help_of(program, *command)):
                    self.assertIn(flag, text, program)
                self.assertIn(" ".join([program, *command]), text)

    @unittest.skipUnless(shutil.which("lintian"), "no lintian (scripts/install-deps --deb)")
    def test_S1_lintian_finds_no_error_in_the_packages(self) -> None:
        packages = sorted((installed.BUILD / "packages").glob("*.deb"))
        if not packages:
            self.skipTest("no packages in the build folder (scripts/deb)")
        installed.output("lintian", "--allow-root", "--fail-on", "error", *packages)


if __name__ == "__main__":
    unittest.main()
