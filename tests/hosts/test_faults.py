"""R2: servers die and slots move under load."""

from __future__ import annotations

import signal
import time

from hosts import BLOCK, HostsTest, Load, Model, long_form, note, tokens_of
from prefixd_process import wait_for
from servers import NODE_TIMEOUT_MS, Cluster, Redis

MOST_S = NODE_TIMEOUT_MS / 1000 + 5  # until a lost primary's slots serve again
LARGE = Model(layers=16)  # so that few sequences fit the RAM of a host
PROBE_BLOCKS = 12  # so that every primary has some of them


class FaultsTest(HostsTest):
    def setUp(self) -> None:
        super().setUp()
        self.cluster_of_six: Cluster = self.cluster(replicas=1)
        self.hosts = [self.host(name, self.cluster_of_six, ram="32MiB") for name in "ab"]
        self.reader = self.worker(self.hosts[1])
        # Without load: what it stores is not evicted before it is shared.
        self.writer = self.worker(self.host("c", self.cluster_of_six))
        self.loads: list[Load] = []
        self.addCleanup(self.end_loads)

    def begin_loads(self) -> None:
        self.loads = [Load(self.worker(host, LARGE), seed) for seed, host in enumerate(self.hosts)]
        for load in self.loads:
            load.wait_for(10)

    def end_loads(self) -> None:
        loads, self.loads = self.loads, []
        for load in loads:
            load.stop()

    def nothing_was_wrong(self, what: str) -> None:
        requests, found = (sum(getattr(load, name) for load in self.loads) for name in ("requests", "found"))
        self.end_loads()  # raises a failed request, or wrong bytes
        remote = sum(host.counter("remote.tokens_found") for host in self.hosts)
        self.assertGreater(remote, 0)
        for host in self.hosts:
            self.assertEqual(host.bad(), {})
        note(f"R2: {what}: {requests} requests, {found} tokens found, {remote} of them at other hosts, 0 failed, 0 wrong")

    def test_r2_kill_9_of_a_primary_under_load_fails_no_request_and_its_slots_serve_again(self):
        self.begin_loads()
        took, after_redis = [], []
        for kill in range(long_form("KILLS", 2)):
            probe = tokens_of(100 + kill, PROBE_BLOCKS * BLOCK)
            self.writer.share(probe)
            self.cluster_of_six.wait_copied()
            victim = self.cluster_of_six.owners()[kill % 3]
            victim.stop(signal.SIGKILL)
            killed = time.monotonic()
            wait_for("a replica to take over", lambda: victim not in self.cluster_of_six.owners())
            taken_over = time.monotonic()
            self.assertEqual(self.reader.find(probe), len(probe), "also what lies in its slots")
            took.append(time.monotonic() - killed)
            after_redis.append(time.monotonic() - taken_over)
            for load in self.loads:
                load.wait_for(3)
            for host in self.hosts:
                wait_for("the host to use the new primary", host.knows_the_servers)
            victim.start()
            self.cluster_of_six.wait_whole(1)
        self.nothing_was_wrong(f"{len(took)} kills of a primary")
        late = sum(seconds > MOST_S for seconds in took)
        note(f"R2: its slots served again after {min(took):.1f} to {max(took):.1f} s, {late} of them after {MOST_S:.0f} s; "
             f"{min(after_redis):.1f} to {max(after_redis):.1f} s after its replica had taken over")

    def test_r2_slots_that_move_under_load_lose_nothing(self):
        probe = tokens_of(99, PROBE_BLOCKS * BLOCK)
        self.writer.share(probe)
        self.begin_loads()
        source, target = self.cluster_of_six.owners()[:2]
        with source.connect() as of, target.connect() as to:
            before = of.bundles()
            slots = {of("CLUSTER", "KEYSLOT", key) for key in before}
            self.assertGreater(len(slots), 0)
            ids = {"of": Cluster.id_of(source), "to": Cluster.id_of(target)}
            for number, slot in enumerate(sorted(slots)):
                self.move_slot(slot, of, to, ids, target.port, pause=number % 8 == 0)
            self.assertGreater(len(to.keys() & before), 0)
        for load in self.loads:
            load.wait_for(5)
        self.assertEqual(self.reader.find(probe), len(probe))
        self.nothing_was_wrong(f"{len(slots)} slots moved")
        fresh = self.worker(self.host("d", self.cluster_of_six))
        self.assertEqual(fresh.find(probe), len(probe))

    def move_slot(self, slot: int, of: Redis, to: Redis, ids: dict[str, str], port: int, pause: bool) -> None:
        """As `redis-cli --cluster reshard` does. `pause`: requests come while half of it has moved."""
        to("CLUSTER", "SETSLOT", slot, "IMPORTING", ids["of"])
        of("CLUSTER", "SETSLOT", slot, "MIGRATING", ids["to"])
        while keys := of("CLUSTER", "GETKEYSINSLOT", slot, 1):
            of("MIGRATE", "127.0.0.1", port, "", 0, 60_000, "KEYS", *keys)
            if pause:
                for load in self.loads:
                    load.wait_for(1)
        for redis in (to, of):
            redis("CLUSTER", "SETSLOT", slot, "NODE", ids["to"])

    def test_r2_a_request_meets_a_slot_that_has_half_moved(self):
        probe = tokens_of(98, PROBE_BLOCKS * BLOCK)
        self.writer.share(probe)
        source, target = self.cluster_of_six.owners()[:2]
        with source.connect() as of, target.connect() as to:
            ids = {"of": Cluster.id_of(source), "to": Cluster.id_of(target)}
            for key in of.bundles():
                slot = of("CLUSTER", "KEYSLOT", key)
                to("CLUSTER", "SETSLOT", slot, "IMPORTING", ids["of"])
                of("CLUSTER", "SETSLOT", slot, "MIGRATING", ids["to"])
                of("MIGRATE", "127.0.0.1", target.port, key, 0, 60_000)
            self.assertEqual(of.bundles(), set())
        self.assertEqual(self.reader.find(probe), len(probe))
        self.assertEqual(self.hosts[1].bad(), {})
