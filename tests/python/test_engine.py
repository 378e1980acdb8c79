"""prefixd.engine: what the adapters of all engines share."""

import os
import threading
import unittest

from prefixd.engine.cpus import unbound_threads
from prefixd.engine.saver import Saver


class SaverTest(unittest.TestCase):
    def setUp(self):
        self.goes_on = threading.Event()
        self.addCleanup(self.goes_on.set)

    def test_saves_that_wait_for_a_daemon_hold_no_more_bytes_than_they_may(self):
        saver, saved = Saver(most_bytes=100), []
        self.assertTrue(saver.submit(self.goes_on.wait, 60))
        self.assertTrue(saver.submit(lambda: saved.append(40), 40))
        self.assertFalse(saver.submit(lambda: saved.append(1), 1))
        self.goes_on.set()
        self.assertTrue(saver.settle(10))
        self.assertTrue(saver.submit(lambda: saved.append(300), 300), "one alone may hold more")
        self.assertTrue(saver.settle(10))
        self.assertEqual(saved, [40, 300])
        self.goes_on.clear()
        self.assertTrue(saver.submit(self.goes_on.wait, 60))
        self.assertTrue(saver.submit(lambda: None, 40), "what is saved holds nothing any more")

    def test_no_more_saves_wait_than_may(self):
        saver = Saver()
        submitted = [saver.submit(self.goes_on.wait) for _ in range(100)]
        self.assertIn(submitted.count(True), (16, 17))  # one may be under way
        self.goes_on.set()
        self.assertTrue(saver.settle(10))
        self.assertTrue(saver.submit(self.goes_on.wait))


class CpusTest(unittest.TestCase):
    def test_threads_of_an_adapter_are_not_bound_to_the_core_that_computes(self):
        anywhere = os.sched_getaffinity(os.getppid())
        if len(anywhere) < 2:
            self.skipTest("one CPU alone")
        before = os.sched_getaffinity(0)
        self.addCleanup(os.sched_setaffinity, 0, before)
        bound = {min(anywhere)}
        os.sched_setaffinity(0, bound)
        seen = []
        look = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))
        with unbound_threads():
            look.start()
        look.join()
        self.assertEqual(seen, [anywhere])
        self.assertEqual(os.sched_getaffinity(0), bound)


if __name__ == "__main__":
    unittest.main()
