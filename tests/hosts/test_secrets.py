"""R9: who has no key finds nothing, and a copy of the servers' memory says nothing."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

from hosts import BLOCK, HostsTest, Model, make_key, tokens_of
from prefixd_process import DEADLINE_S, wait_for

NAME = "an-unmistakable-model-name"
RUN = 4  # tokens in a row


class SecretsTest(HostsTest):
    def test_r9_with_another_key_or_tenant_no_name_is_found(self):
        server = self.server()
        a = self.worker(self.host("a", server))
        tokens = tokens_of(1, 4 * BLOCK)
        a.share(tokens)
        others = {
            "another key": self.host("b", server, key=make_key(self.folder / "other", seed=2)),
            "no key": self.host("c", server, key=None),
            "another tenant": self.host("d", server, "--remote-tenant=other"),
        }
        for who, host in others.items():
            with self.subTest(who):
                worker = self.worker(host)
                wait_for("lookups that are answered", lambda: worker.read(tokens) == 0 and host.counter("remote.lookups") > 2)
                self.assertEqual(host.counter("remote.tokens_found"), 0)
                self.assertEqual(host.bad(), {}, "nothing of it was seen, so nothing was refused")
                before = host.counter("remote.bytes_written")
                worker.share(tokens)
                self.assertGreater(host.counter("remote.bytes_written"), before, "it has names of its own")
        again = self.worker(self.host("e", server))
        self.assertEqual(again.find(tokens), len(tokens))

    def dump(self, server, tokens: list[int], key: Path | None, name: str) -> bytes:
        """What the server holds after a host stored these tokens: its file, and every field."""
        with server.connect() as redis:
            redis("FLUSHALL")
            redis("CONFIG", "SET", "rdbcompression", "no")
            worker = self.worker(self.host(name, server, key=key), Model(name=NAME))
            worker.share(tokens)
            self.assertEqual(len(redis.bundles()), len(tokens) // BLOCK)
            values = [part for key in redis.bundles() for item in redis.fields(key).items() for part in (key, *item)]
        path = self.folder / f"{name}.rdb"
        command = ["redis-cli", "-p", str(server.port), "--rdb", str(path)]
        subprocess.run(command, check=True, capture_output=True, timeout=DEADLINE_S)
        return path.read_bytes() + b"".join(values)

    def readable(self, dump: bytes, tokens: list[int]) -> set[str]:
        """What of the request can be read in it."""
        seen = {"name"} if NAME.encode() in dump else set()
        for form in ("<", ">"):
            for begin in range(0, len(tokens) - RUN, RUN):
                if struct.pack(f"{form}{RUN}I", *tokens[begin : begin + RUN]) in dump:
                    seen.add("tokens")
        if bytes([7]) * 32 in dump:
            seen.add("weights")
        return seen

    def test_r9_a_dump_of_the_server_shows_no_tokens_and_no_name(self):
        server = self.server()
        tokens = tokens_of(2, 4 * BLOCK)
        plain = self.dump(server, tokens, None, "plain")
        self.assertIn("tokens", self.readable(plain, tokens), "not sealed they can be read, so they would be seen")
        sealed = self.dump(server, tokens, self.key, "sealed")
        self.assertGreater(len(sealed), len(tokens) // BLOCK * Model().block_bytes)
        self.assertEqual(self.readable(sealed, tokens), set())

    def test_r9_equal_blocks_look_different_each_time_they_are_written(self):
        server = self.server()
        tokens = tokens_of(3, BLOCK)
        seen = []
        for name in "ab":
            with server.connect() as redis:
                redis("FLUSHALL")
                self.worker(self.host(name, server)).share(tokens)
                [key] = redis.bundles()
                seen.append((key, redis.fields(key)))
        self.assertEqual(seen[0][0], seen[1][0])
        self.assertNotEqual(seen[0][1][b"r"], seen[1][1][b"r"])
        self.assertNotEqual(seen[0][1][b"0"], seen[1][1][b"0"])
