"""Hosts: a prefixd each, with the servers that they share, and a model whose pages' bytes follow from
its tokens, so that every byte that is read is compared (tests/stress/expected.py)."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path
from typing import Any, NamedTuple, Sequence

import prefixd

import expected
from prefixd_process import BUILD, DEADLINE_S, Process, wait_for

BLOCK = 64
STATE_BYTES = 50_000
# What was there at reserve() and is not held may be evicted before commit(): no failed request.
NEEDS_ROOM = "commit: the cache lost the block"
PATIENCE_MS = 60_000


def note(text: str) -> None:
    """A figure, for people: no test fails because the machine is slow."""
    print(f"    note: {text}", file=sys.stderr, flush=True)


def make_key(path: Path, seed: int = 1) -> Path:
    path.write_bytes(random.Random(f"key {seed}").randbytes(32))
    path.chmod(0o600)
    return path


class Model(NamedTuple):
    """A space. `layers` of 17,408 bytes a block each; 32 of them take three stripes. `states`: layers
    that keep a state, as hybrid models have."""

    layers: int = 3
    states: int = 0
    name: str = "a model of several hosts"
    weights: int = 7

    @property
    def block_bytes(self) -> int:
        return self.layers * BLOCK * 4 * 68

    def open(self, client: prefixd.Client) -> prefixd.Space:
        layer = prefixd.FullLayer(expected.HEADS, expected.DIM, expected.DIM, (prefixd.mlx_affine(8, 64, "bfloat16"),))
        return client.open_space(
            model=self.name,
            weights=bytes([self.weights]) * 32,
            tokenizer=bytes([8]) * 32,
            rope=prefixd.Rope(theta=10_000, rotary_dim=expected.DIM),
            layers=[layer] * self.layers + [prefixd.StateLayer(STATE_BYTES)] * self.states,
        )


WIDE = Model(layers=32)
HYBRID = Model(layers=2, states=1)


def tokens_of(number: int, count: int) -> list[int]:
    """A sequence; others share no block with it."""
    draw = random.Random(f"sequence {number}")
    return [draw.randrange(50_000) for _ in range(count)]


class Host(Process):
    """prefixd in a folder of its own, without an SSD tier. `remote`: a URL, or None. `inside`: what runs it elsewhere."""

    def __init__(
        self, folder: Path, remote: str | None, key: Path | None, *options: str, ram: str = "96MiB", wait: bool = True,
        inside: Sequence[str] = (),
    ) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.arena = Path("/dev/shm") / f"{folder.parent.name}-{folder.name}"
        self.address = f"unix://{folder / 'prefixd.sock'}"
        command: list[Any] = [*inside, "env", "-i", BUILD / "prefixd", f"--socket={folder / 'prefixd.sock'}"]
        command += [f"--arena={self.arena}", f"--ram={ram}", "--ssd=off", "--log-interval=0s"]
        if remote is not None:
            command += [f"--remote={remote}", "--remote-write-rate=off"]
            command += ["--remote-insecure"] if key is None else [f"--remote-key-file={key}"]
        super().__init__([*command, *options], folder / "prefixd.log")
        if wait:
            self.wait_for_line("listening on")

    def again(self, how: signal.Signals) -> None:
        """Ends it, and starts it as it was: what outlives a process is there."""
        seen = self.log().count("listening on")
        super().stop(how)
        Process.__init__(self, self.command, self.log_path)
        self.wait_for_line("listening on", seen + 1)

    def control(self, *arguments: str, may_say: Sequence[int] = (0,)) -> Any:
        """What prefixctl answers as JSON."""
        return json.loads(self._prefixctl(["--json", *arguments], may_say))

    def text(self, *arguments: str, may_say: Sequence[int] = (0,)) -> str:
        """What prefixctl answers to people."""
        return self._prefixctl(list(arguments), may_say)

    def _prefixctl(self, arguments: list[str], may_say: Sequence[int]) -> str:
        command = [str(BUILD / "prefixctl"), f"--server={self.address}", *arguments]
        if "--timeout" not in arguments:
            command.insert(2, "--timeout=60s")
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, env={})
        if done.returncode not in may_say:
            raise AssertionError(f"{' '.join(command[2:])}: exit {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    def counter(self, name: str) -> int:
        return self.counters().get(name, 0)

    def counters(self) -> dict[str, int]:
        return self.control("stats")["counters"]

    def bad(self) -> dict[str, int]:
        """Bundles that were refused, by reason."""
        named = {n.removeprefix("remote.bad."): c for n, c in self.counters().items() if n.startswith("remote.bad.")}
        return {name: count for name, count in named.items() if count}

    def flush(self) -> None:
        """Until what workers stored is offered to the other hosts."""
        reply = self.control("flush", may_say=(0, 1))  # 1: pages are in RAM only
        assert not reply.get("remote_waits"), reply

    def knows_the_servers(self) -> bool:
        remote = self.control("stats").get("remote", {})
        return bool(remote.get("known")) and not any(server.get("open") for server in remote["servers"])

    def open_servers(self) -> list[str]:
        """Addresses of those that are given up."""
        remote = self.control("stats").get("remote", {})
        return [server["address"] for server in remote.get("servers", []) if server.get("open")]

    def stop(self, *how: Any) -> None:
        super().stop(*how)
        self.arena.unlink(missing_ok=True)
        for end in (".key", ".clears"):
            self.arena.with_name(self.arena.name + end).unlink(missing_ok=True)
        shutil.rmtree(self.arena.with_name(self.arena.name + ".locks"), ignore_errors=True)


class Worker:
    """An engine on a host that stores what it computes and compares all that it reads."""

    def __init__(self, host: Host, model: Model = Model(), **options: Any) -> None:
        self.host, self.model = host, model
        self.client = prefixd.connect(host.address, name=host.folder.name, **options)
        if not self.client.wait_attached(PATIENCE_MS):
            raise AssertionError(f"the worker has no prefixd: {self.client.error}")
        self.space = model.open(self.client)
        self.layers = self.space.layers

    def close(self) -> None:
        self.client.close()

    def read(self, tokens: list[int], **options: Any) -> int:
        """How many tokens were served; every byte of them is compared."""
        with self._acquire(tokens, **options) as lease:
            return self._compare(lease, tokens)

    def match(self, tokens: list[int], **options: Any) -> prefixd.Match:
        """Where what is served stands. Nothing is waited for."""
        with self._acquire(tokens, **options) as lease:
            return lease.match

    def turn(self, tokens: list[int]) -> int:
        """read(), then store(), as an engine does: what was served is held meanwhile."""
        with self._acquire(tokens) as lease:
            count = self._compare(lease, tokens)
            try:
                self.store(tokens)
            except AssertionError as error:
                if NEEDS_ROOM not in str(error):
                    raise
            return count

    def _acquire(self, tokens: list[int], **options: Any) -> prefixd.Lease:
        lease = self.space.acquire(tokens, deadline_ms=PATIENCE_MS, load_deadline_ms=PATIENCE_MS, **options)
        if lease.error:
            raise AssertionError(f"acquire failed: {lease.error}")
        return lease

    def _compare(self, lease: prefixd.Lease, tokens: list[int]) -> int:
        count = lease.wait_all(PATIENCE_MS)
        if count == 0:
            return 0
        hashes = expected.prefixes("", tokens[:count])
        for at, layer in enumerate(self.layers):
            if isinstance(layer, prefixd.StateLayer):
                got = lease.state(at)
                if got is None or bytes(got) != expected.state(layer, at, hashes[count - 1]).tobytes():
                    raise AssertionError(f"WRONG STATE in layer {at} after {count} tokens")
                continue
            got = lease.gather(layer=at, begin=0, tokens=count)
            if got is None:
                raise AssertionError(f"layer {at}: pages of {count} tokens went while they were leased")
            for ours, theirs in zip(expected.pair(layer, at, hashes), got):
                for right, seen in zip(ours, theirs):
                    if right.tobytes() != seen.tobytes():
                        raise AssertionError(f"WRONG BYTES in layer {at} of {count} tokens")
        return count

    def store(self, tokens: list[int]) -> int:
        """How many were new to the host."""
        stored = 0
        hashes = expected.prefixes("", tokens)
        with self.space.reserve(tokens, deadline_ms=PATIENCE_MS) as plan:
            if plan.error:
                raise AssertionError(f"reserve failed: {plan.error}")
            for begin, end in plan.missing:
                for at, layer in enumerate(self.layers[: self.model.layers]):
                    key, value = expected.pair(layer, at, hashes[begin:end])
                    plan.write_packed(layer=at, begin=begin, key=key, value=value)
            for at in range(self.model.layers, len(self.layers)):
                for after in {*plan.snapshots_wanted, len(tokens) // BLOCK * BLOCK}:
                    plan.put_state(at, after, expected.state(self.layers[at], at, hashes[after - 1]))
            for end in [*(end for _, end in plan.missing), len(tokens)]:
                done = plan.commit(end, sequence_end=end == len(tokens), deadline_ms=PATIENCE_MS)
                if done.error:
                    raise AssertionError(f"commit failed: {done.error}")
                stored += done.stored_tokens
        return stored

    def share(self, tokens: list[int]) -> int:
        """store(), and until the other hosts can find it."""
        stored = self.store(tokens)
        self.host.flush()
        return stored

    def find(self, tokens: list[int]) -> int:
        """read() until all full blocks come: on a slow machine a server's answer may be late."""
        whole = len(tokens) // BLOCK * BLOCK
        return wait_for(f"{whole} tokens from another host", lambda: (n := self.read(tokens)) >= whole and n)


class Load(threading.Thread):
    """A worker that reads and stores sequences until stop(), which raises what it met. Sequences are
    those of all loads, more and more of them."""

    def __init__(self, worker: Worker, seed: int, blocks: int = 3) -> None:
        super().__init__()
        self.requests = self.found = 0
        self._worker, self._draw, self._blocks = worker, random.Random(seed), blocks
        self._over = threading.Event()
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            while not self._over.is_set():
                number = self._draw.randrange(20 + self.requests)
                tokens = tokens_of(1_000_000 + number, self._blocks * BLOCK + 5)
                self.found += self._worker.turn(tokens)
                self.requests += 1
        except BaseException as error:  # an exception in a thread fails no test
            self._error = error

    def wait_for(self, requests: int) -> None:
        goal = self.requests + requests
        wait_for("more requests", lambda: self.requests >= goal or self._error)

    def stop(self) -> None:
        self._over.set()
        self.join()
        if self._error is not None:
            raise self._error


class HostsTest(unittest.TestCase):
    """Hosts, servers and workers of a test end with it, the last first."""

    def setUp(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="prefixd_hosts_"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.key = make_key(self.folder / "key")

    def kept(self, thing: Any) -> Any:
        self.addCleanup(thing.close if hasattr(thing, "close") else thing.stop)
        return thing

    def server(self, *options: Any, name: str = "redis", **more: Any) -> Any:
        from servers import Server

        maxmemory = () if "--maxmemory" in options else ("--maxmemory", "512mb")
        policy = () if "--maxmemory-policy" in options else ("--maxmemory-policy", "allkeys-lru")
        return self.kept(Server(self.folder / name, *maxmemory, *policy, "--maxmemory-clients", "25%", *options, **more))

    def cluster(self, replicas: int = 0) -> Any:
        from servers import Cluster

        return self.kept(Cluster(self.folder, replicas, "--maxmemory", "256mb", "--maxmemory-policy", "allkeys-lru"))

    def host(self, name: str, remote: Any, *options: str, key: Path | None | str = "", known: bool = True, **more: Any) -> Host:
        """`remote`: a server or cluster, or a URL. `known`: wait until the host has heard of it."""
        url = remote if remote is None or isinstance(remote, str) else remote.url
        key = self.key if key == "" else key
        host = self.kept(Host(self.folder / name, url, key, *options, **more))
        if url is not None and known:
            wait_for("the host to know the servers", host.knows_the_servers)
        return host

    def worker(self, host: Host, model: Model = Model(), **options: Any) -> Worker:
        return self.kept(Worker(host, model, **options))

    def run_worker(self, server: str, prompt: Path, name: str) -> dict:
        """prefixd-worker: what it says of one request."""
        model = Path(__file__).resolve().parents[1] / "data" / "model"
        command = [BUILD / "prefixd-worker", "--model", model, "--server", server, "--prompt-file", prompt, "--name", name]
        command += ["--kv-bits", "8", "--kv-group-size", "64", "--max-tokens", "16", "--json"]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=DEADLINE_S * 2, env={})
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)


def long_form(name: str, short: int) -> int:
    """How often something is done: `short` times, or as PREFIXD_HOSTS_<name> says."""
    return int(os.environ.get(f"PREFIXD_HOSTS_{name}", short))
