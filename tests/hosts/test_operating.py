"""What people see and do: prefixctl, passwords, servers that come later, TLS."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import unittest
from pathlib import Path

from hosts import BLOCK, HostsTest, Model, tokens_of
from prefixd_process import DEADLINE_S, wait_for
from servers import Server, free_port, has_tls

DEPLOY = Path(__file__).resolve().parents[2] / "deploy" / "redis.conf"


class StatusTest(HostsTest):
    def test_status_tells_of_a_cluster_and_what_passed(self):
        cluster = self.cluster()
        a, b = (self.worker(self.host(name, cluster)) for name in "ab")
        tokens = tokens_of(1, 4 * BLOCK)
        a.share(tokens)
        b.find(tokens)
        self.assertRegex(a.host.text("status"), r"remote  redis cluster, 3 of 3 servers, sealed; 0 B read, 204\.0 KiB written, 0 bad")
        status = b.host.text("status")
        self.assertRegex(status, r"remote  redis cluster, 3 of 3 servers, sealed; 204\.0 KiB read, 0 B written, 0 bad")
        self.assertRegex(status, r"found 256 tokens in \d+ of \d+ lookups, p99 [\d.,]+ m?s; gone 0, late \d+, not worth it 0")
        cluster.owners()[0].stop()
        down = wait_for("a server to be given up", lambda: (b.read(tokens_of(2, 400)), b.host.open_servers())[1] or None)
        self.assertRegex(b.host.text("status"), rf"remote  OPEN: {re.escape(down[0])} .+ ago, next try in .+; served without it")

    def test_status_tells_that_nothing_is_sealed(self):
        host = self.host("a", self.server(), key=None)
        self.assertIn("NOT SEALED", host.text("status"))
        self.assertFalse(host.control("status")["remote"]["sealed"])

    def test_status_says_nothing_of_servers_where_there_are_none(self):
        self.assertNotIn("remote", self.host("a", None).text("status"))

    def test_why_says_how_long_other_hosts_were_asked(self):
        server = self.server()
        a = self.worker(self.host("a", server))
        server.hang()
        self.addCleanup(server.go_on)
        wait_for("a lookup that is late", lambda: (a.read(tokens_of(3, BLOCK), request_id="chat-3"), a.host.counter("remote.down") > 0)[1])
        self.assertRegex(a.host.text("why", "chat-3", "--last", "1"), r"chat-3 .*, asked other hosts for [\d.]+ ms")

    def test_flush_says_what_was_not_offered_to_other_hosts(self):
        tries = iter(range(10))

        def said() -> bool:
            name = f"try-{next(tries)}"
            server = self.server(name=f"redis-{name}")
            a = self.worker(self.host(name, server))
            server.hang()
            a.store(tokens_of(4, 2 * BLOCK))
            text = a.host.text("--timeout", "2s", "flush", may_say=(0, 1, 3))  # 3: too slow to answer in time
            return "not all of it was offered to other hosts before the time was up" in text

        wait_for("flush to say so", said)

    def test_a_key_is_asked_for_unless_insecure_is_said(self):
        with self.assertRaisesRegex(AssertionError, "--remote-key-file .*or say --remote-insecure"):
            self.host("a", None, "--remote=redis://127.0.0.1:1")

    def test_a_key_that_others_may_read_is_refused(self):
        self.key.chmod(0o644)
        with self.assertRaisesRegex(AssertionError, re.escape(str(self.key))):
            self.host("a", "redis://127.0.0.1:1")


class ClearTest(HostsTest):
    def test_after_a_clear_no_host_finds_what_was_there(self):
        server = self.server()
        a, b = (self.worker(self.host(name, server)) for name in "ab")
        tokens, more = tokens_of(1, 4 * BLOCK), tokens_of(2, 4 * BLOCK)
        for each in (tokens, more):
            a.share(each)
        reply = a.host.control("clear", "--all", "--yes")
        self.assertFalse(reply["remote_waits"])
        fresh = self.worker(self.host("c", server))
        self.assertEqual(fresh.read(tokens), 0)
        self.assertEqual(a.read(tokens), 0)
        # What is stored after it is found.
        a.share(tokens)
        self.assertEqual(fresh.find(tokens), len(tokens))
        self.assertEqual(fresh.read(more), 0)
        # B may have read the generation before; it hears of it within half a minute.
        self.assertIn(b.read(more), (0, len(more)))
        self.assertEqual(b.host.bad(), {})

    def test_a_clear_of_one_space_leaves_the_others(self):
        server = self.server()
        host = self.host("a", server)
        one, two = self.worker(host), self.worker(host, Model(weights=9))
        tokens = tokens_of(3, 3 * BLOCK)
        one.share(tokens)
        two.share(tokens)
        host.control("clear", "--space", one.space.id, "--yes")
        other = self.host("b", server)
        self.assertEqual(self.worker(other, Model(weights=9)).find(tokens), len(tokens))
        self.assertEqual(self.worker(other).read(tokens), 0)

    def test_a_clear_that_the_servers_do_not_hear_is_told_and_tried_again(self):
        server = self.server()
        a = self.worker(self.host("a", server))
        tokens = tokens_of(4, 4 * BLOCK)
        a.share(tokens)
        server.hang()
        said = a.host.text("clear", "--all", "--yes", may_say=(0, 1))
        self.assertIn("the store that hosts share has not heard of this yet, it is tried again", said)
        self.assertEqual(a.read(tokens), 0)
        server.go_on()
        wait_for("the host to use the server", a.host.knows_the_servers)
        with server.connect() as redis:
            # Each try that the hung server had in its socket counts.
            wait_for("the clear to be heard", lambda: any(int(redis("GET", key)) >= 1 for key in redis.keys("pd1:*:g")))
        self.assertEqual(self.worker(self.host("b", server)).read(tokens), 0)


    def test_a_clear_that_no_server_heard_is_owed_by_the_prefixd_that_starts_next(self):
        server = self.server()
        a, b = (self.worker(self.host(name, server)) for name in "ab")
        tokens = tokens_of(5, 4 * BLOCK)
        a.share(tokens)
        self.assertEqual(b.find(tokens), len(tokens))
        with server.connect() as redis:
            redis("SAVE")  # it has all again when it starts
        server.stop()
        said = a.host.text("clear", "--all", "--yes", may_say=(0, 1))
        self.assertIn("has not heard of this yet", said)
        a.close()
        a.host.again(signal.SIGKILL)
        server.start()
        with server.connect() as redis:
            self.assertTrue(redis.bundles(), "it has what it had")
            wait_for("the clear to be heard", lambda: any(redis("GET", key) == b"1" for key in redis.keys("pd1:*:g")))
        after = self.worker(a.host)
        self.assertEqual(after.read(tokens), 0)
        self.assertEqual(self.worker(self.host("c", server)).read(tokens), 0)
        self.assertFalse(a.host.arena.with_name(a.host.arena.name + ".clears").exists(), "it is owed once")


class StartTest(HostsTest):
    def serves_alone(self, worker) -> None:
        tokens = tokens_of(1, 2 * BLOCK)
        self.assertEqual(worker.read(tokens), 0)
        worker.store(tokens)
        self.assertEqual(worker.read(tokens), len(tokens))

    def test_a_server_that_comes_later_is_used_when_it_comes(self):
        port = free_port()
        a = self.worker(self.host("a", f"redis://127.0.0.1:{port}", known=False))
        self.serves_alone(a)
        self.assertIn("no server has answered yet", a.host.text("status"))
        self.assertRegex(a.host.log(), r"warning.* remote: .*127\.0\.0\.1")
        server = self.server(port=port)
        wait_for("the host to know it", a.host.knows_the_servers)
        tokens = tokens_of(2, 3 * BLOCK)
        a.share(tokens)
        self.assertEqual(self.worker(self.host("b", server)).find(tokens), len(tokens))

    def test_a_server_that_starts_anew_is_used_again(self):
        server: Server = self.server()
        a, b = (self.worker(self.host(name, server)) for name in "ab")
        a.share(tokens_of(3, 2 * BLOCK))
        server.stop()
        for number in range(4, 24):
            self.assertEqual(a.read(tokens_of(number, BLOCK)), 0)
            a.store(tokens_of(number, BLOCK))
        server.start()
        for worker in (a, b):
            wait_for("the host to use it", worker.host.knows_the_servers)
        tokens = tokens_of(40, 3 * BLOCK)
        a.share(tokens)
        self.assertEqual(b.find(tokens), len(tokens))

    def test_seeds_that_are_not_there_do_not_matter(self):
        server = self.server()
        url = f"redis://127.0.0.1:{free_port()},127.0.0.1:{server.port}"
        a, b = (self.worker(self.host(name, url)) for name in "ab")
        tokens = tokens_of(5, 3 * BLOCK)
        a.share(tokens)
        self.assertEqual(b.find(tokens), len(tokens))

    def test_it_ends_at_once_while_a_server_hangs(self):
        server = self.server()
        a = self.worker(self.host("a", server))
        server.hang()
        self.addCleanup(server.go_on)
        for number in range(5):
            a.read(tokens_of(number, BLOCK))
            a.store(tokens_of(number, BLOCK))
        a.host.send(signal.SIGTERM)
        wait_for("prefixd to end", a.host.ended)


class AccessTest(HostsTest):
    def password(self, text: str, name: str = "password") -> str:
        path = self.folder / name
        path.write_text(text + "\n")
        path.chmod(0o600)
        return f"--remote-password-file={path}"

    def test_a_password_lets_in_and_a_wrong_one_is_told(self):
        server = self.server("--requirepass", "open sesame")
        a, b = (self.worker(self.host(name, server, self.password("open sesame"))) for name in "ab")
        tokens = tokens_of(1, 3 * BLOCK)
        a.share(tokens)
        self.assertEqual(b.find(tokens), len(tokens))
        for name, options in {"wrong": [self.password("open says me", "wrong-password")], "none": []}.items():
            with self.subTest(name):
                host = self.host(name, server, *options, known=False)
                worker = self.worker(host)
                self.assertEqual(worker.read(tokens), 0)
                worker.store(tokens)
                self.assertEqual(worker.read(tokens), len(tokens))
                why = wait_for("the status to say why", lambda: re.search("remote  (OPEN|WARNING): .*", host.text("status")))
                self.assertRegex(why.group(), r"127\.0\.0\.1:\d+: .*password")

    def test_the_user_of_deploy_redis_conf_may_do_what_prefixd_does_and_no_more(self):
        rule = re.search(r"^# user (prefixd on .*)$", DEPLOY.read_text(), re.M).group(1).replace("PASSWORD", "secret")
        server = self.server("--user", *rule.split())
        with server.connect() as redis:
            redis("ACL", "SETUSER", "default", "off")
        options = ("--remote-user=prefixd", self.password("secret"))
        a, b = (self.worker(self.host(name, server, *options)) for name in "ab")
        tokens = tokens_of(2, 4 * BLOCK)
        a.share(tokens)
        self.assertEqual(b.find(tokens), len(tokens))
        self.assertFalse(a.host.control("clear", "--all", "--yes")["remote_waits"])
        self.assertEqual(a.host.counter("remote.not_written.failed"), 0)
        wait_for("the settings to be checked", lambda: a.host.control("status")["remote"]["known"])
        self.assertNotIn("cannot be checked", a.host.text("status"))

    @unittest.skipIf(shutil.which("openssl") is None, "there is no openssl")
    @unittest.skipUnless(has_tls(), "the server has no TLS")
    def test_tls_with_the_right_authority_and_not_with_another(self):
        certificates = {name: self.certificate(name) for name in ("ours", "theirs")}
        port = free_port()
        cert, key = certificates["ours"]
        options = ["--tls-port", port, "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert]
        self.server(*options, "--tls-auth-clients", "no")
        url = f"rediss://127.0.0.1:{port}"
        a, b = (self.worker(self.host(name, url, f"--remote-ca-file={cert}")) for name in "ab")
        tokens = tokens_of(3, 3 * BLOCK)
        a.share(tokens)
        self.assertEqual(b.find(tokens), len(tokens))
        self.assertIn(", tls, sealed", a.host.text("status"))
        host = self.host("c", url, f"--remote-ca-file={certificates['theirs'][0]}", known=False)
        worker = self.worker(host)
        self.assertEqual(worker.read(tokens), 0)
        why = wait_for("the status to say why", lambda: re.search("remote  (OPEN|WARNING): .*", host.text("status")))
        self.assertRegex(why.group(), "certificate")

    def certificate(self, name: str) -> tuple[Path, Path]:
        cert, key = self.folder / f"{name}.crt", self.folder / f"{name}.pem"
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        command += ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
        subprocess.run(command, check=True, capture_output=True, timeout=DEADLINE_S)
        return cert, key
