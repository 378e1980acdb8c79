"""The host that the daemon lives on, as a story treats it: its process, its files, its disk."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

from control import Control

UNSAVED = 4  # daemon/config.h: stopped, and not all of it is on the disk
PATIENCE_S = 120  # where the run tells a finding rather than waits: machines are slow at times


class Finding(Exception):
    """Something that must not happen."""


class Host:
    def __init__(self, build: Path, folder: Path, arena: Path) -> None:
        self.build, self.folder, self.arena = build, folder, arena
        self.data = folder / "data"
        self.address = f"unix://{folder}/prefixd.sock"
        self.control = Control(folder / "control")
        self.process: subprocess.Popen | None = None
        self.log_path = folder / "log"
        self.stopped = False  # by SIGSTOP
        self.lives = self.unsaved = 0
        self._harms_before = self._shortages = 0

    # --- the process ---
    def start(self, options: list[str], wait: bool = True) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PREFIXD_")}
        environment["STRESS_CONTROL"] = str(self.control.path)
        environment["STRESS_FOLDERS"] = f"{self.data}:{self.arena.parent}"
        environment["LD_PRELOAD"] = str(self.build / "libprefixd_stress_faults.so")
        command = [self.build / "prefixd", "--socket", self.folder / "prefixd.sock"]
        command += ["--directory", self.data, "--arena", self.arena, "--ssd-floor", "0"]
        log = open(self.log_path, "a")
        self._from = log.tell()
        self.process = subprocess.Popen(command + options, env=environment, stdout=log, stderr=log)
        log.close()
        self.lives += 1
        self._harms_before = self._harms()
        if wait:
            self.wait_listening()

    def wait_listening(self) -> None:
        until = time.monotonic() + PATIENCE_S
        while "listening on" not in self.said():
            if self.process.poll() is not None:
                raise Finding(f"prefixd ended by itself at its start: exit {self.process.returncode}\n{self.tail()}")
            if time.monotonic() > until:
                raise Finding(f"prefixd does not listen after {PATIENCE_S} s\n{self.tail()}")
            time.sleep(0.005)
        if self.control.loaded() == 0:
            raise Finding(f"the faults are not loaded, so none would be found\n{self.tail()}")

    def said(self) -> str:
        with open(self.log_path, errors="replace") as log:
            log.seek(self._from)
            return log.read()

    def tail(self) -> str:
        return "\n".join(self.said().splitlines()[-15:])

    def check_alive(self) -> None:
        if self.process.poll() is not None:
            raise Finding(f"prefixd ended by itself: exit {self.process.returncode}\n{self.tail()}")

    def kill(self) -> None:
        self.check_alive()
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.check_alive()
        self.process.terminate()
        try:
            code = self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise Finding(f"prefixd has not ended {PATIENCE_S} s after SIGTERM\n{self.tail()}") from None
        if code == UNSAVED and self._harms() > self._harms_before:
            self.unsaved += 1  # it says so, and a call failed that was to save
        elif code != 0:
            raise Finding(f"SIGTERM: exit {code}\n{self.tail()}")

    def _harms(self) -> int:
        return sum(self.control.injected().values()) + self._shortages

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.lose_arena()

    def ctl(self, *arguments: str, timeout_s: int = 60) -> subprocess.CompletedProcess:
        """prefixctl, which may answer with an error but must answer."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PREFIXD_")}
        command = [self.build / "prefixctl", "--server", self.address, "--json", "--timeout", f"{timeout_s}s"]
        try:
            return subprocess.run(
                command + list(arguments), env=environment, capture_output=True, text=True, timeout=timeout_s + PATIENCE_S
            )
        except subprocess.TimeoutExpired:
            raise Finding(f"prefixctl {' '.join(arguments)}: no answer\n{self.tail()}") from None

    def counters(self) -> dict[str, int]:
        return self.stats()["counters"]

    def stats(self) -> dict:
        done = self.ctl("stats")
        if done.returncode != 0:
            raise Finding(f"prefixctl stats: {done.stderr.strip()}\n{self.tail()}")
        return json.loads(done.stdout)

    # --- what befalls it ---
    def pause(self, seconds: float) -> None:
        self.process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self.process.send_signal(signal.SIGCONT)

    def limit_descriptors(self, spare: int) -> None:
        self._shortages += 1
        used = len(os.listdir(f"/proc/{self.process.pid}/fd"))
        _, most = resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE, (used + spare, most))

    def free_descriptors(self) -> None:
        _, most = resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE, (most, most))

    def damage(self, what: str, draw: random.Random) -> bool:
        """Of a stopped daemon's files. False: there is none of these."""
        files = [p for p in self.files(what) if p.is_file() and p.stat().st_size > 0]
        if not files:
            return False
        path = draw.choice(files)
        way = draw.choice(["bit", "cut", "zeros", "gone", "noise"])
        if what.startswith("arena"):
            way = draw.choice(["bit", "zeros", "noise"])  # its size is the daemon's own business
        size = path.stat().st_size
        at = draw.randrange(min(size, 1 << 20) if what == "arena tables" else size)
        if way == "gone":
            path.unlink()
        elif way == "cut":
            os.truncate(path, at)
        else:
            with open(path, "r+b") as file:
                file.seek(at)
                old = file.read(min(4096, size - at)) if way != "bit" else file.read(1)
                new = {"bit": lambda: bytes([old[0] ^ 1 << draw.randrange(8)]),
                       "zeros": lambda: bytes(len(old)),
                       "noise": lambda: draw.randbytes(len(old))}[way]()
                file.seek(at)
                file.write(new)
        return True

    def files(self, what: str) -> list[Path]:
        tree = sorted(self.data.rglob("*")) if self.data.exists() else []
        return {
            "MANIFEST": lambda: [p for p in tree if p.name.startswith("MANIFEST")],
            "CURRENT": lambda: [p for p in tree if p.name == "CURRENT"],
            "WAL": lambda: [p for p in tree if p.suffix == ".log"],
            "tables": lambda: [p for p in tree if p.suffix == ".sst"],
            "borders": lambda: [p for p in tree if "borders" in p.name],
            "any file": lambda: [p for p in tree if p.name not in ("prefixd.key", "LOCK")],
            "arena tables": lambda: [self.arena],
            "arena pages": lambda: [self.arena],
        }[what]()

    def lose_arena(self) -> None:
        for path in self.arena.parent.glob(self.arena.name + "*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def lose_store(self) -> None:
        shutil.rmtree(self.data, ignore_errors=True)


class Workers:
    """Worker processes and what they told."""

    def __init__(self, host: Host, library: Path, package: Path) -> None:
        self.host, self.library, self.package = host, library, package
        self.expected_path = host.folder / "expected"
        self.expected_path.touch()
        self.findings: list[str] = []
        self.counts: dict[int, dict[str, int]] = {}
        self.running: list[subprocess.Popen] = []
        self._lock = threading.Lock()
        self._begun = 0

    def begin(self, plan: dict) -> None:
        number, self._begun = self._begun, self._begun + 1
        plan = {**plan, "address": self.host.address, "expected": str(self.expected_path)}
        environment = {
            **os.environ,
            "PREFIXD_LIBRARY": str(self.library),
            "PYTHONPATH": str(self.package),
            "OPENBLAS_NUM_THREADS": "1",
        }
        worker = subprocess.Popen(
            ["python3", "-B", Path(__file__).with_name("worker.py"), json.dumps(plan)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )
        threading.Thread(target=self._hear, args=(number, worker), daemon=True).start()
        self.running.append(worker)

    def _hear(self, number: int, worker: subprocess.Popen) -> None:
        for line in worker.stdout:
            try:
                said = json.loads(line)
            except ValueError:  # it was killed in the middle
                continue
            with self._lock:
                if "finding" in said:
                    self.findings.append(said["finding"])
                self.counts[number] = said.get("counts", self.counts.get(number, {}))

    def operations(self) -> int:
        with self._lock:
            return sum(counts.get("operations", 0) for counts in self.counts.values())

    def check(self) -> None:
        for worker in self.running:
            if worker.poll() is not None:
                raise Finding(f"a worker ended by itself, {worker.returncode}: {worker.stderr.read()[-3000:]}")
        with self._lock:
            if self.findings:
                raise Finding("\n".join(self.findings[:5]))

    def work(self, operations: int) -> None:
        """Until so many more are done, or for as long as a stuck daemon may take."""
        goal, until = self.operations() + operations, time.monotonic() + PATIENCE_S
        while self.operations() < goal:
            self.check()
            if self.host.process.poll() is not None:
                self.host.check_alive()
            if time.monotonic() > until:
                raise Finding(f"the workers do not get on\n{self.host.tail()}")
            time.sleep(0.01)

    def kill_one(self, draw: random.Random) -> None:
        worker = self.running.pop(draw.randrange(len(self.running)))
        worker.kill()
        worker.wait()

    def stop(self) -> None:
        for worker in self.running:
            worker.stdin.write("stop\n")
            worker.stdin.flush()
        for worker in self.running:
            try:
                worker.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                raise Finding("a worker does not stop") from None
            if worker.returncode != 0:
                raise Finding(f"a worker ended with {worker.returncode}: {worker.stderr.read()[-3000:]}")
        self.running = []
        self.check()

    def end(self) -> None:
        for worker in self.running:
            worker.kill()
            worker.wait()
        self.running = []

    def totals(self) -> dict[str, int]:
        totals: dict[str, int] = {}
        with self._lock:
            for counts in self.counts.values():
                for name, count in counts.items():
                    totals[name] = totals.get(name, 0) + count
        return totals
