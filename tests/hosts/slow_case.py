"""What R4 asks of hosts whose servers are slow or silent, however they became so."""

from __future__ import annotations

import time
from collections.abc import Callable

from hosts import BLOCK, HostsTest, Worker, note, tokens_of
from prefixd_process import wait_for

HITS = 200
# Until a server is given up: three requests in a row, and what was under way beside them.
MOST_LATE = 6


def p99_ms(seconds: list[float]) -> float:
    return sorted(seconds)[len(seconds) * 99 // 100] * 1000


class SlowCase(HostsTest):
    """`far` reaches the server all the time, `near` by a way that the test makes slow."""

    def begin(self, far: Worker, near: Worker) -> None:
        self.far, self.near = far, near
        self.here = tokens_of(1, 4 * BLOCK + 20)
        self.next = 1000
        self.near.share(self.here)
        self.assertEqual(self.near.read(tokens_of(2, BLOCK)), 0)  # it knows the generations
        self.assertEqual(self.hits(), 0)

    def hits(self) -> int:
        """How often local hits made the host ask the servers, or find them down."""
        names = ("remote.lookups", "remote.late", "remote.down", "remote.not_worth_it")
        before = [self.near.host.counter(name) for name in names]
        took = []
        for _ in range(HITS):
            begun = time.monotonic()
            # All but the last token, as engines ask; full blocks of it are here.
            self.assertEqual(self.near.read(self.here), len(self.here))
            took.append(time.monotonic() - begun)
        self.p99 = p99_ms(took)
        return sum(self.near.host.counter(name) - was for name, was in zip(names, before))

    def miss(self) -> None:
        self.next += 1
        tokens = tokens_of(self.next, BLOCK)
        self.assertLessEqual(self.near.read(tokens), BLOCK)
        self.near.store(tokens)

    def misses_until_it_is_given_up(self) -> None:
        wait_for("the server to be given up", lambda: (self.miss(), self.near.host.open_servers())[1] or None)

    def asked_ms(self, last: int) -> list[float]:
        """How long the last requests asked other hosts."""
        return [answer.get("remote_us", 0) / 1000 for answer in self.near.host.control("why", "--last", str(last))["answers"]]

    def never_in_the_way(self, how: str) -> None:
        with_remote = self.p99
        self.misses_until_it_is_given_up()
        late = self.near.host.counter("remote.late")
        self.assertLessEqual(late, MOST_LATE, "what was asked until the breaker opened")
        for _ in range(50):
            self.miss()
        if self.near.host.open_servers():  # else a try came through meanwhile
            self.assertLessEqual(self.near.host.counter("remote.late") - late, MOST_LATE)
        asked = self.asked_ms(50)
        self.assertEqual(self.hits(), 0, "no local hit asks anybody")
        note(f"R4: {how}: local hits p99 {self.p99:.2f} ms, {with_remote:.2f} ms before; "
             f"{late} names were late; then misses asked for p50 {sorted(asked)[len(asked) // 2]:.3f} ms, most {max(asked):.3f} ms")

    def comes_back(self) -> None:
        """What another host stores is found again, without anybody's help."""
        tokens = tokens_of(5, 3 * BLOCK)
        self.far.share(tokens)
        self.assertEqual(self.near.find(tokens), len(tokens))
        self.assertEqual(self.near.host.bad(), {})

    def slow_and_right(self, slow: Callable[[], None], fast: Callable[[], None]) -> None:
        """At 1 Mbit/s, from slow() to fast(), bytes are right and local hits ask nobody."""
        far = [tokens_of(10 + n, 4 * BLOCK) for n in range(3)]
        for tokens in far:
            self.far.share(tokens)
        with_remote = self.p99
        slow()
        for tokens in far:  # 209 kB each: 1.7 s, near the patience of a load; less comes, or later
            self.assertLessEqual(self.near.read(tokens), len(tokens))
        self.assertEqual(self.hits(), 0)
        counters = self.near.host.counters()
        late, came = counters.get("remote.late", 0), counters.get("remote.pages_loaded", 0)
        note(f"R4: 1 Mbit/s: local hits p99 {self.p99:.2f} ms, {with_remote:.2f} ms before; {came} pages came, {late} were late")
        fast()
        self.comes_back()
        for tokens in far:
            self.assertEqual(self.near.find(tokens), len(tokens))
