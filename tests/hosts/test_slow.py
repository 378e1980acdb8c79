"""R4: servers that hang, that are unreachable, or at 1 Mbit/s cost local hits nothing, misses little."""

from __future__ import annotations

import signal
import socket
import time

from hosts import BLOCK, HostsTest, Worker, note, tokens_of
from prefixd_process import wait_for
from servers import free_port
from slow_way import SlowWay

HITS = 200
# Until a server is given up: three requests in a row, and what was under way beside them.
MOST_LATE = 6


def p99_ms(seconds: list[float]) -> float:
    return sorted(seconds)[len(seconds) * 99 // 100] * 1000


class SlowTest(HostsTest):
    def setUp(self) -> None:
        super().setUp()
        self.redis = self.server()
        self.way = self.kept(SlowWay(self.redis.port))
        self.far = self.worker(self.host("a", self.redis))  # reaches it all the time
        self.near = self.worker(self.host("b", self.way))
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

    def test_r4_a_server_that_hangs_costs_local_hits_nothing(self):
        self.redis.hang()
        self.addCleanup(self.redis.go_on)
        self.never_in_the_way("SIGSTOP")
        status = self.near.host.text("status")
        self.assertRegex(status, r"remote  OPEN: 127\.0\.0\.1:\d+ .*, next try in .*; served without it")
        self.redis.go_on()
        self.comes_back()

    def test_r4_a_network_that_swallows_everything_costs_local_hits_nothing(self):
        self.way.silent = True
        self.never_in_the_way("nothing comes through")
        self.way.silent = False
        self.comes_back()

    def test_r4_at_1_mbit_a_second_bytes_are_right_and_local_hits_cost_nothing(self):
        far = [tokens_of(10 + n, 4 * BLOCK) for n in range(3)]
        for tokens in far:
            self.far.share(tokens)
        with_remote = self.p99
        self.way.bytes_per_s = 125_000
        for tokens in far:  # 209 kB each: 1.7 s, near the patience of a load; less comes, or later
            self.assertLessEqual(self.near.read(tokens), len(tokens))
        self.assertEqual(self.hits(), 0)
        counters = self.near.host.counters()
        late, gone = counters.get("remote.late", 0), counters.get("remote.pages_loaded", 0)
        note(f"R4: 1 Mbit/s: local hits p99 {self.p99:.2f} ms, {with_remote:.2f} ms before; {gone} pages came, {late} were late")
        self.way.bytes_per_s = None
        self.comes_back()
        for tokens in far:
            self.assertEqual(self.near.find(tokens), len(tokens))

    def test_r4_a_host_that_takes_no_connection_is_served_without(self):
        """As behind a firewall that drops packets: the queue of the listener is full."""
        silent = self.kept(socket.create_server(("127.0.0.1", free_port()), backlog=0))
        port = silent.getsockname()[1]
        fillers = []
        for _ in range(4):
            filler = self.kept(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
            fillers.append(filler)
        host = self.host("c", f"redis://127.0.0.1:{port}", known=False)
        worker: Worker = self.worker(host)
        for number in range(20):
            tokens = tokens_of(number, BLOCK)
            self.assertEqual(worker.read(tokens), 0)
            worker.store(tokens)
            self.assertEqual(worker.read(tokens), BLOCK)
        self.assertEqual(host.counter("remote.late"), 0, "it is not known, so nothing waits for it")
        host.send(signal.SIGTERM)
        wait_for("prefixd to end", host.ended)
