"""The pods of deploy/kubernetes by `podman kube play`, which has no DaemonSets and no Jobs: their pods, on other folders of the host."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import unittest
import uuid
from pathlib import Path
from typing import Any

import engine
from prefixd_process import wait_for

_MANIFESTS = engine.DEPLOY / "kubernetes"
_SMALL = {"PREFIXD_RAM": "256MiB", "PREFIXD_SSD": "1GiB", "PREFIXD_SSD_FLOOR": "1MiB"}
_HIT = "exact      1023 of 1024 tokens"


def strategic(patch: dict[str, Any], spec: dict[str, Any]) -> None:
    """Applies what `kubectl patch` would: lists get what is new in the patch, a container is known by its name."""
    for key, value in patch.items():
        if key == "containers":
            for each in value:
                strategic(each, next(container for container in spec[key] if container["name"] == each["name"]))
        elif isinstance(value, list):
            spec[key] = spec.get(key, []) + value
        else:
            spec[key] = value


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
        if name == "prefixd":
            strategic({"containers": [{"name": name, "env": [{"name": key, "value": value} for key, value in _SMALL.items()]}]}, spec)
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"{self.name}-{name}"}, "spec": spec}

    def for_podman(self, pod: dict[str, Any]) -> str:
        spec = pod["spec"]
        spec["restartPolicy"] = "Never"  # podman restarts init containers too, for ever
        for volume in spec["volumes"]:
            self.place(volume)
        for container in spec.get("initContainers", []) + spec["containers"]:
            container["image"] = engine.images()[container["image"]]
            container.pop("ports", None)  # nothing of this host's
        return engine.yaml.safe_dump(pod)

    def place(self, volume: dict[str, Any]) -> None:
        """Puts a folder of this host that is the test's into the place of a volume."""
        if "hostPath" in volume:
            path = volume["hostPath"]["path"]
            volume["hostPath"]["path"] = str(self.memory if path.startswith("/dev/shm/") else self.folder / path.replace("/", "_"))
            return
        for source in "secret", "configMap", "emptyDir":
            volume.pop(source, None)
        volume["hostPath"] = {"path": str(self.folder / volume["name"])}

    def kubelets(self, name: str, group: int, **files: str) -> None:
        """Makes the volume of a Secret or a ConfigMap as the kubelet does for an fsGroup: links, and files of root and that group."""
        folder = self.folder / name
        (folder / "..1").mkdir(parents=True)
        (folder / "..data").symlink_to("..1")
        for file, text in files.items():
            file = file.replace("_", ".")
            (folder / "..1" / file).write_text(text)
            (folder / "..1" / file).chmod(0o440)
            os.chown(folder / "..1" / file, 0, group)
            (folder / file).symlink_to(f"..data/{file}")

    def play(self, pod: dict[str, Any], network: str = "none") -> engine.Container:
        name, container = pod["metadata"]["name"], pod["spec"]["containers"][0]["name"]
        file = self.folder / "pod.yaml"
        file.write_text(self.for_podman(pod))
        self.pods.append(name)
        engine.podman("kube", "play", "--network", network, file)
        return engine.Container(f"{name}-{container}")

    def wait_until_healthy(self, container: engine.Container) -> None:
        try:
            wait_for("a live prefixd", container.healthy)
        except TimeoutError as error:
            raise AssertionError(f"{error}:\n{container.log()}") from error

    def last_words(self, container: engine.Container) -> str:
        wait_for("its end", lambda: container.state()["Status"] == "exited")
        return container.log()

    def test_an_engines_pod_hits_in_the_prefixd_of_the_nodes_pod(self) -> None:
        pod = self.pod("prefixd.yaml", "prefixd")
        prefixd = self.play(pod)
        self.wait_until_healthy(prefixd)
        self.assertIn("arena: shared, /arena/arena", prefixd.log())
        self.assertIn("10001:10001", prefixd.says("stat", "-c", "%u:%g", "/arena", "/run/prefixd", "/var/lib/prefixd"))
        hit = self.play(self.pod("engines.yaml", "first-hit"))
        self.assertIn(_HIT, self.last_words(hit))
        self.assertEqual(prefixd.stats()["counters"].get("tokens.delivered", 0), 0)
        engine.podman("pod", "stop", "--time", "45", pod["metadata"]["name"])
        self.assertEqual(prefixd.state()["ExitCode"], 0, prefixd.log())

    @unittest.skipIf(os.geteuid() != 0, "only root may make files of a pod's group")
    @unittest.skipIf(shutil.which("openssl") is None, "no openssl")
    def test_S6_a_pod_with_a_token_hits_over_tls_and_engines_on_the_node_still_hit(self) -> None:
        self.make_secrets()
        pod = self.pod("prefixd.yaml", "prefixd")
        patch = engine.yaml.safe_load((_MANIFESTS / "tcp/prefixd-patch.yaml").read_text())
        strategic(patch["spec"]["template"]["spec"], pod["spec"])
        prefixd = self.play(pod, network="podman")
        self.wait_until_healthy(prefixd)
        self.assertIn(_HIT, self.last_words(self.play(self.pod("engines.yaml", "first-hit"))))
        infra = engine.podman("pod", "inspect", "--format", "{{.InfraContainerID}}", self.pods[0]).strip()
        address = engine.podman("inspect", "--format", "{{.NetworkSettings.IPAddress}}", infra).strip()
        pod = self.pod("tcp/first-hit.yaml", "first-hit-tcp")
        pod["spec"]["hostAliases"] = [{"ip": address, "hostnames": ["prefixd.prefixd.svc"]}]  # in the place of the Service
        self.assertIn(_HIT, self.last_words(self.play(pod, network="podman")))

    def make_secrets(self) -> None:
        """Makes what the comments of deploy/kubernetes/tcp say, as volumes of both pods."""
        made = self.folder / "made"
        made.mkdir()
        name = ("-subj", "/CN=prefixd", "-addext", "subjectAltName=DNS:prefixd.prefixd.svc")
        files = ("-keyout", made / "key", "-out", made / "certificate")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *name, *files], check=True, capture_output=True)
        token = ("token", "--name", "first-hit", "--role", "worker", "--tenant", "a", "--file", made / "token")
        entry = subprocess.run([f"{os.environ['PREFIXD_BUILD']}/prefixctl", *token], check=True, capture_output=True, text=True).stdout
        node = '{"name": "node", "gids": [10001], "tenant": "local", "role": "worker"}'
        certificate = (made / "certificate").read_text()
        self.kubelets("tls", 10001, tls_crt=certificate, tls_key=(made / "key").read_text())
        self.kubelets("access", 10001, access_json=f'{{"tokens": [{entry}], "unix": [{node}]}}')
        self.kubelets("secret", 10002, token=(made / "token").read_text())
        self.kubelets("ca", 10002, ca_crt=certificate)
        (self.folder / "token").mkdir()  # of memory
        os.chown(self.folder / "token", 0, 10002)
        (self.folder / "token").chmod(0o2770)


if __name__ == "__main__":
    unittest.main()
