"""The pods of deploy/kubernetes by `podman kube play`, which has no DaemonSets and no Jobs: their pods, on other folders of the host."""

from __future__ import annotations

import shutil
import tempfile
import unittest
import uuid
from pathlib import Path
from typing import Any

import engine
from prefixd_process import wait_for

_MANIFESTS = engine.DEPLOY / "kubernetes"


@unittest.skipIf(shutil.which("catatonit") is None, "no catatonit, which podman's pods begin with")
class PodsTest(unittest.TestCase):
    def setUp(self) -> None:
        self.name = f"prefixd-test-{uuid.uuid4().hex[:12]}"
        self.folder = Path(tempfile.mkdtemp(prefix="prefixd_pods_"))
        self.memory = Path("/dev/shm", self.name)
        self.pods: list[str] = []
        self.addCleanup(self.end)

    def end(self) -> None:
        for pod in reversed(self.pods):
            engine.tried("pod", "rm", "--force", "--time", "0", pod)
        for folder in self.folder, self.memory:
            engine.emptied(folder)
            shutil.rmtree(folder, ignore_errors=True)

    def pod(self, file: str, name: str) -> dict[str, Any]:
        (kept,) = (each for each in engine.yaml.safe_load_all((_MANIFESTS / file).read_text()) if each["metadata"]["name"] == name and "spec" in each)
        spec = kept["spec"]["template"]["spec"]
        spec["restartPolicy"] = "Never"  # podman restarts init containers too, for ever
        for volume in spec["volumes"]:
            volume["hostPath"]["path"] = self.moved(volume["hostPath"]["path"])
        for container in spec.get("initContainers", []) + spec["containers"]:
            container["image"] = engine.images()[container["image"]]
            container.pop("ports", None)  # the pods have no network here
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"{self.name}-{name}"}, "spec": spec}

    def moved(self, path: str) -> str:
        return str(self.memory) if path.startswith("/dev/shm/") else f"{self.folder}/{path.replace('/', '_')}"

    def play(self, pod: dict[str, Any]) -> engine.Container:
        file = self.folder / "pod.yaml"
        file.write_text(engine.yaml.safe_dump(pod))
        name = pod["metadata"]["name"]
        self.pods.append(name)
        engine.podman("kube", "play", "--network", "none", file)
        return engine.Container(f"{name}-{pod['spec']['containers'][0]['name']}")

    def test_an_engines_pod_hits_in_the_prefixd_of_the_nodes_pod(self) -> None:
        pod = self.pod("prefixd.yaml", "prefixd")
        (daemon,) = pod["spec"]["containers"]
        settings = {each["name"]: each for each in daemon["env"]}
        settings["PREFIXD_RAM"]["value"] = "256MiB"
        settings["PREFIXD_SSD"]["value"] = "1GiB"
        daemon["env"].append({"name": "PREFIXD_SSD_FLOOR", "value": "1MiB"})
        prefixd = self.play(pod)
        wait_for("a live prefixd", prefixd.healthy)
        self.assertIn("arena: shared, /arena/arena", prefixd.log())
        self.assertIn("10001:10001", prefixd.says("stat", "-c", "%u:%g", "/arena", "/run/prefixd", "/var/lib/prefixd"))
        hit = self.play(self.pod("engines.yaml", "first-hit"))
        wait_for("the end of the first hit", lambda: hit.state()["Status"] == "exited")
        self.assertIn("exact      1023 of 1024 tokens", hit.log())
        self.assertEqual(prefixd.stats()["counters"].get("tokens.delivered", 0), 0)
        engine.podman("pod", "stop", "--time", "45", pod["metadata"]["name"])
        self.assertEqual(prefixd.state()["ExitCode"], 0, prefixd.log())


if __name__ == "__main__":
    unittest.main()
