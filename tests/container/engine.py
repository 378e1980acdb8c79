"""podman, the images of prefixd, and a container of a service of deploy/compose.yaml."""

from __future__ import annotations

import atexit
import functools
import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import uuid
from pathlib import Path
from typing import Any

try:
    import yaml
except ImportError:
    yaml = None

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
PATIENCE_S = 120
_BASE = "docker.io/library/debian:12-slim"
_VERSION = re.search(r"^project\(prefixd VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text(), re.M)[1]
_NAMES = {f"prefixd:{_VERSION}": "daemon", f"prefixd-client:{_VERSION}": "client"}


def missing() -> str:
    """Returns why no container can be run here, or ""."""
    for program in "podman", "cpack":
        if shutil.which(program) is None:
            return f"there is no {program}"
    if yaml is None:
        return "no yaml (Debian: python3-yaml)"
    if tried("image", "exists", _BASE).returncode != 0 and (pulled := tried("pull", "--quiet", _BASE)).returncode != 0:
        return f"no image {_BASE}: {pulled.stderr.strip()[-200:]}"
    # What the images need of Debian comes from its mirrors.
    probe = ("true",) if os.environ.get("PREFIXD_TEST_IMAGES") else ("apt-get", "update", "-qq", "-o", "APT::Update::Error-Mode=any")
    if (ran := tried("run", "--rm", "--network", "host", _BASE, *probe)).returncode != 0:
        return f"podman runs no container here, or it reaches no mirror of Debian: {ran.stderr.strip()[-300:]}"
    return ""


def tried(*words: object, patience_s: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
    command = ["podman", *map(str, words)]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=patience_s)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"no end after {patience_s} s")


def podman(*words: object, patience_s: float = PATIENCE_S) -> str:
    """Returns what podman says. AssertionError, with its words, if it fails."""
    done = tried(*words, patience_s=patience_s)
    if done.returncode != 0:
        raise AssertionError(f"podman {words} ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return done.stdout


def compose() -> dict[str, dict[str, Any]]:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]


@functools.cache
def images() -> dict[str, str]:
    """Returns the image for each name that the files in deploy/ use: with PREFIXD_TEST_IMAGES=1 those of that name which are
    there, else new ones of deploy/Containerfile and of packages of the build folder."""
    if os.environ.get("PREFIXD_TEST_IMAGES"):
        return {name: f"localhost/{name}" for name in _NAMES}
    with tempfile.TemporaryDirectory(prefix="prefixd_packages_") as folder:
        packed = subprocess.run(
            ["cpack", "-G", "DEB", "-B", folder], cwd=os.environ["PREFIXD_BUILD"], capture_output=True, text=True, timeout=600
        )
        if packed.returncode != 0:
            raise AssertionError(f"cpack failed:\n{packed.stdout[-2000:]}\n{packed.stderr[-2000:]}")
        shutil.rmtree(Path(folder, "_CPack_Packages"))
        return {name: _built(target, folder) for name, target in _NAMES.items()}


def _built(target: str, packages: str) -> str:
    name = f"localhost/prefixd-test-{target}"
    options = ("--layers=false", "--network", "host", "--target", target, "--build-context", f"packages={packages}", "--tag", name)
    podman("build", "--file", DEPLOY / "Containerfile", *options, ROOT, patience_s=600)
    atexit.register(tried, "rmi", "--force", name)
    return name


def emptied(folder: Path) -> None:
    """Removes what is in a folder. Files there may be of a user that only podman can become."""
    removal = ("find", "/emptied", "-mindepth", "1", "-delete")
    tried("run", "--rm", "--user", "0:0", "--network", "none", "--volume", f"{folder}:/emptied", _BASE, *removal)


class Stage:
    """What the containers of one test share: names, volumes, and a folder of the host's memory in the place of /dev/shm."""

    def __init__(self) -> None:
        self.name = f"prefixd-test-{uuid.uuid4().hex[:12]}"
        self.memory = Path("/dev/shm", self.name)
        self.memory.mkdir()
        self.memory.chmod(0o1777)  # as /dev/shm is
        self._volumes: set[str] = set()
        self._containers: list[str] = []

    def end(self) -> None:
        for container in reversed(self._containers):
            tried("rm", "--force", "--time", "0", container)
        for volume in self._volumes:
            tried("volume", "rm", "--force", volume)
        self.forget_memory()
        self.memory.rmdir()

    def forget_memory(self) -> None:
        """Does what a reboot does to the host's memory."""
        emptied(self.memory)

    def run(self, service: str, *options: object, command: tuple[object, ...] = (), without: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs a service's container to its end, `without` one key that compose.yaml gives it."""
        name = f"{self.name}-{uuid.uuid4().hex[:6]}"
        self._containers.append(name)
        return tried("run", "--name", name, *self._words(service, environment, without), *options, *self._image(service), *command)

    def start(self, service: str, *options: object, command: tuple[object, ...] = (), **environment: str) -> Container:
        name = f"{self.name}-{uuid.uuid4().hex[:6]}"
        self._containers.append(name)
        podman("run", "--detach", "--name", name, *self._words(service, environment), *options, *self._image(service), *command)
        return Container(name)

    def _image(self, service: str) -> tuple[str]:
        return (images()[compose()[service]["image"]],)

    def _words(self, service: str, environment: dict[str, str], without: str = "") -> list[str]:
        """Returns the options of `podman run` for a service of compose.yaml, as a compose program makes them."""
        said = {key: value for key, value in compose()[service].items() if key != without}
        words = ["--cap-drop=" + each for each in said.get("cap_drop", [])]
        words += ["--security-opt=" + each.replace("no-new-privileges:true", "no-new-privileges") for each in said.get("security_opt", [])]
        words += ["--group-add=" + each for each in said.get("group_add", [])]
        for key, option in ("user", "user"), ("network_mode", "network"), ("mem_limit", "memory"), ("restart", "restart"):
            if key in said:
                words.append(f"--{option}={said[key]}")
        if said.get("read_only"):
            words += ["--read-only", "--read-only-tmpfs=false"]  # compose mounts none
        if "stop_grace_period" in said:
            words.append("--stop-timeout=" + said["stop_grace_period"].removesuffix("s"))
        if "healthcheck" in said:
            test = said["healthcheck"]["test"]
            words += ["--health-cmd=" + shlex.join(test[1:]), "--health-interval=disable"]  # run by hand
        for key, value in {**said.get("environment", {}), **environment}.items():
            words.append(f"--env={key}={value}")
        words += [f"--volume={self._volume(each)}" for each in said["volumes"]]
        return words

    def _volume(self, said: str) -> str:
        source, inside = said.split(":", 1)
        if source.startswith("/"):
            return f"{self.memory}{source.removeprefix('/dev/shm')}:{inside}"
        self._volumes.add(f"{self.name}-{source}")
        return f"{self.name}-{source}:{inside}"


class Container:
    def __init__(self, name: str) -> None:
        self.name = name

    def log(self) -> str:
        done = tried("logs", self.name)
        return done.stdout + done.stderr

    def state(self) -> dict[str, Any]:
        return json.loads(podman("inspect", self.name))[0]["State"]

    def tried(self, *command: object) -> subprocess.CompletedProcess[str]:
        return tried("exec", self.name, *command)

    def healthy(self) -> bool:
        return tried("healthcheck", "run", self.name).returncode == 0

    def says(self, *command: object) -> str:
        return podman("exec", self.name, *command)

    def stats(self) -> dict[str, Any]:
        return json.loads(self.says("prefixctl", "--json", "stats"))

    def remove(self) -> None:
        podman("rm", "--force", "--time", "0", self.name)
