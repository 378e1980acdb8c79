"""What fetch() and store() take beside computing, on a GPU: `tests/transformers/run BUILD_DIR speed`.
No test: figures depend on the machine. The model has the shapes of Llama 3 8B, its weights are
random. PREFIXD_TOKENS: of the prompts, by commas."""

from __future__ import annotations

import os
import statistics
import time
import unittest
from collections.abc import Callable

import prefixd
import torch
from models import prompt
from prefixd.transformers import Options, PrefixCache
from prefixd_process import Daemon
from support import TransformersTest
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

TOKENS = [int(one) for one in os.environ.get("PREFIXD_TOKENS", "4096,16384").split(",")]
ROUNDS = 5
LATE_MS = 60_000


@unittest.skipUnless(torch.cuda.is_available(), "torch sees no GPU")
class Speed(TransformersTest):
    @classmethod
    def start_daemon(cls) -> None:
        cls.daemon = Daemon(cls.folder / "daemon", ram="16GiB", ssd="off")

    def test_fetch_and_store_beside_computing(self) -> None:
        config = LlamaConfig(
            vocab_size=256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
            num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=32768,
        )  # fmt: skip
        torch.set_default_dtype(torch.bfloat16)
        with torch.device("cuda"):
            model = LlamaForCausalLM(config).eval()
        torch.set_default_dtype(torch.float32)
        row_bytes = 2 * 2 * 32 * 8 * 128
        print(f"\n{torch.cuda.get_device_name()}, K and V of a token are {row_bytes} bytes")
        for count in TOKENS:
            ids = prompt(count + 1, seed=count)
            cache = DynamicCache(config=config)

            def compute(ids: list[int] = ids) -> DynamicCache:
                made = DynamicCache(config=config)
                asked = torch.tensor([ids[:-1]], device="cuda")
                with torch.no_grad():
                    model(input_ids=asked, past_key_values=made, use_cache=True, logits_to_keep=1)
                return made

            computing, cache = timed(compute)
            for bits in (None, 8, 4):
                self.measure(model, ids, cache, bits, computing, row_bytes)

    def measure(
        self,
        model: LlamaForCausalLM,
        ids: list[int],
        cache: DynamicCache,
        bits: int | None,
        computing: float,
        row_bytes: int,
    ) -> None:
        count, stores = len(ids) - 1, []
        for at in range(3):
            with prefixd.connect(self.daemon.address) as client:
                options = Options(
                    bits=bits, salt=f"{bits} {count} {at}", deadline_ms=LATE_MS,
                    load_deadline_ms=LATE_MS, store_deadline_ms=LATE_MS,
                )  # fmt: skip
                shared = PrefixCache(client, model, weights=b"1" * 32, options=options)
                began = time.monotonic()
                self.assertEqual(shared.store(ids[:-1], cache), count)
                stores.append(time.monotonic() - began)
                if at == 2:
                    fetching, got = timed(lambda shared=shared: shared.fetch(ids))
                    self.assertEqual(got.get_seq_length(), count)
                    if bits is None:
                        for mine, first in zip(got.layers, cache.layers, strict=True):
                            self.assertTrue(torch.equal(mine.keys, first.keys))
        said = ", ".join(
            f"{what} {1000 * took:.1f} ms ({count / took:,.0f} tokens/s, "
            f"{count * row_bytes / took / 1e9:.2f} GB/s)"
            for what, took in (("fetch", fetching), ("store", min(stores[1:])))
        )
        print(
            f"{count} tokens, {bits or 'raw'}: computing {1000 * computing:.1f} ms, {said}: "
            f"computing takes {computing / fetching:.1f} x of fetch",
            flush=True,
        )


def timed(call: Callable[[], DynamicCache]) -> tuple[float, DynamicCache]:
    """The median time of a call and what the device does for it; the first one does not count."""
    times = []
    for _ in range(ROUNDS + 1):
        torch.cuda.synchronize()
        began = time.monotonic()
        found = call()
        torch.cuda.synchronize()
        times.append(time.monotonic() - began)
    return statistics.median(times[1:]), found


if __name__ == "__main__":
    unittest.main()
