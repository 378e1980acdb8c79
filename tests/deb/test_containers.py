"""Containerfile, compose file and Kubernetes manifests agree with the programs and with each other. No image is built."""

from __future__ import annotations

import json
import re
import unittest
from pathlib import Path

import installed

try:
    import yaml
except ImportError:
    yaml = None
try:
    import kubernetes_validate
except ImportError:
    kubernetes_validate = None

_DEPLOY = installed.ROOT / "deploy"
_CLIENTS_ONLY = {"PREFIXD", "PREFIXD_ADDRESS", "PREFIXD_TLS_CA"}  # settings of vLLM's plugin and of every client


def kubernetes_files() -> list[Path]:
    return sorted((_DEPLOY / "kubernetes").rglob("*.yaml"))


def manifests() -> list[dict]:
    return [each for path in kubernetes_files() if not path.stem.endswith("-patch") for each in yaml.safe_load_all(path.read_text())]


def patched(manifest: dict, patch: dict) -> dict:
    """Returns what `kubectl patch` makes: lists of things with names are merged by name."""
    merged = dict(manifest)
    for key, value in patch.items():
        old = merged.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            merged[key] = patched(old, value)
        elif isinstance(value, list) and isinstance(old, list):
            by_name = {each["name"]: each for each in old}
            for each in value:
                by_name[each["name"]] = patched(by_name.get(each["name"], {}), each)
            merged[key] = list(by_name.values())
        else:
            merged[key] = value
    return merged


def prefixd_on_tcp() -> dict:
    (daemon_set,) = (each for each in manifests() if each["kind"] == "DaemonSet")
    patch = yaml.safe_load((_DEPLOY / "kubernetes/tcp/prefixd-patch.yaml").read_text())
    return patched(daemon_set, patch)


def pods() -> dict[str, dict]:
    return {each["metadata"]["name"]: each["spec"]["template"]["spec"] for each in manifests() if "template" in each.get("spec", {})}


def settings_in(text: str) -> set[str]:
    return set(re.findall(r"\bPREFIXD_[A-Z_]+", text)) | set(re.findall(r"\bPREFIXD\b(?=, value)", text))


@unittest.skipIf(yaml is None, "no yaml (Debian: python3-yaml)")
class ContainersTest(unittest.TestCase):
    def test_every_setting_that_a_file_names_is_one_of_prefixds(self) -> None:
        known = {"PREFIXD_" + flag[2:].upper().replace("-", "_") for flag in installed.flags_of("prefixd")}
        for path in _DEPLOY / "Containerfile", _DEPLOY / "compose.yaml", *kubernetes_files():
            self.assertLessEqual(settings_in(path.read_text()), known | _CLIENTS_ONLY, path.name)

    def test_images_have_the_version_of_the_source(self) -> None:
        for path in _DEPLOY / "Containerfile", _DEPLOY / "compose.yaml", *kubernetes_files():
            for name, version in re.findall(r"(?<![-\w])(prefixd(?:-client)?):(\d[\w.]*)", path.read_text()):
                self.assertEqual(version, installed.VERSION, f"{name} in {path.name}")

    def test_prefixd_is_not_root_and_cannot_write_its_root(self) -> None:
        self.assertIn("\nUSER 10001:10001\n", (_DEPLOY / "Containerfile").read_text())
        service = yaml.safe_load((_DEPLOY / "compose.yaml").read_text())["services"]["prefixd"]
        self.assertEqual((service["user"], service["read_only"], service["cap_drop"]), ("10001:10001", True, ["ALL"]))
        (container,) = pods()["prefixd"]["containers"]
        context = container["securityContext"]
        self.assertTrue(context["runAsNonRoot"] and context["readOnlyRootFilesystem"])
        self.assertEqual((context["allowPrivilegeEscalation"], context["capabilities"]), (False, {"drop": ["ALL"]}))

    def test_an_image_depends_on_the_packages_that_it_mounts(self) -> None:
        """podman keeps a layer that mounts packages although they have changed, unless something of them was copied before."""
        stages = (_DEPLOY / "Containerfile").read_text().split("\nFROM ")
        mounting = [stage for stage in stages if "--mount=" in stage]
        self.assertEqual(len(mounting), 2)
        for stage in mounting:
            before, mounts, _ = stage.partition("RUN --mount=type=bind,from=summed,")
            self.assertTrue(mounts, stage)
            self.assertIn("COPY --from=summed /packages/SHA256SUMS ", before)

    def test_engines_share_the_sockets_folder_and_the_group_and_prefixd_the_arena_with_the_host(self) -> None:
        of_daemon = {each["name"]: each["hostPath"]["path"] for each in pods()["prefixd"]["volumes"]}
        self.assertTrue(of_daemon["arena"].startswith("/dev/shm/"))
        for name in set(pods()) - {"prefixd", "first-hit-tcp"}:
            pod = pods()[name]
            self.assertIn(10001, pod["securityContext"]["supplementalGroups"], name)
            shared = {each["name"] for each in pod["volumes"] if each.get("hostPath", {}).get("path") == of_daemon["run"]}
            mounts = [mount for each in pod["containers"] for mount in each["volumeMounts"]]
            self.assertTrue(any(m["name"] in shared and m["mountPath"] == "/run/prefixd" for m in mounts), name)

    def test_S6_what_prefixd_reads_on_tcp_is_mounted_for_its_group_alone(self) -> None:
        pod = prefixd_on_tcp()["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        secrets = {each["name"]: each["secret"] for each in pod["volumes"] if "secret" in each}
        folders = {each["mountPath"]: each for each in container["volumeMounts"] if each["name"] in secrets}
        paths = [each["value"] for each in container["env"] if each["value"].startswith("/")]
        self.assertEqual({path.rpartition("/")[0] for path in paths}, set(folders))
        self.assertTrue(all(each["readOnly"] for each in folders.values()))
        self.assertEqual({each["defaultMode"] for each in secrets.values()}, {0o440})
        self.assertEqual(pod["securityContext"]["fsGroup"], container["securityContext"]["runAsGroup"])
        self.assertEqual({each["name"] for each in container["ports"]}, {"metrics", "prefixd"})

    def test_S6_a_token_reaches_a_client_as_a_file_of_its_own(self) -> None:
        pod = pods()["first-hit-tcp"]
        (copy,), (client,) = pod["initContainers"], pod["containers"]
        (token,) = (each["value"] for each in client["env"] if each["name"] == "PREFIXD_TOKEN_FILE")
        self.assertEqual(copy["command"][:3] + copy["command"][-1:], ["install", "-m", "0600", token])
        self.assertNotIn("/secret", {each["mountPath"] for each in client["volumeMounts"]})

    def test_the_memory_limit_has_room_for_the_ram_budget(self) -> None:
        (container,) = pods()["prefixd"]["containers"]
        ram = next(each["value"] for each in container["env"] if each["name"] == "PREFIXD_RAM")
        budget_mib = int(ram.removesuffix("GiB")) * 1024
        limit_mib = int(container["resources"]["limits"]["memory"].removesuffix("Mi"))
        self.assertGreaterEqual(limit_mib, budget_mib + 64)  # what prefixd does not budget
        service = yaml.safe_load((_DEPLOY / "compose.yaml").read_text())["services"]["prefixd"]
        budget_mib = int(service["environment"]["PREFIXD_RAM"].removesuffix("GiB")) * 1024
        self.assertGreaterEqual(int(service["mem_limit"].removesuffix("m")), budget_mib + 64)

    @unittest.skipIf(kubernetes_validate is None, "no kubernetes-validate (PyPI)")
    def test_the_manifests_fit_the_schema_of_kubernetes(self) -> None:
        for each in [*manifests(), prefixd_on_tcp()]:
            kubernetes_validate.validate(json.loads(json.dumps(each)), kubernetes_validate.latest_version(), strict=True)


if __name__ == "__main__":
    unittest.main()
