"""A story: a daemon with random options, workers, and what befalls them; drawn from a seed, told
step by step. plan() decides everything that chance decides but the workers' race."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from pathlib import Path

import prefixd

import expected
from control import KINDS
from host import PATIENCE_S, Finding, Host, Workers
from shared_server import SharedServer

DAMAGES = ["MANIFEST", "CURRENT", "WAL", "tables", "borders", "any file", "arena tables", "arena pages"]
ERRORS = ["EIO", "ENOSPC", "EROFS", "EACCES", "EMFILE", "ENOMEM"]
FILE_KINDS = [kind for kind in KINDS if kind != "thread"]


def plan(seed: int) -> dict:
    draw = random.Random(f"story {seed}")
    roomy = draw.random() < 0.4  # nothing need ever be given up
    options = {
        "--ram": "96MiB" if roomy else draw.choice(["32MiB", "48MiB", "64MiB"]),
        "--ssd": draw.choice(["2GiB", "2GiB", "off"]) if roomy else draw.choice(["off", "48MiB", "128MiB", "2GiB"]),
        "--segment-bytes": draw.choice(["1MiB", "4MiB", "16MiB"]),
        "--block-tokens": draw.choice(["64", "64", "64", "32", "128"]),
        "--snapshot-share": draw.choice(["10%", "25%", "50%"]),
        "--load-wait": draw.choice(["0s", "300ms", "60s"]),
        "--log-interval": draw.choice(["0", "1s"]),
        "--drain-deadline": "30s",
    }
    if draw.random() < 0.3:
        options["--direct-io"] = "off"
    if not roomy and draw.random() < 0.3:
        options["--coarser-above"] = "80%"
    workers = draw.randrange(1, 5)
    families = 6 if roomy else draw.choice([8, 24])
    branches = 4 if roomy else draw.choice([4, 12])
    steps = [step(draw) for _ in range(draw.randrange(4, 12))]
    remote = draw.random() < 0.5
    if remote:
        steps = [each for one in steps for each in ([remote_step(draw)] if draw.random() < 0.4 else []) + [one]]
    return {
        "seed": seed,
        "roomy": roomy,
        "remote": draw.choice(["16mb", "64mb", "512mb"]) if remote else "",  # what the server holds
        "options": options,
        "workers": workers,
        "families": families,
        "branches": branches,
        "steps": steps,
    }


def step(draw: random.Random) -> dict:
    kinds = {
        "kill": 6, "kill while starting": 2, "stop": 3, "damage": 4, "lose the arena": 1, "lose the store": 1,
        "faults": 5, "faults at the start": 5, "clock": 2, "pause": 2, "descriptors": 2, "threads": 1,
        "resize": 2, "clear": 2, "purge": 1, "verify": 1, "flush": 1, "kill a worker": 3,
    }
    kind = draw.choices(list(kinds), list(kinds.values()))[0]
    one = {"kind": kind, "work": draw.choice([1, 5, 20, 60]), "seed": draw.randrange(1 << 32)}
    if kind == "damage":
        one["what"] = [draw.choice(DAMAGES) for _ in range(draw.randrange(1, 4))]
        one["killed"] = draw.random() < 0.5
    if kind.startswith("faults"):
        one |= {
            "calls": draw.sample(FILE_KINDS, draw.randrange(1, 4)),
            "error": draw.choice(ERRORS),
            "after": draw.choice([0, 0, 1, 3, 10, 30, 100, 300]),
            "count": draw.choice([1, 1, 2, 10, 1_000_000]),
        }
        if "folder" in one["calls"] and one["error"] == "EACCES":
            one["error"] = "EROFS"  # a folder that may not be made is a setting to be mended: the start says so
    if kind == "clock":
        one["ahead_s"] = draw.choice([-86_400 * 365, -3600, 3600, 86_400 * 365 * 20])
    if kind == "resize":
        one["ram"] = draw.choice(["16MiB", "48MiB", "96MiB"])
    if kind == "descriptors":
        one["spare"] = draw.choice([0, 1, 4])
    return one


def remote_step(draw: random.Random) -> dict:
    """What befalls the server that hosts share."""
    kinds = {"kill the server": 3, "hang the server": 3, "start the server": 4, "empty the server": 1, "lose what is here": 3}
    kind = draw.choices(list(kinds), list(kinds.values()))[0]
    return {"kind": kind, "work": draw.choice([1, 5, 20]), "seed": draw.randrange(1 << 32)}


class Teller:
    def __init__(self, story: dict, build: Path, package: Path, folder: Path, arena: Path) -> None:
        self.story = story
        self.host = Host(build, folder, arena)
        self.workers = Workers(self.host, build / "libprefixd.so", package)
        self.options = [f"{name}={value}" for name, value in story["options"].items()]
        self.seen: Counter[str] = Counter()  # what befell it, by kind
        self.server: SharedServer | None = None
        if story.get("remote") and SharedServer.possible():
            self.server = SharedServer(folder, story["remote"])
            self.options += self.server.options()
        # Since anything happened that may cost what was acknowledged.
        self.safe_from = 0 if story["roomy"] else None

    def tell(self) -> None:
        try:
            self.host.start(self.options)
            for number in range(self.story["workers"]):
                self.begin_worker(number)
            for one in self.story["steps"]:
                self.workers.work(one["work"])
                getattr(self, one["kind"].replace(" ", "_"))(one, random.Random(one["seed"]))
                self.seen[one["kind"]] += 1
                self.count_remote()
                self.workers.work(5)
                self.host.check_alive()
            self.finish()
        finally:
            self.workers.end()
            self.host.end()
            if self.server is not None:
                self.server.end()
            for kind, count in self.host.control.injected().items():
                self.seen[f"call {kind} failed"] += count

    def begin_worker(self, number: int) -> None:
        self.workers.begin({
            "seed": self.story["seed"] * 1000 + number,
            "families": self.story["families"],
            "branches": self.story["branches"],
        })

    def count_remote(self) -> None:
        if self.server is None:
            return
        done = self.host.ctl("stats")
        if done.returncode == 0:  # it may have no descriptor left
            self.seen.update(self.server.since(json.loads(done.stdout)["counters"]))

    def finish(self) -> None:
        """What must hold when all is over: nothing is held, what was acknowledged is there, also
        after one more kill."""
        self.host.control.clear()
        self.workers.stop()
        self.wait_for_nothing()
        self.look_for_acknowledged("before the last kill")
        self.host.kill()
        self.host.start(self.options)
        self.look_for_acknowledged("after the last kill")
        self.host.stop()

    def wait_for_nothing(self) -> None:
        until = time.monotonic() + PATIENCE_S
        while True:
            stats = self.host.stats()
            left = {name: stats[name] for name in ("sessions", "leases", "reservations") if stats[name]}
            if not left:
                return
            if time.monotonic() > until:
                raise Finding(f"the workers are gone, and there are still {left}\n{self.host.tail()}")
            time.sleep(0.05)

    def look_for_acknowledged(self, when: str) -> None:
        if self.safe_from is None:
            return
        lines = self.workers.expected_path.read_text().splitlines()[self.safe_from :]
        layouts = {layout.title: layout for layout in expected.layouts()}
        client = prefixd.connect(self.host.address, name="stress-check")
        spaces = {}
        for line in dict.fromkeys(lines):
            title, *name = json.loads(line)
            if title == "states":
                continue  # snapshots have a share of their own
            if title not in spaces:
                spaces[title] = layouts[title].open(client)
            tokens = expected.Name(*name).tokens()
            match = spaces[title].match(tokens, deadline_ms=60_000)
            if match.restorable_tokens < len(tokens):
                raise Finding(
                    f"{when}: {title} {name}: {match.restorable_tokens} of {len(tokens)} acknowledged tokens are there, "
                    f"reasons {match.reasons} {match.error}\n{self.host.tail()}"
                )
            self.seen["acknowledged and found"] += 1
        client.close()

    def forget(self) -> None:
        """From now on nothing that was acknowledged before need be there."""
        if self.safe_from is not None:
            self.safe_from = None

    # --- steps ---
    def kill(self, one: dict, draw: random.Random) -> None:
        time.sleep(draw.random() * 0.003)
        self.host.kill()
        self.host.start(self.options)

    def kill_while_starting(self, one: dict, draw: random.Random) -> None:
        self.host.kill()
        for _ in range(draw.randrange(1, 4)):
            self.host.start(self.options, wait=False)
            time.sleep(draw.random() * 0.1)
            self.host.kill()
        self.host.start(self.options)

    def stop(self, one: dict, draw: random.Random) -> None:
        self.host.stop()
        self.host.start(self.options)

    def damage(self, one: dict, draw: random.Random) -> None:
        self.host.kill() if one["killed"] else self.host.stop()
        for what in one["what"]:
            if self.host.damage(what, draw):
                self.seen[f"damaged: {what}"] += 1
        self.forget()
        self.host.start(self.options)

    def lose_the_arena(self, one: dict, draw: random.Random) -> None:
        self.host.kill()
        self.host.lose_arena()
        self.forget()
        self.host.start(self.options)

    def lose_the_store(self, one: dict, draw: random.Random) -> None:
        self.host.kill()
        self.host.lose_store()
        self.forget()
        self.host.start(self.options)

    def fail(self, one: dict) -> None:
        self.host.control.fail(one["calls"], one["error"], one["after"], one["count"])

    def faults(self, one: dict, draw: random.Random) -> None:
        self.forget()
        self.fail(one)
        self.workers.work(20)
        if draw.random() < 0.5:
            self.host.ctl("flush")
        if draw.random() < 0.3:
            self.host.kill()
            self.host.start(self.options)
            self.workers.work(5)
        self.host.control.clear()

    def faults_at_the_start(self, one: dict, draw: random.Random) -> None:
        self.forget()
        self.host.kill() if draw.random() < 0.7 else self.host.stop()
        self.fail(one)
        self.host.start(self.options)
        self.workers.work(10)
        self.host.control.clear()

    def clock(self, one: dict, draw: random.Random) -> None:
        self.host.control.set_clock(one["ahead_s"])
        self.workers.work(20)
        if draw.random() < 0.5:
            self.host.control.set_clock(0)

    def pause(self, one: dict, draw: random.Random) -> None:
        self.host.pause(draw.choice([0.1, 1, 4]))

    def descriptors(self, one: dict, draw: random.Random) -> None:
        self.forget()
        self.host.limit_descriptors(one["spare"])
        time.sleep(1)
        self.host.check_alive()
        self.host.free_descriptors()

    def threads(self, one: dict, draw: random.Random) -> None:
        self.host.control.fail(["thread"], "EAGAIN", draw.choice([0, 3]), 20)
        time.sleep(1)
        self.host.control.clear()

    def resize(self, one: dict, draw: random.Random) -> None:
        self.forget()
        self.host.ctl("budget", "--ram", one["ram"])

    def clear(self, one: dict, draw: random.Random) -> None:
        self.forget()
        self.host.ctl("clear", "--all", "--yes")

    def purge(self, one: dict, draw: random.Random) -> None:
        self.forget()
        self.host.ctl("clear", "--all", "--purge", "--yes")

    def kill_the_server(self, one: dict, draw: random.Random) -> None:
        if self.server is not None:
            self.server.kill()

    def hang_the_server(self, one: dict, draw: random.Random) -> None:
        if self.server is not None:
            self.server.hang()

    def start_the_server(self, one: dict, draw: random.Random) -> None:
        if self.server is not None:
            self.server.start()

    def empty_the_server(self, one: dict, draw: random.Random) -> None:
        if self.server is not None:
            self.server.empty()

    def lose_what_is_here(self, one: dict, draw: random.Random) -> None:
        """So that what workers ask for is on the server alone, if anywhere."""
        self.lose_the_store(one, draw)
        self.lose_the_arena(one, draw)

    def verify(self, one: dict, draw: random.Random) -> None:
        self.host.ctl("verify")

    def flush(self, one: dict, draw: random.Random) -> None:
        self.host.ctl("flush")

    def kill_a_worker(self, one: dict, draw: random.Random) -> None:
        self.workers.kill_one(draw)
        self.begin_worker(100 + draw.randrange(1 << 20))
