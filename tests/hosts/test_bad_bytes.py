"""R5: what somebody put in a bundle's place is never served, and counted by reason."""

from __future__ import annotations

import random

from hosts import BLOCK, WIDE, HostsTest, Model, Worker, make_key, tokens_of
from prefixd_process import wait_for
from servers import Redis

Fields = dict[bytes, bytes]


def flipped(value: bytes, at: int) -> bytes:
    return value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :]


def without(fields: Fields, *names: bytes) -> Fields:
    return {name: value for name, value in fields.items() if name not in names}


class BadBytesTest(HostsTest):
    def setUp(self) -> None:
        super().setUp()
        self.redis_server = self.server()
        self.redis: Redis = self.kept(self.redis_server.connect())
        self.a = self.worker(self.host("a", self.redis_server), WIDE)
        self.b = self.worker(self.host("b", self.redis_server), WIDE)
        self.number = 0

    def stored(self, worker: Worker | None = None, blocks: int = 1) -> tuple[list[int], dict[bytes, Fields]]:
        """A new sequence that A shared, and its bundles."""
        self.number += 1
        tokens = tokens_of(self.number, blocks * BLOCK)
        before = self.redis.bundles()
        (worker or self.a).share(tokens)
        keys = self.redis.bundles() - before
        self.assertEqual(len(keys), blocks)
        return tokens, {key: self.redis.fields(key) for key in keys}

    def one(self, worker: Worker | None = None) -> tuple[list[int], bytes, Fields]:
        tokens, bundles = self.stored(worker)
        [(key, fields)] = bundles.items()
        self.assertEqual(set(fields), {b"r", b"0", b"1", b"2"})
        return tokens, key, fields

    def refused(self, tokens: list[int], reader: Worker | None = None) -> set[str]:
        """The reasons for which a host that asks for these tokens gets none of them."""
        reader = reader or self.b

        def counts() -> dict[str, int]:
            return {**reader.host.bad(), "gone": reader.host.counter("remote.gone")}

        def asked() -> set[str] | None:
            self.assertEqual(reader.read(tokens), 0)
            now = counts()
            return {name for name in now if now[name] > before.get(name, 0)} or None

        before = counts()
        return wait_for("a reason", asked)

    def test_r5_altered_values_are_not_served_and_say_why(self):
        _, _, other = self.one()
        cases = {
            "a bit of the record": (lambda f: {**f, b"r": flipped(f[b"r"], 200)}, "seal"),
            "a bit of the record's seal": (lambda f: {**f, b"r": flipped(f[b"r"], len(f[b"r"]) - 1)}, "seal"),
            "a bit of the salt": (lambda f: {**f, b"r": flipped(f[b"r"], 12)}, "seal"),
            "another version": (lambda f: {**f, b"r": flipped(f[b"r"], 4)}, "version"),
            "another seal": (lambda f: {**f, b"r": flipped(f[b"r"], 5)}, None),
            "half a record": (lambda f: {**f, b"r": f[b"r"][: len(f[b"r"]) // 2]}, "short"),
            "an empty record": (lambda f: {**f, b"r": b""}, None),
            "noise for a record": (lambda f: {**f, b"r": random.Random(1).randbytes(len(f[b"r"]))}, "version"),
            "another bundle's record": (lambda f: {**f, b"r": other[b"r"]}, "seal"),
            "another bundle, whole": (lambda f: other, "seal"),
            "a bit of a stripe": (lambda f: {**f, b"1": flipped(f[b"1"], 1000)}, "bytes"),
            "a bit of a stripe's seal": (lambda f: {**f, b"0": flipped(f[b"0"], len(f[b"0"]) - 1)}, "bytes"),
            "a stripe cut short": (lambda f: {**f, b"2": f[b"2"][:-1]}, "bytes"),
            "a stripe too long": (lambda f: {**f, b"2": f[b"2"] + b"x"}, "bytes"),
            "zeros for a stripe": (lambda f: {**f, b"1": bytes(len(f[b"1"]))}, "bytes"),
            "stripes swapped": (lambda f: {**f, b"0": f[b"1"], b"1": f[b"0"]}, "bytes"),
            "another bundle's stripe": (lambda f: {**f, b"1": other[b"1"]}, "bytes"),
            "a stripe lost": (lambda f: without(f, b"1"), "gone"),
        }
        for what, (alter, reason) in cases.items():
            with self.subTest(what):
                tokens, key, fields = self.one()
                self.redis.put(key, alter(fields))
                reasons = self.refused(tokens)
                if reason is not None:
                    self.assertEqual(reasons, {reason})
        shown = self.b.host.text("stats")
        for reason in ("seal", "version", "short", "bytes"):
            self.assertRegex(shown, rf"remote\.bad\.{reason} +[1-9]")
        self.assertRegex(self.b.host.text("status"), r"remote .* written, [1-9]\d* bad")

    def test_r5_a_bad_block_ends_the_hit_where_it_begins(self):
        tokens, bundles = self.stored(blocks=6)
        kept = self.worker(self.host("c", self.redis_server), WIDE)
        self.assertEqual(kept.find(tokens), len(tokens))
        for key, fields in sorted(bundles.items())[:1]:
            self.redis.put(key, {**fields, b"0": flipped(fields[b"0"], 7)})
        served = self.b.read(tokens)
        self.assertLess(served, len(tokens))
        self.assertEqual(served % BLOCK, 0)

    def test_r5_bundles_of_before_a_clear_are_not_served_after_it(self):
        """Replayed under the names that count now."""
        tokens, old_key, old = self.one()
        self.a.host.control("clear", "--all", "--yes")
        self.redis.put(old_key, old)
        self.a.share(tokens)
        [new_key] = self.redis.bundles() - {old_key}
        new = self.redis.fields(new_key)
        reader = self.worker(self.host("c", self.redis_server), WIDE)
        self.redis.put(new_key, old)
        self.assertEqual(self.refused(tokens, reader), {"seal"})
        self.redis.put(new_key, {**old, b"r": new[b"r"]})
        self.assertEqual(self.refused(tokens, reader), {"bytes"})

    def test_r5_bundles_of_another_space_or_tenant_are_not_served(self):
        cousin = self.worker(self.host("c", self.redis_server), WIDE._replace(weights=9))
        tenant = self.worker(self.host("d", self.redis_server, "--remote-tenant=other"), WIDE)
        key_file = make_key(self.folder / "other-key", seed=2)
        stranger = self.worker(self.host("e", self.redis_server, key=key_file), WIDE)
        for writer in (cousin, tenant, stranger):
            with self.subTest(writer.host.folder.name):
                _, _, theirs = self.one(writer)
                tokens, key, _ = self.one()
                self.redis.put(key, theirs)
                self.assertEqual(self.refused(tokens), {"seal"})

    def test_r5_what_is_not_sealed_is_not_taken_where_sealed_is_asked_for(self):
        plain = self.worker(self.host("c", self.redis_server, key=None), WIDE)
        _, _, theirs = self.one(plain)
        tokens, key, _ = self.one()
        self.redis.put(key, theirs)
        self.assertTrue(self.refused(tokens) <= {"insecure", "seal"})

    def test_r5_keys_of_another_kind_are_no_bundles(self):
        tokens, key, fields = self.one()
        self.redis("DEL", key)
        self.redis("SET", key, b"text")
        self.assertEqual(self.b.read(tokens), 0)
        self.redis("DEL", key)
        self.redis("RPUSH", key, b"a", b"b")
        self.assertEqual(self.b.read(tokens), 0)

    def test_r5_not_sealed_altered_bytes_are_not_served_either(self):
        """By accident, that is: whoever can write there can forge."""
        plain = Model(layers=32, name="plain")
        a, b = (self.worker(self.host(name, self.redis_server, key=None), plain) for name in "cd")
        alterations = (
            lambda f: {**f, b"1": flipped(f[b"1"], 99)},
            lambda f: {**f, b"0": f[b"1"], b"1": f[b"0"]},
            lambda f: {**f, b"r": flipped(f[b"r"], 300)},
        )
        for alter in alterations:
            tokens, key, fields = self.one(a)
            self.redis.put(key, alter(fields))
            self.assertTrue(self.refused(tokens, b))

    def test_r5_a_bad_bundle_is_written_anew_by_who_computes_it(self):
        """Else it would be a hole for as long as it is used."""
        alterations = (
            lambda f: {**f, b"r": flipped(f[b"r"], 200)},
            lambda f: {**f, b"1": flipped(f[b"1"], 9)},
            lambda f: without(f, b"2"),
        )
        for alter in alterations:
            tokens, key, fields = self.one()
            self.redis.put(key, alter(fields))
            self.refused(tokens)
            self.assertEqual(self.b.share(tokens), len(tokens))
            reader = self.worker(self.host(f"reader-{self.number}", self.redis_server), WIDE)
            self.assertEqual(reader.find(tokens), len(tokens))

    def test_r5_a_bundle_that_was_evicted_is_written_anew_by_who_computes_it(self):
        tokens, key, _ = self.one()
        self.redis("FLUSHALL")
        host = self.a.host
        host.control("budget", "--ram", "32MiB")
        for number in range(40):  # until A has lost it too
            self.a.store(tokens_of(5000 + number, 2 * BLOCK))
        host.flush()
        wait_for("A to have lost it", lambda: self.a.space.match(tokens).restorable_tokens == 0)
        wait_for("a lookup that is answered", lambda: (self.a.read(tokens), host.counter("remote.lookups") > 0)[1])
        self.assertEqual(self.a.share(tokens), len(tokens))
        self.assertIn(key, self.redis.bundles())
