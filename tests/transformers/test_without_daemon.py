"""V2 for transformers: an absent, hung or killed prefixd costs cached tokens, never an answer, and
no more time than the deadlines."""

import signal
import time
import unittest

import models
import prefixd
from models import answer, prompt
from prefixd.transformers import Options, PrefixCache
from support import TransformersTest

SLACK_S = 10.0  # of a busy machine, beside a deadline
MS = {"deadline_ms": 200, "load_deadline_ms": 400, "store_deadline_ms": 400}


class WithoutDaemon(TransformersTest):
    def setUp(self) -> None:
        self.model = self.load("llama")
        self.addCleanup(self.come_back)

    def come_back(self) -> None:
        self.daemon.send(signal.SIGCONT)
        self.daemon.stop()
        self.daemon.lose_arena()
        type(self).start_daemon()

    def test_absent(self):
        client = prefixd.connect(f"unix://{self.folder}/nobody.sock", connect_deadline_ms=100)
        self.addCleanup(client.close)
        ids = prompt(100, seed=41)
        with self.assertLogs("prefixd.transformers", "WARNING") as log:
            shared = PrefixCache(client, self.model, options=Options(**MS))
            for _ in range(3):
                self.assertEqual(self.ask(shared, ids, 6), (answer(self.model, ids, 6), 0, 0))
        self.assertEqual(len(log.output), 1, log.output)
        self.assertIn("computed without prefixd: client: no daemon at", log.output[0])

    def test_it_comes_later(self):
        self.daemon.stop()
        client = prefixd.connect(self.daemon.address, connect_deadline_ms=100)
        self.addCleanup(client.close)
        shared = PrefixCache(client, self.model, options=Options(deadline_ms=30_000))
        ids = prompt(100, seed=42)
        self.assertEqual(self.ask(shared, ids, 6)[1:], (0, 0))
        type(self).start_daemon()
        client.wait_attached(30_000)
        self.ask(shared, ids, 6)
        self.assertEqual(shared.fetch(ids).get_seq_length(), 99)

    def test_hung_before_the_lookup(self):
        ids = prompt(300, seed=43)
        shared = self.shared(self.model, **MS)
        self.ask(shared, ids, 6)
        want = answer(self.model, ids, 6)
        self.daemon.hang()
        for _ in range(2):
            begin = time.monotonic()
            cache = shared.fetch(ids)
            self.assertLess(time.monotonic() - begin, 0.2 + 0.4 + SLACK_S)
            self.assertEqual(cache.get_seq_length(), 0)
            out = models.generate(self.model, ids, 6, cache)
            self.assertEqual(out.sequences[0].tolist(), want)
            begin = time.monotonic()
            self.assertEqual(shared.store(want, out.past_key_values), 0)
            self.assertLess(time.monotonic() - begin, 0.2 + 0.4 + SLACK_S)

    def test_hung_or_killed_between_fetch_and_store(self):
        for how in (signal.SIGSTOP, signal.SIGKILL):
            with self.subTest(how=how):
                ids = prompt(300, seed=44 + how)
                shared = self.shared(self.model, **MS)
                self.ask(shared, ids, 6)
                turn = ids + prompt(50, seed=45)
                want = answer(self.model, turn, 6)
                cache = shared.fetch(turn)
                self.assertEqual(cache.get_seq_length(), 300)
                if how == signal.SIGSTOP:
                    self.daemon.hang()
                else:
                    self.daemon.stop(how)
                out = models.generate(self.model, turn, 6, cache)
                self.assertEqual(out.sequences[0].tolist(), want)
                begin = time.monotonic()
                self.assertEqual(shared.store(want, out.past_key_values), 0)
                self.assertLess(time.monotonic() - begin, 0.2 + 0.4 + SLACK_S)
                self.come_back()

    def test_a_batch_waits_once_for_a_daemon_that_hangs(self):
        from test_batches import batch_of

        ids, mask = batch_of([prompt(60, seed=46 + at) for at in range(64)])
        shared = self.shared(self.model, **MS)
        self.daemon.hang()
        begin = time.monotonic()
        self.assertEqual(shared.fetch_batch(ids, mask).get_seq_length(), 0)
        self.assertLess(time.monotonic() - begin, 0.2 + 0.4 + SLACK_S / 2)

    def test_a_lost_library_is_no_error(self):
        client = prefixd.connect(self.daemon.address, library=str(self.folder / "none.so"))
        shared = PrefixCache(client, self.model)
        ids = prompt(50, seed=47)
        self.assertEqual(self.ask(shared, ids, 6), (answer(self.model, ids, 6), 0, 0))
        self.assertIn("none.so", shared.why_not)


class WriteBehind(TransformersTest):
    def test_what_is_stored_is_what_was_handed_in_whatever_becomes_of_the_cache(self):
        for name in models.NAMES:
            with self.subTest(model=name):
                model, ids = self.load(name), prompt(300, seed=48)
                shared = self.shared(model, write_behind=True)
                cache = shared.fetch(ids)
                whole = models.generate(model, ids, 8, cache).sequences[0].tolist()
                self.daemon.hang()  # the thread waits for it
                try:
                    self.assertEqual(shared.store(whole, cache), 0)
                    longer = models.generate(model, whole, 8, cache).sequences[0].tolist()
                finally:
                    self.daemon.send(signal.SIGCONT)
                self.assertEqual(longer, answer(model, whole, 8))
                self.assertTrue(shared.settle(30))
                self.assertEqual(shared.stored_tokens, 307)
                turn = whole + prompt(9, seed=49)
                again = self.ask(self.shared(model), turn, 8)
                self.assertEqual(again[:2], (answer(model, turn, 8), 307))

    def test_store_does_not_wait_for_a_daemon_that_hangs(self):
        model, ids = self.load("llama"), prompt(300, seed=50)
        shared = self.shared(model, write_behind=True)
        out = models.generate(model, ids, 8, shared.fetch(ids))
        self.daemon.hang()
        try:
            begin = time.monotonic()
            shared.store(out.sequences[0].tolist(), out.past_key_values)
            self.assertLess(time.monotonic() - begin, 10)  # its own deadlines are 30 s
            self.assertFalse(shared.settle(0.05))
        finally:
            self.daemon.send(signal.SIGCONT)
        self.assertTrue(shared.settle(30))
        self.assertEqual(shared.stored_tokens, 307)


if __name__ == "__main__":
    unittest.main()
