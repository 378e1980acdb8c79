"""Containerfile, compose file and Kubernetes manifests agree with the programs and with each other. No image is built."""

from __future__ import annotations

import json
import re
import unittest

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
_ADDRESS_ONLY = {"PREFIXD", "PREFIXD_ADDRESS"}  # settings of vLLM's plugin


def manifests() -> list[dict]:
    return [each for path in sorted((_DEPLOY / "kubernetes").glob("*.yaml")) for each in yaml.safe_load_all(path.read_text())]


def pods() -> dict[str, dict]:
    return {each["metadata"]["name"]: each["spec"]["template"]["spec"] for each in manifests() if "template" in each.get("spec", {})}


def settings_in(text: str) -> set[str]:
    return set(re.findall(r"\bPREFIXD_[A-Z_]+", text)) | set(re.findall(r"\bPREFIXD\b(?=, value)", text))


@unittest.skipIf(yaml is None, "no yaml (Debian: python3-yaml)")
class ContainersTest(unittest.TestCase):
    def test_every_setting_that_a_file_names_is_one_of_prefixds(self) -> None:
        known = {"PREFIXD_" + flag[2:].upper().replace("-", "_") for flag in installed.flags_of("prefixd")}
        for path in _DEPLOY / "Containerfile", _DEPLOY / "compose.yaml", *(_DEPLOY / "kubernetes").glob("*.yaml"):
            self.assertLessEqual(settings_in(path.read_text()), known | _ADDRESS_ONLY, path.name)

    def test_images_have_the_version_of_the_source(self) -> None:
        for path in _DEPLOY / "Containerfile", _DEPLOY / "compose.yaml", *(_DEPLOY / "kubernetes").glob("*.yaml"):
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

    def test_engines_share_the_sockets_folder_and_the_group_and_prefixd_the_arena_with_the_host(self) -> None:
        of_daemon = {each["name"]: each["hostPath"]["path"] for each in pods()["prefixd"]["volumes"]}
        self.assertTrue(of_daemon["arena"].startswith("/dev/shm/"))
        for name in set(pods()) - {"prefixd"}:
            pod = pods()[name]
            self.assertIn(10001, pod["securityContext"]["supplementalGroups"], name)
            shared = {each["name"] for each in pod["volumes"] if each.get("hostPath", {}).get("path") == of_daemon["run"]}
            mounts = [mount for each in pod["containers"] for mount in each["volumeMounts"]]
            self.assertTrue(any(m["name"] in shared and m["mountPath"] == "/run/prefixd" for m in mounts), name)

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
        for each in manifests():
            kubernetes_validate.validate(json.loads(json.dumps(each)), kubernetes_validate.latest_version(), strict=True)


if __name__ == "__main__":
    unittest.main()
