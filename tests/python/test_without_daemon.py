"""Without a daemon or a library, or when the daemon dies: fewer tokens, never an exception."""

import os
import random
import re
import shutil
import signal
import socket
import statistics
import threading
import time
from unittest import mock

import prefixd
from support import PATIENCE_MS, DaemonTest, Engine, Tried, run_script, same

CYCLES = int(os.environ.get("PREFIXD_PYTHON_CYCLES", "1000"))


def _notes(daemon) -> list[tuple[str, str]]:
    """Models that attached workers do not share, and why."""
    sessions = daemon.ctl("sessions")["sessions"]
    notes = [note for session in sessions if session["attached"] for note in session["not_shared"]]
    return [(note["model"], note["reason"]) for note in notes]


class AbsentDaemonTest(DaemonTest):
    def test_nothing_is_restored_and_nothing_is_raised(self):
        client = self.connect(connect_deadline_ms=50)
        engine = Engine()
        space = engine.open(client)
        self.assertFalse(client.attached)
        self.assertIn("no daemon", client.error)
        with space.acquire(engine.tokens(100), max_cached_tokens=99, deadline_ms=50) as lease:
            self.assertEqual((lease.restorable_tokens, lease.wait(0), lease.wait_all()), (0, 0, 0))
            self.assertIn("no daemon", lease.error)
            self.assertEqual((lease.match_kind, lease.blocks(0)), ("none", []))
            self.assertIsNone(lease.gather(0, 5))
            self.assertIn("tokens 0 to 5 of layer 0, the lease has 0", lease.error)
            self.assertEqual(lease.gather(0, 0)[0][0].shape[2], 0)
        with space.reserve(engine.tokens(100), deadline_ms=50) as plan:
            self.assertEqual(plan.missing, ())
            self.assertIn("no daemon", plan.error)
            key, value = engine.cache(100)[0]
            self.assertFalse(plan.write_packed(0, key=key, value=value))
            self.assertIn("no daemon", plan.commit(100, sequence_end=True).error)
        self.assertIn("no daemon", space.match(engine.tokens(5), deadline_ms=50).error)
        self.assertIn("no daemon", client.stats.error)

    def test_an_address_that_is_none_is_refused_with_what_may_have_been_meant(self):
        for address, meant in (
            ("x.sock", "unix:x.sock"),
            ("http://x", "unix:///run/prefixd/prefixd.sock or 127.0.0.1:7777"),
            ("", "unix:///run/prefixd/prefixd.sock"),
        ):
            with self.assertRaisesRegex(prefixd.Error, f"did you mean {re.escape(meant)}"):
                prefixd.connect(address)

    def test_objects_say_in_their_reprs_what_they_are(self):
        client = self.connect(connect_deadline_ms=50)
        self.assertRegex(repr(client), r"<prefixd.Client of unix:.*, client: .*unix:.*>")
        space = Engine().open(client)
        layers = len(space.layers)
        self.assertEqual(repr(space), f"<prefixd.Space not open yet, {layers} layers>")
        lease = space.acquire([1, 2, 3], deadline_ms=50)
        self.assertRegex(repr(lease), r"<prefixd.Lease of 0 tokens, none, client: .*>")
        lease.release()
        self.assertEqual(repr(lease), "<prefixd.Lease released>")
        plan = space.reserve([1, 2, 3], deadline_ms=50)
        self.assertRegex(repr(plan), r"<prefixd.Plan of 3 tokens, missing nothing, .*>")

    def test_no_time_to_connect_is_none_rather_than_the_default(self):
        silent = socket.socket(socket.AF_UNIX)
        self.addCleanup(silent.close)
        silent.bind(str(self.daemon.socket))
        silent.listen()  # and nobody answers
        took = []
        for _ in range(3):
            client, begin = self.connect(connect_deadline_ms=0), time.monotonic()
            Engine().open(client)
            took.append(time.monotonic() - begin)
        self.assertLess(min(took), 1.5)  # the default is 2 s

    def test_it_attaches_once_the_daemon_is_there(self):
        """And the daemon is started while a thread waits for it: the GIL is released."""
        client = self.connect(connect_deadline_ms=50)
        engine = Engine()
        space = engine.open(client)
        came = []
        waiting = threading.Thread(target=lambda: came.append(client.wait_attached(PATIENCE_MS)))
        waiting.start()
        self.daemon.start()
        waiting.join()
        self.assertEqual(came, [True])
        self.assertEqual(engine.store(space, 100), 100)
        self.assertEqual(space.match(engine.tokens(100)).restorable_tokens, 100)

    def test_models_that_are_not_shared_are_told_now_and_to_each_daemon_that_comes(self):
        client = self.connect(connect_deadline_ms=50)
        client.not_shared("gemma", "its window\0 rotates \udcff")
        client.not_shared("mamba", "unknown states")
        layers = [prefixd.FullLayer(1, 64, 64, [prefixd.mlx_affine(8, 48)])]
        with self.assertRaises(prefixd.Error) as refused:
            client.open_space(model="odd", layers=layers)
        notes = [("gemma", "its window? rotates ?"), ("odd", str(refused.exception))]
        for life in range(2):
            self.daemon.start()
            self.assertTrue(client.wait_attached(PATIENCE_MS))
            client.not_shared("mamba", "")
            until = time.monotonic() + PATIENCE_MS / 1000
            while _notes(self.daemon) != notes and time.monotonic() < until:
                pass
            self.assertEqual(_notes(self.daemon), notes)
            self.assertEqual(self.daemon.ctl("status")["counters"]["spaces.refused"], 2)
            self.daemon.kill()
        client.close()
        client.not_shared("gemma", "closed")
        for model in ("", "a\0b"):
            with self.assertRaises(prefixd.Error):
                self.connect().not_shared(model, "why")

    def test_the_default_address_may_have_nobody(self):
        self.assertIsInstance(prefixd.connect(), prefixd.Client)


class TokenTest(DaemonTest):
    """T5: over TCP a client is served by its copy of the daemon's token."""

    def test_the_file_is_named_by_argument_or_variable(self):
        self.daemon.options += ["--listen", "127.0.0.1:0"]
        self.daemon.start()
        port = re.search(r"127\.0\.0\.1:0 port (\d+)", "".join(self.daemon.said)).group(1)
        address, token = f"127.0.0.1:{port}", self.daemon.socket.with_suffix(".token")
        with prefixd.connect(address) as bare:
            Engine().open(bare)  # waits for the first try
            self.assertFalse(bare.attached)
            self.assertIn("no token came with the call", bare.error)
        with prefixd.connect(address, token_file=token) as client:
            self.assertTrue(client.wait_attached(PATIENCE_MS), client.error)
        with mock.patch.dict(os.environ, PREFIXD_TOKEN_FILE=str(token)):
            with prefixd.connect(address) as client:
                self.assertTrue(client.wait_attached(PATIENCE_MS), client.error)


class AbsentLibraryTest(DaemonTest):
    def test_a_library_that_is_not_there_is_a_client_without_cache(self):
        client = prefixd.connect(self.daemon.address, library=self.folder / "libnone.so")
        self.assertIn("libnone.so", client.error)
        engine = Engine()
        space = engine.open(client)
        self.assertIn("libnone.so", space.error)
        with space.acquire(engine.tokens(100), max_cached_tokens=99) as lease:
            self.assertEqual((lease.restorable_tokens, lease.wait_all()), (0, 0))
            self.assertIn("libnone.so", lease.error)
            self.assertIsNone(lease.gather(0, 5))
            self.assertIsNotNone(lease.gather(0))
            lease.release(used_tokens=0)
        with space.reserve(engine.tokens(100)) as plan:
            self.assertEqual(plan.missing, ())
            key, value = engine.cache(100)[0]
            self.assertFalse(plan.write_packed(0, key=key, value=value))
            self.assertIn("libnone.so", plan.commit(100).error)
        self.assertEqual(space.match(engine.tokens(100)).restorable_tokens, 0)
        self.assertEqual(space.prefetch(engine.tokens(100)), 0)
        self.assertIsNone(client.not_shared("gemma", "no library"))
        self.assertEqual((space.id, space.block_tokens, client.stats.attached), ("", 0, False))

    def test_a_library_that_comes_later_is_found(self):
        path = self.folder / "libprefixd.so.1"
        self.assertIn("libprefixd.so.1", prefixd.connect(self.daemon.address, library=path).error)
        shutil.copy(os.environ["PREFIXD_LIBRARY"], path)
        self.daemon.start()
        client = prefixd.connect(self.daemon.address, library=path)
        self.assertTrue(client.wait_attached(PATIENCE_MS), client.error)

    def test_a_file_that_is_no_library_or_another_one_is_told(self):
        (self.folder / "text.so").write_text("no library")
        self.assertIn("text.so", prefixd.connect(library=self.folder / "text.so").error)
        self.assertIn("prefixd_", prefixd.connect(library="libc.so.6").error)

    def test_digests_without_a_library_are_zeros(self):
        script = "import prefixd; print(prefixd.digest_file('/nonexistent') == bytes(32))"
        before = os.environ["PREFIXD_LIBRARY"]
        try:
            os.environ["PREFIXD_LIBRARY"] = "/nonexistent/libprefixd.so"
            self.assertEqual(run_script(script).stdout, "True\n")
        finally:
            os.environ["PREFIXD_LIBRARY"] = before


class DyingDaemonTest(DaemonTest):
    def setUp(self):
        super().setUp()
        self.daemon.start()
        self.client = self.attached()
        self.engine = Engine()
        self.space = self.engine.open(self.client)

    def test_a_lease_outlives_the_daemon(self):
        self.engine.store(self.space, 150)
        with self.space.acquire(self.engine.tokens(150)) as lease:
            self.assertEqual(lease.wait_all(), 150)
            self.daemon.kill()
            self.assertTrue(same(self.engine.read(lease, 150), self.engine.cache(150)))
            self.assertEqual(lease.restorable_tokens, 150)
            (block, *_) = lease.blocks(0)
            self.assertEqual(
                block.key[0].tobytes(), self.engine.cache(150)[0][0][0][:, :, :64].tobytes()
            )
        with self.space.acquire(self.engine.tokens(150), deadline_ms=50) as lease:
            self.assertEqual(lease.wait_all(), 0)
            self.assertNotEqual(lease.error, "")

    def test_a_plan_whose_daemon_died_says_so_and_nothing_else(self):
        with self.space.reserve(self.engine.tokens(150)) as plan:
            self.assertEqual(plan.missing, ((0, 150),))
            cache = self.engine.cache(150)
            plan.write_packed(0, key=cache[0][0], value=cache[0][1])
            self.daemon.kill()
            self.assertTrue(plan.write_packed(1, key=cache[1][0], value=cache[1][1]))
            info = plan.commit(150, sequence_end=True, deadline_ms=100)
            self.assertEqual(info[:2], (0, 0))
            self.assertNotEqual(info.error, "")

    def test_a_plan_whose_daemon_hangs_stops_at_the_first_commit(self):
        with self.space.reserve(self.engine.tokens(150)) as plan:
            self.assertEqual(plan.missing, ((0, 150),))
            cache = self.engine.cache(150)
            for layer, (key, value) in enumerate(cache):
                self.assertTrue(plan.write_packed(layer, key=key, value=value))
            self.daemon.process.send_signal(signal.SIGSTOP)
            os.waitpid(self.daemon.process.pid, os.WUNTRACED)  # until it stands still
            info = plan.commit(128, deadline_ms=50)
            self.assertEqual(info[:2], (0, 0))
            self.assertEqual((plan.error, plan.error != ""), (info.error, True))
            self.assertFalse(plan.write_packed(0, key=cache[0][0], value=cache[0][1]))

    def test_a_closed_space_has_nothing_and_raises_nothing(self):
        self.engine.store(self.space, 100)
        self.space.close()
        lease, plan = self.space.acquire([1, 2]), self.space.reserve([1, 2])
        self.assertEqual((lease.wait_all(), plan.missing), (0, ()))
        self.assertEqual((lease.error, plan.error), ("space: closed", "space: closed"))

    def test_a_new_daemon_on_the_same_memory_still_has_everything(self):
        self.engine.store(self.space, 150)
        self.daemon.kill()
        self.daemon.start()
        found = 0
        while not found:  # the client attaches again by itself
            self.assertTrue(self.client.wait_attached(PATIENCE_MS), self.client.error)
            with self.space.acquire(self.engine.tokens(150), deadline_ms=PATIENCE_MS) as lease:
                found = lease.wait_all()
                self.assertTrue(
                    found == 0 or same(self.engine.read(lease, 150), self.engine.cache(150))
                )
        self.assertEqual(found, 150)

    def test_a_restarted_daemon_is_found_soon(self):
        """gRPC by itself would notice its own new connection every 5 s."""
        took = []
        for _ in range(5):
            self.daemon.kill()
            self.assertEqual(self.space.acquire([1, 2], deadline_ms=50).wait_all(), 0)
            self.daemon.start()
            begin = time.monotonic()
            self.assertTrue(self.client.wait_attached(PATIENCE_MS), self.client.error)
            took.append(time.monotonic() - begin)
        self.assertLess(statistics.median(took), 4, took)


class KilledAtRandomTest(DaemonTest):
    def test_cycles_with_the_daemon_killed_give_right_bytes_or_fewer(self):
        """G4. PREFIXD_PYTHON_CYCLES sets how many."""
        chance = random.Random(20261121)
        engines = [Engine(seed=seed) for seed in range(1, 7)]
        caches = {engine.seed: engine.cache(220) for engine in engines}
        self.daemon.start()
        client = self.attached(connect_deadline_ms=2_000)
        space = engines[0].open(client)
        now = threading.Event()  # never set: waiting on it is a pause of random length
        hits = kills = tokens = 0
        for cycle in range(CYCLES):
            engine, count = chance.choice(engines), chance.randrange(1, 221)
            killer = None
            if chance.random() < 0.25:
                pause = chance.random() * 0.004

                def kill_and_restart():
                    now.wait(pause)
                    self.daemon.kill()
                    self.daemon.start()

                killer = Tried(kill_and_restart)
                kills += 1
            with space.acquire(engine.tokens(count), deadline_ms=100) as lease:
                found = lease.wait_all()
                self.assertLessEqual(found, count, f"cycle {cycle}")
                for layer, want in enumerate(caches[engine.seed]):
                    got = lease.gather(layer, found)
                    cut = tuple(tuple(a[:, :, :found] for a in arrays) for arrays in want)
                    self.assertTrue(same([got], [cut]), f"cycle {cycle}: {found} tokens")
            hits += found > 0
            tokens += found
            if found < count:
                engine.store(space, count)
            if killer is not None:
                killer.join()
                if chance.random() < 0.8:  # else the next cycle finds nobody yet
                    self.assertTrue(client.wait_attached(PATIENCE_MS), client.error)
        print(f"{CYCLES} cycles, {kills} kills, {hits} hits, {tokens} tokens", flush=True)
        self.assertGreater(kills, CYCLES // 10)
        self.assertGreater(hits, CYCLES // 4)
