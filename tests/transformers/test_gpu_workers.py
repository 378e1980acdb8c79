"""Two processes with caches on one GPU, under a daemon that is killed. Skipped without a GPU."""

import json
import signal
import time
import unittest
from pathlib import Path

import prefixd.torch
import torch
from gpu_worker import digest_of
from models import prompt
from prefixd.transformers import PrefixCache
from prefixd_process import DEADLINE_S
from support import Child, TransformersTest
from transformers import DynamicCache

KILLS = 5
TOKENS = 2000
WORKER = Path(__file__).with_name("gpu_worker.py")


@unittest.skipUnless(
    torch.cuda.is_available() and not prefixd.torch.why_no_gpu(), "no GPU that the library uses"
)
class TwoWorkers(TransformersTest):
    device = "cuda"

    def stored(self):
        """Stores some prompts. Returns each with a digest of its rows."""
        model, prompts = self.load("llama"), []
        shared = PrefixCache(self.client(), model)
        for seed in range(8):
            ids = prompt(TOKENS + 1, seed=100 + seed)
            cache = DynamicCache(config=model.config)
            with torch.no_grad():
                model(input_ids=torch.tensor([ids[:-1]], device="cuda"), past_key_values=cache)
            self.assertEqual(shared.store(ids[:-1], cache), TOKENS)
            prompts.append([ids, digest_of(cache, TOKENS)])
        return prompts

    def test_C5_pages_are_right_and_found_again_after_prefixd_is_killed_under_two_workers(self):
        file = self.folder / "prompts"
        file.write_text(json.dumps(self.stored()))
        pair = [Child(WORKER, self.daemon.address, self.path("llama"), file) for _ in range(2)]
        for one in pair:
            self.addCleanup(one.end)
            self.assertEqual(one.hear(), "ready")
        pinned = 0
        for kill in range(KILLS):
            for one in pair:
                seen = one.ask()
                self.assertEqual(seen["wrong"], 0)
                pinned = max(pinned, seen["pinned"])
            self.daemon.stop(signal.SIGKILL)
            for one in pair:  # a round that began before or under the kill
                self.assertEqual(one.ask()["wrong"], 0)
                one.ask()  # nothing but what comes after the kill is in the next
            self.start_daemon()
            back, late = time.monotonic(), []
            for one in pair:
                seen = one.ask()
                while not seen["hits"]:
                    self.assertEqual(seen["wrong"], 0)
                    self.assertLess(time.monotonic() - back, DEADLINE_S)
                    seen = one.ask()
                self.assertEqual(seen["wrong"], 0)
                late.append(seen["hit_at"] - back)
                again = one.ask()
                self.assertEqual((again["misses"], again["wrong"]), (0, 0))
                self.assertGreater(again["pinned"], 0)
            print(f"kill {kill + 1}: next hits after {max(late):.3f} s", flush=True)
        self.assertGreater(pinned, 0)


if __name__ == "__main__":
    unittest.main()
