"""R4 between two network namespaces: what iptables drops, a server that hangs, a link of 1 Mbit/s."""

from __future__ import annotations

import unittest

import namespaces
from slow_case import SlowCase


@unittest.skipIf(namespaces.lacking(), namespaces.lacking())
class NetworkTest(SlowCase):
    def setUp(self) -> None:
        super().setUp()
        self.link = self.kept(namespaces.Link())
        self.redis = self.server("--bind", f"127.0.0.1 {self.link.here}", "--protected-mode", "no")
        url = f"redis://{self.link.here}:{self.redis.port}"
        near = self.host("b", url, inside=self.link.inside)
        self.begin(self.worker(self.host("a", self.redis)), self.worker(near))

    def test_r4_packets_that_are_dropped_cost_local_hits_nothing(self):
        self.link.drop(self.redis.port)
        self.never_in_the_way("iptables DROP")
        self.link.pass_on()
        self.comes_back()

    def test_r4_a_server_that_hangs_behind_a_link_costs_local_hits_nothing(self):
        self.redis.hang()
        self.addCleanup(self.redis.go_on)
        self.never_in_the_way("SIGSTOP, over veth")
        self.redis.go_on()
        self.comes_back()

    def test_r4_over_a_link_of_1_mbit_a_second_bytes_are_right_and_local_hits_cost_nothing(self):
        self.slow_and_right(lambda: self.link.narrow("1mbit"), self.link.widen)
