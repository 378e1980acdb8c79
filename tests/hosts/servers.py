"""Redis servers as processes, alone and as a cluster, and a connection for what a test does to them
behind prefixd's back. Standard library alone."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any, Iterator

from prefixd_process import DEADLINE_S, Process, wait_for

SLOTS = 16_384
NODE_TIMEOUT_MS = 2000
_PORTS = range(20_000, 32_000)  # below those that the system gives to connections
_TRIES = 5


def free_port() -> int:
    """A port that nobody listens on now: a Redis server does not choose its own."""
    while True:
        port = random.SystemRandom().choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


class ServerError(Exception):
    """What a server answered with an error."""


class Redis:
    """A connection that speaks RESP2. Not thread-safe."""

    def __init__(self, port: int, timeout_s: float = DEADLINE_S) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout_s)
        self._from = self._socket.makefile("rb")

    def close(self) -> None:
        self._from.close()
        self._socket.close()

    def __enter__(self) -> Redis:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __call__(self, *words: Any) -> Any:
        """Bytes, int, list or None; words are text, bytes or numbers."""
        raw = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        parts = [b"*%d\r\n" % len(raw)] + [b"$%d\r\n%s\r\n" % (len(word), word) for word in raw]
        self._socket.sendall(b"".join(parts))
        return self._read()

    def _read(self) -> Any:
        line = self._from.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("the server closed the connection")
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise ServerError(rest.decode())
        if kind == b"+":
            return rest
        if kind == b":":
            return int(rest)
        if int(rest) < 0:
            return None
        if kind == b"*":
            return [self._read() for _ in range(int(rest))]
        text = self._from.read(int(rest) + 2)
        return text[:-2]

    def keys(self, pattern: str = "*") -> set[bytes]:
        return set(self("KEYS", pattern))

    def bundles(self) -> set[bytes]:
        """Keys of blocks: all of prefixd's but its generations and the board of spaces."""
        return {key for key in self.keys("pd1:*") if not key.endswith((b":g", b":b"))}

    def fields(self, key: bytes) -> dict[bytes, bytes]:
        flat = self("HGETALL", key)
        return dict(zip(flat[::2], flat[1::2]))

    def put(self, key: bytes, fields: dict[bytes, bytes]) -> None:
        """These fields and no others."""
        self("DEL", key)
        self("HSET", key, *[word for item in fields.items() for word in item])

    def info(self, section: str) -> dict[str, str]:
        lines = self("INFO", section).decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)


def program() -> str:
    """redis-server, or what PREFIXD_REDIS_SERVER names, Valkey's for example."""
    return os.environ.get("PREFIXD_REDIS_SERVER", "redis-server")


def has_tls() -> bool:
    """Whether it was built with TLS: then it complains that it is given no certificate."""
    asked = subprocess.run([program(), "--port", "0", "--tls-port", "1"], capture_output=True, text=True, timeout=DEADLINE_S)
    return "configure TLS" in asked.stdout


class Server(Process):
    """redis-server in a folder of its own; start() again after stop() goes on with what is there."""

    def __init__(self, folder: Path, *options: Any, port: int | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.options = folder, options
        for attempt in range(_TRIES):
            self.port = port or free_port()
            try:
                self.start()
                return
            except AssertionError:  # somebody took the port meanwhile
                if port is not None or attempt == _TRIES - 1:
                    raise

    def start(self) -> None:
        command = [program(), "--port", self.port, "--dir", self.folder]
        command += [] if "--bind" in self.options else ["--bind", "127.0.0.1"]
        command += ["--save", "", "--appendonly", "no", "--daemonize", "no", *self.options]
        super().__init__(command, self.folder / "redis.log")
        wait_for("redis-server to answer", self._answers)

    def _answers(self) -> bool:
        if self.ended():
            raise AssertionError(f"redis-server ended:\n{self.log()[-2000:]}")
        try:
            with Redis(self.port) as redis:
                redis("PING")
        except ServerError:
            return True  # it wants a password first
        except OSError:
            return False
        return True

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def connect(self) -> Redis:
        return Redis(self.port)

    def go_on(self) -> None:
        self.send(signal.SIGCONT)

    def stop(self, how: signal.Signals = signal.SIGKILL) -> None:
        super().stop(how)


class Cluster:
    """Three primaries, each with as many replicas."""

    def __init__(self, folder: Path, replicas: int = 0, *options: Any) -> None:
        self.servers: list[Server] = []
        self._folder = folder
        more = ["--cluster-enabled", "yes", "--cluster-node-timeout", NODE_TIMEOUT_MS, "--maxmemory-clients", "25%",
                "--repl-diskless-sync-delay", "0", *options]
        count = 3 * (1 + replicas)
        try:
            for n in range(count):
                self.servers.append(Server(folder / f"server-{n}", *more, "--cluster-port", free_port()))
            self._join()
            for n in range(3, count):
                with self.servers[n].connect() as redis:
                    redis("CLUSTER", "REPLICATE", self.id_of(self.servers[n % 3]))
            self.wait_whole(replicas)
        except BaseException:
            self.stop()
            raise

    def _join(self) -> None:
        first = self.servers[0]
        for n, server in enumerate(self.servers):
            with server.connect() as redis:
                redis("CLUSTER", "SET-CONFIG-EPOCH", n + 1)
                if n < 3:
                    redis("CLUSTER", "ADDSLOTSRANGE", SLOTS * n // 3, SLOTS * (n + 1) // 3 - 1)
                if n > 0:
                    redis("CLUSTER", "MEET", "127.0.0.1", first.port, first.options[-1])
        for server in self.servers:
            with server.connect() as redis:
                wait_for("the cluster to know its servers", lambda: self._knows_all(redis))

    def _knows_all(self, redis: Redis) -> bool:
        lines = redis("CLUSTER", "NODES").decode().splitlines()
        return len(lines) == len(self.servers) and not any("handshake" in line for line in lines)

    @staticmethod
    def id_of(server: Server) -> str:
        with server.connect() as redis:
            return redis("CLUSTER", "MYID").decode()

    @property
    def url(self) -> str:
        return "redis://" + ",".join(f"127.0.0.1:{server.port}" for server in self.servers[:3])

    def primaries(self) -> list[Server]:
        """Those of the living that say so of themselves."""
        return [s for s in self.servers if not s.ended() and self._role(s) == b"master"]

    @staticmethod
    def _role(server: Server) -> bytes:
        with server.connect() as redis:
            return redis("ROLE")[0]

    def owners(self) -> list[Server]:
        """The primaries that have slots, as the first living server says."""
        by_port = {server.port: server for server in self.servers}
        alive = next(server for server in self.servers if not server.ended())
        with alive.connect() as redis:
            return [by_port[port] for port in {part[2][1] for part in redis("CLUSTER", "SLOTS")}]

    def wait_whole(self, replicas: int) -> None:
        """Until all slots are served and each primary has its replicas, in step."""

        def whole() -> bool:
            try:
                return all(self._is_in_step(server, replicas) for server in self.servers) and len(self.primaries()) == 3
            except ServerError:  # LOADING
                return False

        wait_for("the cluster to be whole", whole)

    @staticmethod
    def _is_in_step(server: Server, replicas: int) -> bool:
        with server.connect() as redis:
            if b"cluster_state:ok" not in redis("CLUSTER", "INFO"):
                return False
            role = redis("ROLE")
            if role[0] == b"slave":
                return role[3] == b"connected"
            return len(role[2]) == replicas

    def wait_copied(self) -> None:
        """Until each replica has what its primary had when this was called: replication lags."""
        for primary in self.owners():
            with primary.connect() as redis:
                goal = redis("ROLE")[1]
                wait_for("replicas to have it", lambda: all(int(offset) >= goal for _, _, offset in redis("ROLE")[2]))

    def each(self) -> Iterator[Redis]:
        for server in self.primaries():
            with server.connect() as redis:
                yield redis

    def stop(self) -> None:
        for server in self.servers:
            server.stop()

