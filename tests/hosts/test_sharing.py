"""R1, R7: what one host computed, the other finds; what both compute is written once."""

import itertools
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hosts import BLOCK, HYBRID, STATE_BYTES, WIDE, HostsTest, Model, note, tokens_of
from prefixd_process import wait_for

CORPUS = Path(__file__).resolve().parents[1] / "data" / "corpus" / "kjv_sample.txt"


class SharingTest(HostsTest):
    def test_r1_what_a_computed_b_finds_on_a_cluster_to_the_byte(self):
        cluster = self.cluster()
        a, b = (self.worker(self.host(name, cluster), WIDE) for name in "ab")
        tokens = tokens_of(1, 12 * BLOCK + 17)
        self.assertEqual(a.share(tokens), len(tokens))
        self.assertEqual(b.find(tokens), 12 * BLOCK, "the full blocks; the rest stays on its host")
        # The longer prompt of a chat that went on: what it shares is found.
        self.assertEqual(b.read(tokens[: 7 * BLOCK] + tokens_of(2, 200)), 7 * BLOCK)
        # One chain lies on all servers.
        self.assertTrue(all(redis.bundles() for redis in cluster.each()))
        self.assertEqual(b.host.bad(), {})
        self.assertEqual(b.host.counter("remote.bytes_loaded"), 12 * WIDE.block_bytes)

    def test_r1_whoever_asks_sees_how_many_bytes_came_from_other_hosts(self):
        server = self.server()
        a, b = (self.worker(self.host(name, server), WIDE) for name in "ab")
        numbers, whole = itertools.count(12), 3 * WIDE.block_bytes

        def all_on_its_way() -> tuple[int, list[int]] | None:
            """A page that has come when the answer is made counts as one in RAM: then another prompt."""
            number = next(numbers)
            tokens = tokens_of(number, 3 * BLOCK)
            a.share(tokens)
            here = a.match(tokens)
            self.assertEqual((here.ram_bytes, here.remote_bytes), (whole, 0), "A computed it")
            match = b.match(tokens, request_id=f"chat-{number}")
            self.assertLessEqual(match.ram_bytes + match.remote_bytes, whole)
            return (number, tokens) if match.remote_bytes == whole else None

        number, tokens = wait_for("a hit of which all comes from A", all_on_its_way)
        b.read(tokens)  # waits for all of it
        again = b.match(tokens)
        self.assertEqual((again.ram_bytes, again.remote_bytes), (whole, 0))
        self.assertIn("1.6 MiB came from other hosts", b.host.text("why", f"chat-{number}"))
        said = b.host.control("why", f"chat-{number}")["answers"]
        self.assertIn(str(whole), [str(answer.get("remote_bytes")) for answer in said])

    def test_r1_a_worker_on_b_writes_the_text_that_it_writes_cold(self):
        server = self.server()
        a, b = (self.host(name, server) for name in "ab")
        prompt = self.folder / "prompt"
        prompt.write_bytes(CORPUS.read_bytes()[:1000])
        cold = self.run_worker("none", prompt, "cold")
        first = self.run_worker(a.address, prompt, "first")
        a.flush()

        def warm() -> dict | None:
            report = self.run_worker(b.address, prompt, "second")
            return report if b.counter("remote.tokens_found") else None

        second = wait_for("the worker on B to find what A's computed", warm)
        text = next(name for name in ("text", "output", "completion") if name in cold)
        self.assertEqual(first[text], cold[text])
        self.assertEqual(second[text], cold[text])
        self.assertGreaterEqual(b.counter("remote.tokens_found"), 1000 // BLOCK * BLOCK - BLOCK)
        self.assertEqual(b.bad(), {})

    def test_r1_other_weights_do_not_share_and_explain_says_why(self):
        server = self.server()
        a, b = self.host("a", server), self.host("b", server)
        ours, theirs = self.worker(a), self.worker(b, Model(weights=9))
        tokens = tokens_of(3, 4 * BLOCK)
        ours.share(tokens)
        wait_for("a lookup", lambda: theirs.read(tokens) == 0 and b.counter("remote.lookups") > 0)
        self.assertEqual(b.counter("remote.tokens_found"), 0)
        self.assertEqual(b.bad(), {}, "they have other names, nothing is refused")
        # A host that knows both says which field tells them apart.
        self.worker(b).read(tokens)
        explained = b.text("spaces", "--explain", self.worker(b).space.id)
        self.assertIn("weights", explained)
        self.assertNotIn("tokenizer differs", explained)

    def test_r1_explain_knows_spaces_that_only_another_host_has(self):
        server = self.server()
        a = self.worker(self.host("a", server))
        b = self.host("b", server)
        prompt = self.folder / "prompt"
        prompt.write_bytes(CORPUS.read_bytes()[:300])
        self.run_worker(b.address, prompt, "b")  # prefixd-worker: another model, another space
        space = b.control("spaces")["spaces"][0]["space_id"]

        def told() -> str | None:
            text = b.text("spaces", "--explain", space)
            return text if "only other hosts have" in text else None

        explained = wait_for("A to tell of its space", told)
        self.assertRegex(explained, rf"\(a model of several hosts, on {re.escape(socket.gethostname())} \d+ s ago\): .*weights_digest")
        said = b.control("spaces", "--explain", space)["other_hosts"]
        self.assertEqual([other["identity"]["model"] for other in said], ["a model of several hosts"])
        self.assertIn("weights_digest", said[0]["differing_fields"])
        # And A knows of B's, which is told once; a space that both have is not another host's.
        same = self.worker(b)
        told_to_a = wait_for("B to tell", lambda: a.host.control("spaces", "--explain", a.space.id).get("other_hosts"))
        self.assertEqual([other["space_id"] for other in told_to_a], [space])
        self.assertNotIn("only other hosts have", b.text("spaces", "--explain", same.space.id))
        server.hang()
        self.addCleanup(server.go_on)
        self.assertIn("what other hosts have is not known", b.text("spaces", "--explain", space))

    def test_r1_a_model_that_does_not_name_its_weights_stays_on_its_host(self):
        server = self.server()
        a = self.worker(self.host("a", server, "--trust-model-names"), Model(weights=0))
        a.share(tokens_of(4, 4 * BLOCK))
        with server.connect() as redis:
            self.assertEqual(redis.bundles(), set())

    def test_r1_prefetch_brings_what_other_hosts_have(self):
        server = self.server()
        a, b = (self.worker(self.host(name, server)) for name in "ab")
        tokens = tokens_of(5, 6 * BLOCK)
        a.share(tokens)
        wait_for("the hint to be taken", lambda: b.space.prefetch(tokens, deadline_ms=60_000) == len(tokens))
        lookups = b.host.counter("remote.lookups")
        self.assertEqual(b.find(tokens), len(tokens))
        self.assertEqual(b.host.counter("remote.lookups"), lookups, "it was there")

    def test_r1_workers_that_copy_and_workers_that_wait_find_it_too(self):
        server = self.server()
        a = self.worker(self.host("a", server), WIDE)
        tokens = tokens_of(10, 4 * BLOCK)
        a.share(tokens)
        for name, options in {"copies": {"arena": False, "staging_bytes": 0}, "waits": {}}.items():
            with self.subTest(name):
                worker = self.worker(self.host(name, server), WIDE, **options)
                wait_ms = 100 if name == "waits" else 0
                found = lambda: worker.read(tokens, wait_pending_ms=wait_ms) == len(tokens)
                wait_for("all of it", found)
                self.assertEqual(worker.host.counter("remote.bytes_loaded"), 4 * WIDE.block_bytes)

    def test_r1_what_several_workers_of_a_host_ask_for_at_once_is_read_once(self):
        server = self.server()
        tokens = tokens_of(11, 8 * BLOCK)
        self.worker(self.host("a", server), WIDE).share(tokens)
        host = self.host("b", server)
        workers = [self.worker(host, WIDE) for _ in range(4)]
        with ThreadPoolExecutor(len(workers)) as all_at_once:
            found = list(all_at_once.map(lambda worker: worker.find(tokens), workers))
        self.assertEqual(found, [len(tokens)] * len(workers))
        self.assertEqual(host.counter("remote.bytes_loaded"), 8 * WIDE.block_bytes)

    def test_r7_a_prefix_that_two_hosts_store_one_after_the_other_is_written_once(self):
        server = self.server()
        a, b = (self.worker(self.host(name, server), WIDE) for name in "ab")
        tokens = tokens_of(6, 8 * BLOCK)
        a.share(tokens)
        self.assertEqual(b.share(tokens), len(tokens), "B computed it too")
        written = a.host.counter("remote.bytes_written") + b.host.counter("remote.bytes_written")
        self.assertLessEqual(written, 1.05 * 8 * WIDE.block_bytes)
        self.assertGreaterEqual(written, 8 * WIDE.block_bytes)
        with server.connect() as redis:
            self.assertEqual(len(redis.bundles()), 8)

    def test_r1_a_hybrid_model_goes_on_from_the_state_that_another_host_stored(self):
        server = self.server()
        a, b = (self.worker(self.host(name, server), HYBRID) for name in "ab")
        tokens = tokens_of(8, 4 * BLOCK)
        a.share(tokens)
        self.assertEqual(b.find(tokens), len(tokens))
        with server.connect() as redis:
            self.assertTrue(any(key.endswith(b":s") for key in redis.bundles()))

    def test_r7_states_that_two_hosts_store_one_after_the_other_are_written_once(self):
        server = self.server()
        a, b = (self.worker(self.host(name, server), HYBRID) for name in "ab")
        tokens = tokens_of(9, 4 * BLOCK)
        a.share(tokens)
        b.share(tokens)
        self.assertGreater(a.host.counter("remote.bytes_written"), STATE_BYTES)
        self.assertEqual(b.host.counter("remote.bytes_written"), 0)

    def test_r7_two_hosts_that_store_at_the_same_moment_agree(self):
        server = self.server()
        workers = [self.worker(self.host(name, server), WIDE) for name in "ab"]
        tokens = tokens_of(7, 8 * BLOCK)
        with ThreadPoolExecutor(2) as both:
            list(both.map(lambda worker: worker.share(tokens), workers))
        written = sum(worker.host.counter("remote.bytes_written") for worker in workers)
        self.assertLessEqual(written, 2 * 8 * WIDE.block_bytes)
        note(f"R7: at the same moment, {written / (8 * WIDE.block_bytes):.2f} times its bytes were written")
        reader = self.worker(self.host("c", server), WIDE)
        self.assertEqual(reader.find(tokens), len(tokens))
        self.assertEqual(reader.host.bad(), {})
