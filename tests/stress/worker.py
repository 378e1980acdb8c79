"""A worker process of the stress run: worker.py PLAN. Stores, reads and compares until told to stop.

Every finding is a line {"finding": ...} on standard output. What the daemon acknowledged goes, line
by line, into the plan's file of what is expected, which outlives the worker.
"""

from __future__ import annotations

import json
import random
import re
import select
import sys
import time
from collections import Counter

import numpy as np
import prefixd

import expected

SLACK_S = 30  # beyond a deadline: the machine may be slow, a call that hangs is slower
HELD = 4


class Worker:
    def __init__(self, plan: dict) -> None:
        self.plan = plan
        self.random = random.Random(plan["seed"])
        self.names = expected.universe(plan["families"], plan["branches"])
        self.layouts = expected.layouts()
        self.acknowledged = open(plan["expected"], "a", buffering=1)
        self.counts: Counter[str] = Counter()
        self.held: list[tuple[expected.Layout, expected.Name, np.ndarray, prefixd.Lease]] = []
        self.said_at = 0.0
        self.client: prefixd.Client | None = None
        self.spaces: dict[str, prefixd.Space] = {}
        self.connect()

    def connect(self) -> None:
        self.held.clear()
        self.spaces.clear()
        self.client = prefixd.connect(
            self.plan["address"],
            name=f"stress-{self.plan['seed']}",
            arena=self.random.random() < 0.8,
            staging_bytes=self.random.choice([0, 1 << 20, 8 << 20]),
        )
        for layout in self.layouts:
            space = self.timed(10, "open_space", lambda: layout.open(self.client))
            self.spaces[layout.title] = space
        self.counts["connects"] += 1

    def finding(self, what: str) -> None:
        print(json.dumps({"finding": what}), flush=True)

    def timed(self, deadline_s: float, what: str, call):
        start = time.monotonic()
        result = call()
        took = time.monotonic() - start
        if took > deadline_s + SLACK_S:
            self.finding(f"{what}: took {took:.1f} s, deadline {deadline_s} s")
        return result

    def run(self) -> None:
        while not select.select([sys.stdin], [], [], 0)[0]:
            # What a client does on its own while it has no daemon is tried at times, and counts as nothing.
            served = self.client.wait_attached(20)
            if served or self.random.random() < 0.1:
                self.one()
            served = served and self.client.attached
            self.counts["operations" if served else "without a daemon"] += 1
            if time.monotonic() > self.said_at + 0.05:
                self.say()
        for held in self.held:
            self.look(*held, "at the end")
        self.held.clear()
        self.client.close()
        self.say()

    def say(self) -> None:
        self.said_at = time.monotonic()
        print(json.dumps({"counts": self.counts}), flush=True)

    def pick(self) -> tuple[expected.Layout, expected.Name]:
        at = min(self.random.randrange(len(self.names)), self.random.randrange(len(self.names)))
        return self.random.choice(self.layouts), self.names[at]

    def one(self) -> None:
        layout, name = self.pick()
        verbs = [self.turn] * 12 + [self.ask] * 2 + [self.hurry, self.prefetch, self.give_up, self.let_go]
        if self.random.random() < 0.01:
            verbs = [self.connect_again, self.salted]
        self.random.choice(verbs)(layout, name)

    # A request as an engine makes it.
    def turn(self, layout: expected.Layout, name: expected.Name) -> None:
        tokens, space = name.tokens(), self.spaces[layout.title]
        hashes = expected.prefixes(layout.title + layout.salt, tokens)
        most = self.random.choice([len(tokens), len(tokens) - 1])
        lease = self.timed(
            20,
            "acquire",
            lambda: space.acquire(
                tokens,
                max_cached_tokens=most,
                deadline_ms=5_000,
                load_deadline_ms=10_000,
                wait_pending_ms=self.random.choice([0, 0, 0, 20]),
            ),
        )
        self.look(layout, name, hashes, lease, "read")
        self.store(layout, name, tokens, hashes)
        if self.random.random() < 0.3:
            self.held.append((layout, name, hashes, lease))
            if len(self.held) > HELD:
                self.look(*self.held.pop(0), "held")
        else:
            lease.release()

    def look(self, layout, name, hashes, lease, when: str) -> None:
        count = self.timed(20, "wait_all", lambda: lease.wait_all(10_000))
        self.counts["requested tokens"] += len(hashes)
        if count == 0:
            return
        if count > len(hashes):
            return self.finding(f"{when}: {layout.title} {name}: {count} of {len(hashes)} tokens")
        self.counts["cached tokens"] += count
        for at, layer in enumerate(layout.layers):
            if isinstance(layer, prefixd.StateLayer):
                self.look_at_state(layout, name, hashes, lease, count, at, when)
                continue
            begin = 0
            if isinstance(layer, prefixd.SlidingLayer):
                begin = max(0, count - layer.window)
            got = lease.gather(layer=at, begin=begin, tokens=count - begin)
            if got is None:
                self.counts["gathers that came too late"] += 1
                continue
            want = expected.pair(layer, at, hashes[begin:count])
            for title, ours, theirs in zip("KV", want, got):
                for part, (right, seen) in enumerate(zip(ours, theirs)):
                    if right.tobytes() != seen.tobytes():
                        wrong = np.nonzero((right != seen).any(axis=(0, 1, 3)))[0]
                        self.finding(
                            f"WRONG BYTES, {when}: {layout.title} {name}, layer {at}, {title} part {part}: "
                            f"{len(wrong)} of {count - begin} tokens, first {begin + int(wrong[0])}"
                        )

    def look_at_state(self, layout, name, hashes, lease, count, at, when) -> None:
        got = lease.state(at)
        if got is None:
            self.counts["states that came too late"] += 1
        elif bytes(got) != expected.state(layout.layers[at], at, hashes[count - 1]).tobytes():
            self.finding(f"WRONG STATE, {when}: {layout.title} {name} after {count} tokens")

    def store(self, layout, name, tokens, hashes) -> None:
        plan = self.timed(
            10, "reserve", lambda: self.spaces[layout.title].reserve(tokens, deadline_ms=5_000)
        )
        with plan:
            for begin, end in plan.missing:
                for at, layer in enumerate(layout.layers):
                    if not isinstance(layer, prefixd.StateLayer):
                        key, value = expected.pair(layer, at, hashes[begin:end])
                        plan.write_packed(layer=at, begin=begin, key=key, value=value)
            for at, layer in enumerate(layout.layers):
                if isinstance(layer, prefixd.StateLayer):
                    for after in {*plan.snapshots_wanted, len(tokens)}:
                        plan.put_state(at, after, expected.state(layer, at, hashes[after - 1]))
            if self.random.random() < 0.05:
                return  # what is written is given up
            for end in [*(end for _, end in plan.missing), len(tokens)]:
                done = self.timed(
                    10, "commit", lambda: plan.commit(end, sequence_end=end == len(tokens), deadline_ms=5_000)
                )
                if done.error:
                    why = done.error.replace(self.plan["address"].split("//")[1], "SOCKET")
                    self.counts["refused: " + re.sub(r"[0-9][0-9.]*", "N", why)[:100]] += 1
                    return
                self.counts["stored tokens"] += done.stored_tokens
            if layout in self.layouts:
                self.acknowledged.write(json.dumps([layout.title, *name]) + "\n")
                self.counts["acknowledged"] += 1

    def ask(self, layout, name) -> None:
        space = self.spaces[layout.title]
        self.timed(5, "match", lambda: space.match(name.tokens(), deadline_ms=5_000))

    # A caller that gives up at once.
    def hurry(self, layout, name) -> None:
        space = self.spaces[layout.title]
        self.timed(1, "acquire", lambda: space.acquire(name.tokens(), deadline_ms=1).release())
        self.timed(1, "reserve", lambda: space.reserve(name.tokens(), deadline_ms=1).abandon())

    def prefetch(self, layout, name) -> None:
        space = self.spaces[layout.title]
        self.timed(5, "prefetch", lambda: space.prefetch(name.tokens(), deadline_ms=5_000))

    def give_up(self, layout, name) -> None:
        space = self.spaces[layout.title]
        self.timed(5, "reserve", lambda: space.reserve(name.tokens(), deadline_ms=5_000).abandon())

    def let_go(self, *_) -> None:
        if self.held:
            self.look(*self.held.pop(0), "held")

    def connect_again(self, *_) -> None:
        self.client.close()
        self.connect()

    # A space of one request.
    def salted(self, layout, name) -> None:
        one = layout._replace(salt=f"user {self.random.randrange(10_000)}")
        self.spaces[layout.title] = one.open(self.client)
        self.turn(one, name)
        self.spaces[layout.title] = layout.open(self.client)


def main() -> None:
    Worker(json.loads(sys.argv[1])).run()


if __name__ == "__main__":
    main()
