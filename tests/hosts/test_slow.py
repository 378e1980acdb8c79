"""R4: servers that hang, that are unreachable, or at 1 Mbit/s cost local hits nothing, misses little."""

from __future__ import annotations

import signal
import socket

from hosts import BLOCK, Worker, tokens_of
from prefixd_process import wait_for
from servers import free_port
from slow_case import SlowCase
from slow_way import SlowWay


class SlowTest(SlowCase):
    def setUp(self) -> None:
        super().setUp()
        self.redis = self.server()
        self.way = self.kept(SlowWay(self.redis.port))
        self.begin(self.worker(self.host("a", self.redis)), self.worker(self.host("b", self.way)))

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
        def pace(bytes_per_s: float | None) -> None:
            self.way.bytes_per_s = bytes_per_s

        self.slow_and_right(lambda: pace(125_000), lambda: pace(None))

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
