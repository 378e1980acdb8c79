"""Time to the first token of one prompt at a time: vLLM alone, with prefixd, with LMCache.

Out, a line of JSON each: {"name": ..., "median_us": ..., ...} for a figure, {"note": ...} for what was
left out, null at the end. One engine runs at a time: vLLM's processes spin for a while after each
request. A machine may be slower for one engine than for the next, so each time is also told as a
ratio to that of the engine's own cache, asked for the same prompt just before. All answers to a
prompt must be the same token, or one as likely.
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
TIE = 1e-2  # of log probabilities, which depend a little on how vLLM cuts a prompt
IN_RAM = 100_000  # tokens that prefixd's RAM tier holds in any case
OWN = ", vLLM's own cache"
# Tokens and prompts. No multiples of a page, of which a cache would have all but the last token.
QUICK = ((1_000, 15), (4_000, 15))
WHOLE = ((1_000, 15), (4_000, 15), (16_000, 5))


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
    """An engine, and the server that belongs to it. What it started ends with `stack`."""

    has_server = True
    engine: Engine

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


class Alone(System):
    has_server = False

    def __init__(self, folder: Path, stack: contextlib.ExitStack):
        self.engine = Engine(folder, "alone", None, **SETTINGS)
        stack.callback(self.engine.end)


class Prefixd(System):
    def __init__(self, folder: Path, stack: contextlib.ExitStack):
        self.daemon = Daemon(folder / "d", ram="1GiB", ssd="4GiB")
        stack.callback(lambda: self.daemon.lose_arena())
        stack.callback(lambda: self.daemon.stop(signal.SIGKILL))
        self.engine = Engine(folder, "prefixd", self.daemon.address, **SETTINGS)
        stack.callback(self.engine.end)

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
        self.daemon = Daemon(folder / "d", ram="1GiB", ssd="4GiB")
        self.daemon.wait_for_sessions(2)


class Lmcache(System):
    def __init__(self, folder: Path, stack: contextlib.ExitStack):
        packages = os.environ["PREFIXD_LMCACHE_PACKAGES"]
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
        # A server that is killed leaves its memory behind.
        pool = Path("/dev/shm") / f"lmcache_l1_pool_prefixd_bench_{os.getpid()}"
        stack.callback(lambda: pool.unlink(missing_ok=True))
        stack.callback(self.server.wait)
        stack.callback(lambda: os.killpg(self.server.pid, signal.SIGKILL))
        wait_for("LMCache to serve", lambda: "cache server is running" in self.said())
        config = {
            "kv_connector": "LMCacheMPConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {
                "lmcache.mp.host": "tcp://localhost",
                "lmcache.mp.port": PORT,
            },
        }
        self.engine = Engine(
            folder, "lmcache", None, environment=environment, kv_transfer_config=config, **SETTINGS
        )
        stack.callback(self.engine.end)

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


class Run:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.cpu: dict[str, list[float]] = defaultdict(list)
        self.first_token: dict[tuple[int, ...], tuple[int, float]] = {}

    def ask(self, name: str, system: System, tokens: list[int], forget: bool) -> None:
        before = cpu_seconds(system.processes())
        answer = system.engine.ask(tokens, max_tokens=1, forget=forget)
        self.seconds[name].append(answer.seconds)
        self.cpu[name].append(cpu_seconds(system.processes()) - before)
        if name.endswith("cold") and answer[0].cached:
            raise AssertionError(f"{name}: {answer[0].cached} tokens were cached")
        token, logprob = answer[0].tokens[0][0], answer[0].logprobs[0][0]
        first = self.first_token.setdefault(tuple(tokens), (token, logprob))
        if token != first[0] and abs(logprob - first[1]) > TIE:
            raise AssertionError(f"{name}: first token {token} ({logprob}), seen before: {first}")

    def forget(self) -> None:
        self.seconds.clear()
        self.cpu.clear()

    def of_length(self, name: str, system: System, count: int, rounds: int) -> None:
        begins = [count // 4 + 9_000 * i for i in range(rounds + 1)]  # no two begin alike
        prompts = [prompt(begin, count) for begin in begins]
        for number, tokens in enumerate(prompts):
            if number == 1:
                self.forget()  # the first of its length makes buffers
            before = system.stored()
            self.ask(f"{name}, cold", system, tokens, True)
            self.ask(name + OWN, system, tokens, False)
            if system.has_server:
                system.wait_until_stored(before + (count - 1) // 128 * 128)
                self.ask(f"{name}, RAM", system, tokens, True)
        if isinstance(system, Prefixd):
            for again, how, lose in (
                ("after kill -9", signal.SIGKILL, False),
                ("SSD", signal.SIGTERM, True),
            ):
                system.restart(self.folder, how, lose)
                for tokens in prompts[-min(rounds, IN_RAM // count) :]:
                    self.ask(f"{name}, {again}", system, tokens, True)

    def tell(self, count: int) -> None:
        own = next(seconds for name, seconds in self.seconds.items() if name.endswith(OWN))
        for name, seconds in self.seconds.items():
            median = statistics.median(seconds)
            of_own = [one / other for one, other in zip(seconds, own[-len(seconds) :], strict=True)]
            say(
                {
                    "name": name,
                    "tokens": count,
                    "runs": len(seconds),
                    "median_us": median * 1e6,
                    "spread_percent": (max(seconds) - min(seconds)) / median * 100,
                    "cpu_us": statistics.median(self.cpu[name]) * 1e6,
                    "of_own_cache_ratio": statistics.median(of_own),
                }
            )
        self.forget()


def measure(folder: Path, quick: bool) -> None:
    makers = {"vLLM alone": Alone, "prefixd": Prefixd}
    if os.environ.get("PREFIXD_LMCACHE_PACKAGES"):
        makers["LMCache 0.5.6"] = Lmcache
    else:
        say({"note": "LMCache is left out: it is not installed"})
    run = Run(folder)
    for name, make in makers.items():
        with contextlib.ExitStack() as stack:
            system = make(folder, stack)
            system.engine.wait_until_shared()
            for forget in (False, True):
                system.engine.ask(prompt(199_000, 300), max_tokens=1, forget=forget)
            for count, rounds in QUICK if quick else WHOLE:
                run.of_length(name, system, count, rounds)
                run.tell(count)
            if system.has_server:
                each = system.stored_bytes() / system.stored()
                say({"name": f"{name}, a token", "stored_bytes": each})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, no prompt of 16,000")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="engines-") as folder:
        measure(Path(folder), arguments.quick)
    say(None)


if __name__ == "__main__":
    main()
