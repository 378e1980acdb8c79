"""R6: more is written than the servers' memory holds."""

from __future__ import annotations

import re

from hosts import BLOCK, WIDE, HostsTest, note, tokens_of
from prefixd_process import wait_for

MAXMEMORY = 32 << 20
BLOCKS = 6  # of a sequence
LEAST_PAYLOAD = 0.80  # .90 is promised; allocators differ


class MemoryTest(HostsTest):
    def test_r6_five_times_its_memory_written_leaves_whole_blocks_alone(self):
        server = self.server("--maxmemory", MAXMEMORY, "--maxmemory-samples", "10")
        a, b = (self.worker(self.host(name, server), WIDE) for name in "ab")
        sequences = [tokens_of(number, BLOCKS * BLOCK) for number in range(5 * MAXMEMORY // (BLOCKS * WIDE.block_bytes) + 1)]
        for tokens in sequences:
            a.share(tokens)
        written = a.host.counter("remote.bytes_written")
        self.assertGreater(written, 5 * MAXMEMORY)
        with server.connect() as redis:
            self.assertGreater(int(redis.info("stats")["evicted_keys"]), 0)
            payload = records = 0
            for key in redis.bundles():
                names, cursor = set(), b"0"
                while True:
                    cursor, flat = redis("HSCAN", key, cursor)
                    names |= set(flat[::2])
                    records += sum(len(value) for name, value in zip(flat[::2], flat[1::2]) if name == b"r")
                    payload += sum(len(value) for name, value in zip(flat[::2], flat[1::2]) if name != b"r")
                    if cursor == b"0":
                        break
                self.assertEqual(names, {b"r", b"0", b"1", b"2"}, "a record with all its stripes, or nothing")
            dataset = int(redis.info("memory")["used_memory_dataset"])
        note(f"R6: {written / MAXMEMORY:.1f} times maxmemory written; {payload / dataset:.3f} of {dataset:,} bytes is payload, "
             f"{(payload + records) / dataset:.3f} with records")
        self.assertGreater(payload / dataset, LEAST_PAYLOAD)
        # Old and new: what is served is right, and the newest is there.
        self.assertEqual(b.find(sequences[-1]), BLOCKS * BLOCK)
        served = sum(b.read(tokens) for tokens in sequences)
        self.assertEqual(b.host.bad(), {})
        note(f"R6: {served} of {len(sequences) * BLOCKS * BLOCK} tokens were served, 0 wrong")

    def test_r6_a_server_that_takes_no_more_is_served_without_and_a_warning_says_why(self):
        server = self.server("--maxmemory", 8 << 20, "--maxmemory-policy", "noeviction")
        a = self.worker(self.host("a", server), WIDE)
        for number in range(6):
            tokens = tokens_of(number, BLOCKS * BLOCK)
            a.share(tokens)
            self.assertEqual(a.read(tokens), len(tokens))
        self.assertGreater(a.host.counter("remote.not_written.full"), 0)
        warning = r"remote  WARNING: 127\.0\.0\.1:\d+: maxmemory-policy is noeviction: writes fail"
        wait_for("the warning", lambda: re.search(warning, a.host.text("status")))
