"""A prefixd with metrics, what a scrape of it says, and a Prometheus that watches it as deploy/ has it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.parse
from pathlib import Path
from typing import Any, Iterator

from hosts import Host, Model, Worker, note, tokens_of  # noqa: F401
from prefixd_process import BUILD, Process, open_url, wait_for
from servers import free_port

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
README = ROOT / "daemon" / "metrics" / "README.md"
TOOLS = Path(os.environ["PREFIXD_TEST_TOOLS"])
RULES = DEPLOY / "prometheus" / "prefixd-rules.yml"
# Names of prefixd's metrics, and of those that every process has.
_METRIC = re.compile(r"\b(?:instance:)?(?:prefixd|process)_[a-z0-9_]+(?::[a-z0-9]+)?|\bup\b")
_HISTOGRAM_PART = re.compile(r"_(bucket|sum|count)$")


class WatchedHost(Host):
    """A host with an SSD tier and metrics."""

    def __init__(self, folder: Path, *options: str, remote: str | None = None, ram: str = "96MiB") -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.arena = Path("/dev/shm") / f"{folder.parent.name}-{folder.name}"
        self.address = f"unix://{folder / 'prefixd.sock'}"
        command: list[Any] = ["env", "-i", BUILD / "prefixd", f"--socket={folder / 'prefixd.sock'}"]
        command += [f"--arena={self.arena}", f"--ram={ram}", "--log-interval=0s", "--metrics=127.0.0.1:0"]
        command += ["--ssd=512MiB", f"--directory={folder / 'ssd'}", "--ssd-floor=0", "--direct-io=off"]
        if remote is not None:
            command += [f"--remote={remote}", "--remote-write-rate=off", "--remote-insecure"]
        Process.__init__(self, [*command, *options], folder / "prefixd.log")
        self.metrics = self.wait_for_line(r"metrics: http://(\S+)/metrics").group(1)
        self.wait_for_line("listening on")

    def scrape(self) -> str:
        with open_url(f"http://{self.metrics}/metrics") as reply:
            return reply.read().decode()

    def samples(self) -> dict[str, float]:
        return samples(self.scrape())


def samples(text: str) -> dict[str, float]:
    """Values by what stands before them, labels included."""
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    found = {name: float(value) for name, _, value in lines}
    if len(found) != len(lines):
        raise AssertionError("a sample stands in the text twice")
    return found


def families(text: str) -> dict[str, str]:
    """The names of metrics, and their types."""
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))


def metrics_in(query: str) -> set[str]:
    """The metrics that a query asks for."""
    labels = re.sub(r"\{[^}]*\}|\b(?:by|on|group_left)\s*\([^)]*\)", " ", query)
    return set(_METRIC.findall(labels))


def family_of(name: str) -> str:
    return _HISTOGRAM_PART.sub("", name)


def promtool(*arguments: Any, stdin: str | None = None) -> None:
    done = subprocess.run([TOOLS / "promtool", *map(str, arguments)], input=stdin, capture_output=True, text=True)
    said = done.stdout + done.stderr
    if done.returncode != 0:
        raise AssertionError(f"promtool {' '.join(map(str, arguments))}: {said}")


def alerts() -> set[str]:
    return set(re.findall(r"- alert: (\w+)", RULES.read_text()))


def dashboard_queries() -> Iterator[tuple[str, str]]:
    """Titles of panels and their queries, as Grafana sends them for everything that there is."""
    dashboard = json.loads((DEPLOY / "grafana" / "prefixd.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            query = target["expr"].replace("$__rate_interval", "1m").replace("$__range", "1h").replace("$instance", ".*")
            if "$" in query:
                raise AssertionError(f"{panel['title']}: nobody sets a variable of {query}")
            yield panel["title"], query


class Prometheus(Process):
    """A real one, with the configuration and the rules of deploy/; only the target and the pace are ours."""

    def __init__(self, folder: Path, target: str) -> None:
        folder.mkdir()
        shutil.copy(RULES, folder)
        shipped = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
        text = shipped.replace("127.0.0.1:9464\"]", f"{target}\"]").replace("interval: 15s", "interval: 1s")
        if text.count(target) != 1 or text.count("interval: 1s") != 2:
            raise AssertionError(f"deploy/prometheus/prometheus.yml is another one now:\n{shipped}")
        (folder / "prometheus.yml").write_text(text)
        address = f"127.0.0.1:{free_port()}"
        command = [
            TOOLS / "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={address}",
            "--enable-feature=exemplar-storage",
        ]
        super().__init__(command, folder / "log")
        self._url = f"http://{address}/api/v1"
        self.wait_for_line("Server is ready to receive web requests")

    def ask(self, path: str, **arguments: str) -> Any:
        try:
            with open_url(f"{self._url}/{path}?{urllib.parse.urlencode(arguments)}") as reply:
                return json.loads(reply.read())["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path} {arguments}: {error.read().decode()}") from None

    def query(self, query: str) -> list[Any]:
        return self.ask("query", query=query)["result"]

    def exemplars(self, query: str) -> list[Any]:
        now = time.time()
        series = self.ask("query_exemplars", query=query, start=str(now - 3600), end=str(now + 60))
        return [exemplar for one in series for exemplar in one["exemplars"]]

    def rules(self) -> list[tuple[str, str]]:
        """Names of the shipped rules, and their queries."""
        groups = self.ask("rules")["groups"]
        return [(rule["name"], rule["query"]) for group in groups for rule in group["rules"]]

    def names(self) -> set[str]:
        return set(self.ask("label/__name__/values"))


class WatchedTest(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="prefixd_metrics_"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def host(self, *options: str, **more: Any) -> WatchedHost:
        host = WatchedHost(self.folder / "host", *options, **more)
        self.addCleanup(host.stop)
        return host

    def worker(self, host: Host, **options: Any) -> Worker:
        worker = Worker(host, **options)
        self.addCleanup(worker.close)
        return worker
