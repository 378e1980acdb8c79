"""prefixd's container as deploy/compose.yaml runs it, with workers in containers of their own."""

from __future__ import annotations

import os
import signal
import time
import unittest

import engine
from prefixd_process import wait_for

_SMALL = {"PREFIXD_RAM": "256MiB", "PREFIXD_SSD": "1GiB", "PREFIXD_SSD_FLOOR": "1MiB", "PREFIXD_LOAD_WAIT": "60s"}
_ENTRY = ("--entrypoint", "python3", "--volume", f"{engine.ROOT}/tests/container/worker.py:/worker.py:ro")
_IN_PLACE = "512 tokens in place, the same"


class ServiceTest(unittest.TestCase):
    def setUp(self) -> None:
        self.stage = engine.Stage()
        self.addCleanup(self.stage.end)

    def serving(self, *options: str, **environment: str) -> engine.Container:
        container = self.stage.start("prefixd", *options, **{**_SMALL, **environment})
        self.wait_until_healthy(container)
        return container

    def wait_until_healthy(self, container: engine.Container) -> None:
        try:
            wait_for("a healthy prefixd", container.healthy)
        except TimeoutError as error:
            raise AssertionError(f"{error}:\n{container.log()}") from error

    def worker(self, what: str, *options: str) -> str:
        done = self.stage.run("first-hit", *_ENTRY, *options, command=("/worker.py", what))
        return (done.stdout + done.stderr).strip()

    def test_a_worker_hits_in_place_what_one_in_another_container_stored(self) -> None:
        prefixd = self.serving()
        self.assertEqual(self.worker("store"), "stored")
        self.assertEqual(self.worker("read"), _IN_PLACE)
        counters = prefixd.stats()["counters"]
        self.assertEqual(counters.get("tokens.delivered", 0), 0)
        self.assertEqual(counters.get("bytes.received"), counters.get("bytes.staged"))

    def test_the_clients_image_makes_a_first_hit(self) -> None:
        self.serving()
        done = self.stage.run("first-hit")
        self.assertIn("exact      1023 of 1024 tokens", done.stdout, done.stderr)
        self.assertIn("bit for bit the same", done.stdout)

    def test_prefixd_is_no_root_has_no_capabilities_and_cannot_write_its_root(self) -> None:
        prefixd = self.serving()
        status = dict(line.split(":\t", 1) for line in prefixd.says("cat", "/proc/1/status").splitlines() if ":\t" in line)
        self.assertEqual(status["Uid"].split(), ["10001"] * 4)
        self.assertEqual(int(status["CapBnd"], 16) | int(status["CapEff"], 16), 0)
        self.assertEqual(status["NoNewPrivs"], "1")
        self.assertIn("Read-only file system", prefixd.tried("touch", "/etc/prefixd/x").stderr)

    def test_the_images_alone_are_no_root(self) -> None:
        for image, user in zip(engine.images().values(), ("10001:10001", "10002:10001")):
            said = engine.podman("run", "--rm", "--network", "none", "--entrypoint", "sh", image, "-c", "echo $(id -u):$(id -g)")
            self.assertEqual(said.strip(), user)

    def test_the_health_check_fails_while_prefixd_answers_nothing(self) -> None:
        prefixd = self.serving()
        engine.podman("kill", "--signal", "STOP", prefixd.name)
        self.assertFalse(prefixd.healthy())
        engine.podman("kill", "--signal", "CONT", prefixd.name)
        self.wait_until_healthy(prefixd)

    def test_a_new_container_finds_the_cache_of_one_that_was_stopped(self) -> None:
        prefixd = self.serving()
        self.worker("store")
        engine.podman("stop", prefixd.name)  # with compose's grace time
        self.assertEqual(prefixd.state()["ExitCode"], 0, prefixd.log())
        self.assertIn("stopped: ", prefixd.log())
        prefixd.remove()
        self.serving()
        self.assertEqual(self.worker("read"), _IN_PLACE)

    def test_a_new_container_finds_the_cache_on_the_ssd_when_the_hosts_memory_is_empty(self) -> None:
        prefixd = self.serving()
        self.worker("store")
        engine.podman("stop", prefixd.name)
        prefixd.remove()
        self.stage.forget_memory()
        self.assertEqual(self.serving().stats()["counters"]["adopted.pages"], 0)
        self.assertEqual(self.worker("read"), _IN_PLACE)

    def test_a_new_container_finds_the_cache_of_one_that_was_killed(self) -> None:
        prefixd = self.serving()
        self.worker("store")
        engine.podman("kill", prefixd.name)
        prefixd.remove()
        prefixd = self.serving()
        self.assertGreater(prefixd.stats()["counters"]["adopted.pages"], 0)
        self.assertEqual(self.worker("read"), _IN_PLACE)

    @unittest.skipIf(os.geteuid() != 0, "only root may kill a process of a container")
    def test_a_prefixd_that_is_killed_is_started_again_with_its_cache(self) -> None:
        prefixd = self.serving()
        self.worker("store")
        before = prefixd.state()["Pid"]
        os.kill(before, signal.SIGKILL)
        wait_for("another process", lambda: prefixd.state()["Pid"] not in (0, before))
        self.wait_until_healthy(prefixd)
        self.assertEqual(self.worker("read"), _IN_PLACE)

    def test_the_lease_of_a_workers_container_that_is_killed_ends(self) -> None:
        prefixd = self.serving()
        self.worker("store")
        worker = self.stage.start("first-hit", *_ENTRY, command=("/worker.py", "hold"))
        wait_for("a lease", lambda: "holds 512 tokens" in worker.log())
        self.assertEqual(prefixd.stats()["leases"], 1)
        engine.podman("kill", worker.name)
        wait_for("the lease's end", lambda: prefixd.stats()["leases"] == 0)

    def test_a_worker_without_the_group_is_told_what_it_may_not(self) -> None:
        self.serving()
        done = self.stage.run("first-hit", without="group_add")
        self.assertEqual(done.returncode, 1)
        self.assertIn("permission denied on the folder of socket /run/prefixd/prefixd.sock", done.stderr)

    def test_a_prefixd_of_another_user_does_not_start_and_names_the_file(self) -> None:
        self.serving().remove()
        done = self.stage.run("prefixd", "--user", "5000:5000", "--restart", "no", **_SMALL)
        self.assertEqual(done.returncode, 3)
        self.assertIn("/run/prefixd/prefixd.sock.lock: Permission denied", done.stderr)

    def test_without_room_in_dev_shm_it_warns_and_serves_by_copy(self) -> None:
        prefixd = self.serving("--shm-size", "64m", PREFIXD_ARENA="auto", PREFIXD_RAM="512MiB")
        self.assertRegex(prefixd.log(), r"warning no shared arena, pages travel by copy: .*has room for 6\d.\d MiB, a quarter of the capacity of .* is the least")
        self.assertEqual(self.worker("store"), "stored")
        self.assertEqual(self.worker("read"), _IN_PLACE.replace("in place", "by copy"))


if __name__ == "__main__":
    unittest.main()
