"""A prefixd with the page, a load on it, and what the page's data says."""

from __future__ import annotations

import http.client
import json
import shutil
import tempfile
import unittest
from pathlib import Path
from typing import Any

from hosts import Host, Model, Worker
from prefixd_process import BUILD, Process

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>"


class PageHost(Host):
    """A host with an SSD tier, metrics and, if not told otherwise, the page."""

    def __init__(self, folder: Path, *options: str, ram: str = "96MiB", page: bool = True) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.arena = Path("/dev/shm") / f"{folder.parent.name}-{folder.name}"
        self.address = f"unix://{folder / 'prefixd.sock'}"
        command: list[Any] = ["env", "-i", BUILD / "prefixd", f"--socket={folder / 'prefixd.sock'}"]
        command += [f"--arena={self.arena}", f"--ram={ram}", "--log-interval=0s", "--metrics=127.0.0.1:0"]
        command += ["--ssd=512MiB", f"--directory={folder / 'ssd'}", "--ssd-floor=0", "--direct-io=off"]
        command += ["--page"] if page else []
        Process.__init__(self, [*command, *options], folder / "prefixd.log")
        self.web = self.wait_for_line(r"metrics: http://(\S+)/metrics").group(1)
        self.wait_for_line("listening on")

    @property
    def url(self) -> str:
        return f"http://{self.web}/page/"

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self.web, timeout=60)
        try:
            connection.request(method, path, headers=headers)
            reply = connection.getresponse()
            return reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read()
        finally:
            connection.close()

    def data(self, name: str) -> Any:
        status, _, body = self.ask(f"/page/{name}")
        if status != 200:
            raise AssertionError(f"{name}: {status} {body[:300]!r}")
        return json.loads(body)


class PageTest(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="prefixd_page_"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def host(self, *options: str, **more: Any) -> PageHost:
        host = PageHost(self.folder / "host", *options, **more)
        self.addCleanup(host.stop)
        return host

    def worker(self, host: Host, name: str = "a model", weights: int = 7) -> Worker:
        worker = Worker(host, model=Model(name=name, weights=weights))
        self.addCleanup(worker.close)
        return worker
