"""The files of deploy/macos and the workflow for Macs, as far as they can be read without one: run.py [TEST...]"""

import plistlib
import re
import shutil
import subprocess
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy/macos"


def read(name):
    return (ROOT / name).read_text()


class AgentTest(unittest.TestCase):
    def setUp(self):
        self.agent = plistlib.loads((FOLDER / "io.prefixd.prefixd.plist").read_bytes())

    def test_label_is_the_files_name(self):
        self.assertEqual(self.agent["Label"], "io.prefixd.prefixd")

    def test_it_starts_prefixd_on_the_shipped_settings_as_the_unit_does(self):
        command = re.search(r"^ExecStart=/usr/bin/(.+)$", read("deploy/prefixd.service"), re.M).group(1)
        self.assertEqual([word.replace("@PREFIX@/bin/", "").replace("@PREFIX@", "") for word in self.agent["ProgramArguments"]], command.split())

    def test_it_overrides_no_setting(self):
        self.assertEqual(len(self.agent["ProgramArguments"]), 3)
        self.assertNotIn("EnvironmentVariables", self.agent)
        self.assertNotIn("Sockets", self.agent)  # the socket is that of prefixd.conf
        self.assertRegex(read("deploy/prefixd.conf"), r'(?m)^socket = "auto"$')

    def test_limits_and_times_are_those_of_the_unit(self):
        unit = read("deploy/prefixd.service")
        for limits in self.agent["SoftResourceLimits"], self.agent["HardResourceLimits"]:
            self.assertIn(f"\nLimitNOFILE={limits['NumberOfFiles']}\n", unit)
            self.assertIn(f"\nLimitCORE={limits['Core']}\n", unit)
        self.assertIn(f"\nTimeoutStopSec={self.agent['ExitTimeOut']}\n", unit)
        self.assertIn(f"\nUMask={self.agent['Umask']:04o}\n", unit)

    def test_it_starts_again_after_a_crash_alone_and_logs_in_the_home_folder(self):
        self.assertEqual(self.agent["KeepAlive"], {"SuccessfulExit": False})
        self.assertEqual(self.agent["StandardErrorPath"], "@HOME@/Library/Logs/prefixd.log")
        self.assertEqual(self.agent["StandardOutPath"], self.agent["StandardErrorPath"])


class DocumentTest(unittest.TestCase):
    def test_the_page_names_the_agent_and_what_to_replace(self):
        page = read("deploy/README.md")
        for word in "io.prefixd.prefixd.plist", "@PREFIX@", "@HOME@", "DARWIN_USER_DIR", "never run":
            self.assertIn(word, page)


class FormulaTest(unittest.TestCase):
    def setUp(self):
        self.formula = (FOLDER / "prefixd.rb").read_text()

    def test_service_starts_what_the_agent_starts(self):
        self.assertIn('run [opt_bin/"prefixd", "--config", etc/"prefixd/prefixd.conf"]', self.formula)

    def test_version_is_the_projects(self):
        version = re.search(r"project\(prefixd VERSION (\S+)", read("CMakeLists.txt")).group(1)
        self.assertIn(f"prefixd-{version}.tar.gz", self.formula)

    def test_it_has_the_libraries_that_the_workflow_installs(self):
        needs = set(re.findall(r'depends_on "([^"]+)"', self.formula)) - {"cmake"}
        installs = re.search(r"brew install (.+?)\n\s+- name", read(".github/workflows/macos.yml"), re.S).group(1)
        self.assertEqual(needs, set(installs.replace("\\\n", " ").split()))

    @unittest.skipUnless(shutil.which("ruby"), "no ruby here")
    def test_ruby_reads_it(self):
        subprocess.run(["ruby", "-c", FOLDER / "prefixd.rb"], check=True, capture_output=True)


class WorkflowTest(unittest.TestCase):
    def setUp(self):
        try:
            import yaml
        except ImportError:
            self.skipTest("no module yaml here")
        self.job = yaml.safe_load(read(".github/workflows/macos.yml"))["jobs"]["build"]

    def test_it_builds_and_tests_the_preset_that_is_there(self):
        commands = "\n".join(step.get("run", "") for step in self.job["steps"])
        self.assertTrue(self.job["runs-on"].startswith("macos-"))
        for command in "cmake --preset macos", "cmake --build --preset macos", "ctest --preset macos":
            self.assertIn(command, commands)

    def test_every_step_runs_or_uses_something(self):
        for step in self.job["steps"]:
            self.assertTrue(("run" in step) != ("uses" in step), step)


if __name__ == "__main__":
    unittest.main()
