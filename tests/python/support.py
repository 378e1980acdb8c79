"""A real prefixd in a temporary directory, and an engine's tensors to store in it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

import numpy as np
import prefixd

BUILD = Path(os.environ["PREFIXD_BUILD_DIR"])
PACKAGE = Path(__file__).resolve().parents[2] / "client" / "python"
PATIENCE_MS = 60_000  # where the test fails rather than waits: machines are slow at times


class Daemon:
    """prefixd, killed by stop() if by nobody else. Its memory is a file on a tmpfs."""

    def __init__(self, folder: Path, ram: str = "32MiB", ssd: str = "off") -> None:
        self.socket = folder / "prefixd.sock"
        self.address = f"unix://{self.socket}"
        self.arena = Path("/dev/shm") / folder.name
        self._command = [BUILD / "prefixd", "--socket", self.socket, "--directory", folder / "data"]
        self._command += ["--ram", ram, "--ssd", ssd, "--ssd-floor", "0", "--arena", self.arena]
        self.options: list[str] = []  # more of them, for start()
        # Those of this test are no settings of prefixd.
        self._environment = {k: v for k, v in os.environ.items() if not k.startswith("PREFIXD_")}
        self.process: subprocess.Popen | None = None

    def start(self) -> Daemon:
        self.process = subprocess.Popen(
            self._command + self.options,
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said = said = []  # up to where it listens
        late = threading.Timer(PATIENCE_MS / 1000, self.process.kill)  # ends its stderr
        late.start()
        try:
            for line in self.process.stderr:
                said.append(line)
                if "listening on" in line:
                    reading = threading.Thread(target=_drain, args=(self.process.stderr,))
                    reading.daemon = True
                    reading.start()
                    return self
        finally:
            late.cancel()
        raise AssertionError("prefixd ended before it listened: " + "".join(said))

    def ctl(self, *arguments: str) -> dict:
        """What `prefixctl --json` says."""
        command = [BUILD / "prefixctl", "--server", self.address, "--json", *arguments]
        done = subprocess.run(command, env=self._environment, capture_output=True, check=True)
        return json.loads(done.stdout)

    def kill(self) -> None:
        """SIGKILL, and waits for the end."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()
        self.arena.unlink(missing_ok=True)
        self.arena.with_name(self.arena.name + ".key").unlink(missing_ok=True)
        shutil.rmtree(self.arena.with_name(self.arena.name + ".locks"), ignore_errors=True)


def _drain(stream) -> None:
    with stream:
        stream.read()


class DaemonTest(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="prefixd_python_"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.daemon = Daemon(self.folder)
        self.addCleanup(self.daemon.stop)

    def connect(self, **options) -> prefixd.Client:
        client = prefixd.connect(self.daemon.address, name=self._testMethodName, **options)
        self.addCleanup(client.close)
        return client

    def attached(self, **options) -> prefixd.Client:
        client = self.connect(**options)
        self.assertTrue(client.wait_attached(PATIENCE_MS), client.error)
        return client


class Tried(threading.Thread):
    """A thread whose join() raises what it raised: an exception in a thread fails no test."""

    def __init__(self, call, *arguments) -> None:
        super().__init__()
        self._call, self._arguments = call, arguments
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._call(*self._arguments)
        except BaseException as error:
            self._error = error

    def join(self, timeout: float | None = None) -> None:
        super().join(timeout)
        if self._error is not None:
            raise self._error


class Engine:
    """Layers of K and V as an engine packs them: bytes that its tokens and the seed decide."""

    def __init__(
        self,
        *formats: prefixd.Format,
        layers: int = 2,
        heads: int = 2,
        dim: int = 64,
        seed: int = 1,
        page_layout: str = "rows",
    ) -> None:
        self.page_layout = page_layout
        self.formats = formats or (prefixd.mlx_affine(8, 64, "bfloat16"),)
        self.layers, self.heads, self.dim, self.seed = layers, heads, dim, seed

    def open(self, client: prefixd.Client, model: str = "tiny") -> prefixd.Space:
        layer = prefixd.FullLayer(self.heads, self.dim, self.dim, self.formats)
        return client.open_space(
            model=model,
            weights=bytes([1]) * 32,
            tokenizer=bytes([2]) * 32,
            rope=prefixd.Rope(theta=10_000, rotary_dim=self.dim),
            page_layout=self.page_layout,
            layers=[layer] * self.layers,
        )

    def tokens(self, count: int) -> list[int]:
        return [(self.seed * 100_003 + i * 31) % 50_021 for i in range(count)]

    def cache(self, count: int, format: int = 0) -> list[tuple[tuple, tuple]]:
        """One (K, V) a layer. The first n tokens are those of cache(n)."""
        return [
            tuple(
                self._tensor(tensor, count, (self.seed, layer, which))
                for which, tensor in enumerate(
                    (self.formats[format].key, self.formats[format].value)
                )
            )
            for layer in range(self.layers)
        ]

    def _tensor(self, tensor: prefixd.TensorFormat, count: int, seed: tuple) -> tuple:
        parts = []
        for part, (dtype, row) in enumerate(zip(tensor.part_dtypes(), self._rows(tensor))):
            rng = np.random.default_rng([*seed, part])
            raw = rng.bytes(count * self.heads * row * dtype.itemsize)
            rows = np.frombuffer(raw, dtype).reshape(count, self.heads, row)
            parts.append(np.ascontiguousarray(rows.transpose(1, 0, 2))[None])
        return tuple(parts)

    def _rows(self, tensor: prefixd.TensorFormat) -> list[int]:
        """Elements of a row of each part: features.md's formulas."""
        if tensor.codec == "raw":
            return [self.dim]
        if tensor.codec == "mlx_affine":
            groups = self.dim // tensor.group_size
            return [self.dim * tensor.bits // 32, groups, groups]
        block_floats = {"mxfp4": (4, 32), "mxfp8": (8, 32), "nvfp4": (4, 16)}
        if tensor.codec in block_floats:
            bits, group = block_floats[tensor.codec]
            return [self.dim * bits // 32, self.dim // group]
        return [
            self.dim
            // 32
            * {"q4_0": 18, "q4_1": 20, "q5_0": 22, "q5_1": 24, "q8_0": 34}[tensor.codec]
        ]

    def store(self, space: prefixd.Space, count: int, format: int = 0) -> int:
        """Tokens stored: 0 where nothing could be, or everything was there."""
        cache, stored = self.cache(count, format), 0
        with space.reserve(self.tokens(count), writable=[format], deadline_ms=5_000) as plan:
            for begin, end in plan.missing:
                for layer, (key, value) in enumerate(cache):
                    plan.write_packed(
                        layer=layer,
                        begin=begin,
                        key=[a[..., begin:end, :] for a in key],
                        value=[a[..., begin:end, :] for a in value],
                    )
                stored += plan.commit(end).stored_tokens
            plan.commit(count, sequence_end=True)
        return stored

    def read(self, lease: prefixd.Lease, count: int) -> list[tuple[tuple, tuple]]:
        return [lease.gather(layer=layer, tokens=count) for layer in range(self.layers)]


def same(left, right) -> bool:
    """Of two caches: bit for bit, in the same shapes and types."""
    flat = [[a for pair in cache for arrays in pair for a in arrays] for cache in (left, right)]
    return len(flat[0]) == len(flat[1]) and all(
        a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()
        for a, b in zip(*flat)
    )


def run_script(script: str, *arguments: str, timeout: int = 120) -> subprocess.CompletedProcess:
    """Another Python process, with this package and these helpers."""
    paths = [str(PACKAGE), str(Path(__file__).parent)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.run(
        # From 3.12 on Python warns of fork() with threads, which is what some scripts are about.
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
