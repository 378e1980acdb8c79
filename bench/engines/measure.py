"""Time to the first token of one prompt at a time: vLLM alone, with prefixd, with LMCache.

Out, a line of JSON each: {"name": ..., "median_us": ..., ...} for a figure, {"note": ...} for what was
left out, null at the end. Every engine runs for the whole time and they are asked in turns. All
answers must be the same token.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from engines import MODEL, Engine, prompt, stored_tokens
from prefixd_process import Daemon, open_url, wait_for

SETTINGS = {"gpu_memory_utilization": 0.12, "max_model_len": 20_000, "model": str(MODEL)}
PORT, HTTP_PORT = 5755, 5756
CHUNK = 256  # tokens of LMCache's


def say(what: Any) -> None:
    print(json.dumps(what), flush=True)


def cpu_seconds(processes: set[int]) -> float:
    """What these have used, with all that are in their sessions and with children that ended."""
    ticks = 0
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit():
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if {int(entry.name), int(fields[3])} & processes:
                    ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


class System:
    """An engine, and the server that belongs to it."""

    def __init__(self, engine: Engine):
        self.engine = engine

    def processes(self) -> set[int]:
        return {self.engine.pid}

    def stored(self) -> int:
        """Tokens that its server has."""
        return 0

    def stored_bytes(self) -> int:
        """What their K and V take there."""
        return 0

    def wait_until_stored(self, tokens: int) -> None:
        pass


class Prefixd(System):
    def __init__(self, folder: Path):
        self.daemon = Daemon(folder / "d")
        super().__init__(Engine(folder, "prefixd", self.daemon.address, **SETTINGS))

    def processes(self) -> set[int]:
        return {self.engine.pid, self.daemon.pid}

    def stored(self) -> int:
        return stored_tokens(self.daemon)

    def stored_bytes(self) -> int:
        spaces = self.daemon.control("stats")["spaces"]
        return sum(max(one["ram_payload_bytes"], one["ssd_payload_bytes"]) for one in spaces)

    def wait_until_stored(self, tokens: int) -> None:
        wait_for(f"{tokens} tokens in prefixd", lambda: self.stored() >= tokens)

    def restart(self, folder: Path, how: signal.Signals, lose_arena: bool) -> None:
        self.daemon.stop(how)
        if lose_arena:
            self.daemon.lose_arena()
        self.daemon = Daemon(folder / "d")
        self.daemon.wait_for_sessions(2)

    def stop(self) -> None:
        self.engine.end()
        self.daemon.stop(signal.SIGKILL)
        self.daemon.lose_arena()


class Lmcache(System):
    def __init__(self, folder: Path, packages: str):
        environment = os.environ | {
            "PYTHONPATH": f"{packages}:{os.environ['PYTHONPATH']}",
            "LMCACHE_DISABLE_BANNER": "1",
            "LMCACHE_TRACK_USAGE": "false",
        }
        self.log = folder / "lmcache.log"
        command = [sys.executable, "-m", "lmcache.cli.main", "server", "--l1-size-gb", "2"]
        command += ["--eviction-policy", "LRU", "--chunk-size", str(CHUNK), "--port", str(PORT)]
        command += ["--http-port", str(HTTP_PORT), "--supported-transfer-mode", "auto"]
        command += ["--shm-name", f"prefixd_bench_{os.getpid()}"]
        with self.log.open("wb") as log:
            self.server = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        wait_for("LMCache to serve", lambda: "cache server is running" in self.said())
        config = {
            "kv_connector": "LMCacheMPConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {
                "lmcache.mp.host": "tcp://localhost",
                "lmcache.mp.port": PORT,
            },
        }
        engine = Engine(
            folder, "lmcache", None, environment=environment, kv_transfer_config=config, **SETTINGS
        )
        super().__init__(engine)

    def processes(self) -> set[int]:
        return {self.engine.pid, self.server.pid}

    def said(self) -> str:
        if self.server.poll() is not None:
            raise AssertionError(f"LMCache ended: {self.log.read_text()[-500:]}")
        return self.log.read_text(errors="replace")

    def stored(self) -> int:
        return sum(map(int, re.findall(r"Stored (\d+) tokens", self.said())))

    def stored_bytes(self) -> int:
        with open_url(f"http://127.0.0.1:{HTTP_PORT}/metrics", timeout=60) as metrics:
            said = metrics.read().decode()
        return int(float(re.search(r"^lmcache_mp_l1_memory_usage_bytes.* (\S+)$", said, re.M)[1]))

    def wait_until_stored(self, tokens: int) -> None:
        whole = tokens // CHUNK * CHUNK - CHUNK  # the last one may be left out
        wait_for(f"{whole} tokens in LMCache", lambda: self.stored() >= whole)

    def stop(self) -> None:
        self.engine.end()
        os.killpg(self.server.pid, signal.SIGKILL)
        self.server.wait()


class Run:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.cpu: dict[str, list[float]] = defaultdict(list)
        self.first_token: dict[tuple[int, ...], int] = {}

    def ask(self, name: str, system: System, tokens: list[int], forget: bool) -> None:
        before = cpu_seconds(system.processes())
        answer = system.engine.ask(tokens, max_tokens=1, forget=forget)
        self.seconds[name].append(answer.seconds)
        self.cpu[name].append(cpu_seconds(system.processes()) - before)
        token = answer[0].tokens[0][0]
        if self.first_token.setdefault(tuple(tokens), token) != token:
            raise AssertionError(f"{name}: another first token, {token}")

    def forget(self) -> None:
        self.seconds.clear()
        self.cpu.clear()

    def of_length(self, count: int, rounds: int, alone: System, others: dict[str, System]) -> None:
        begins = [1_000 * count % 50_000 + 9_000 * i for i in range(rounds + 1)]
        prompts = [prompt(begin, count) for begin in begins]
        for number, tokens in enumerate(prompts):
            if number == 1:
                self.forget()  # the first of its length makes buffers
            self.ask("vLLM alone, cold", alone, tokens, False)
            self.ask("vLLM's own cache", alone, tokens, False)
            for name, system in others.items():
                before = system.stored()
                self.ask(f"{name}, cold", system, tokens, False)
                system.wait_until_stored(before + (count - 1) // 128 * 128)
                self.ask(f"{name}, RAM", system, tokens, True)
        ours = others["prefixd"]
        assert isinstance(ours, Prefixd)
        for name, how, lose in (
            ("prefixd, after kill -9", signal.SIGKILL, False),
            ("prefixd, SSD", signal.SIGTERM, True),
        ):
            ours.restart(self.folder, how, lose)
            for tokens in prompts[1:]:
                self.ask(name, ours, tokens, True)

    def tell(self, count: int) -> None:
        for name, seconds in self.seconds.items():
            spread = (max(seconds) - min(seconds)) / statistics.median(seconds)
            say(
                {
                    "name": name,
                    "tokens": count,
                    "runs": len(seconds),
                    "median_us": statistics.median(seconds) * 1e6,
                    "spread_percent": spread * 100,
                    "cpu_us": statistics.median(self.cpu[name]) * 1e6,
                }
            )
        self.forget()


def measure(folder: Path, quick: bool) -> None:
    with contextlib.ExitStack() as stack:
        alone = System(Engine(folder, "alone", None, **SETTINGS))
        stack.callback(alone.engine.end)
        ours = Prefixd(folder)
        stack.callback(ours.stop)
        others: dict[str, System] = {"prefixd": ours}
        if packages := os.environ.get("PREFIXD_LMCACHE_PACKAGES"):
            lmcache = Lmcache(folder, packages)
            stack.callback(lmcache.stop)
            others["LMCache 0.5.6"] = lmcache
        else:
            say({"note": "LMCache is left out: it is not installed"})
        for system in (alone, *others.values()):
            system.engine.wait_until_shared()
        run = Run(folder)
        warm_up = prompt(150_000, 300)
        for system in (alone, *others.values()):
            for forget in (False, True):
                system.engine.ask(warm_up, max_tokens=1, forget=forget)
        for count, rounds in ((1024, 5), (4096, 5)) if quick else ((1024, 9), (4096, 9), (16384, 3)):
            run.of_length(count, rounds, alone, others)
            run.tell(count)
        for name, system in others.items():
            say({"name": f"{name}, a token", "stored_bytes": system.stored_bytes() / system.stored()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, no prompt of 16,384")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="engines-") as folder:
        measure(Path(folder), arguments.quick)
    say(None)


if __name__ == "__main__":
    main()
