"""A process that takes prefixes from prefixd to its GPU until its input ends. Usage: gpu_worker.py
ADDRESS MODEL PROMPTS_FILE, which holds [ids, digest of their rows] of each. Prints, as JSON:
"ready", and for each line that it reads what it saw since the last: {"hits": , "misses": ,
"wrong": , "hit_at": time of the first hit, "pinned": bytes}."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import models
import prefixd
import prefixd.torch
import torch
from prefixd.transformers import PrefixCache
from transformers.utils.logging import disable_progress_bar


def digest_of(cache: Any, count: int) -> str:
    sides = [side for layer in cache.layers for side in (layer.keys, layer.values)]
    rows = torch.cat([side[0, :, :count].reshape(-1) for side in sides])
    return hashlib.sha256(rows.cpu().numpy().tobytes()).hexdigest()


class Asked(threading.Thread):
    """Counts the lines of the input."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.lines, self.ended = 0, False
        self.start()

    def run(self) -> None:
        for _ in sys.stdin:
            self.lines += 1
        self.ended = True


def nothing_seen() -> dict[str, Any]:
    return {"hits": 0, "misses": 0, "wrong": 0, "hit_at": 0.0, "pinned": 0}


def main() -> None:
    disable_progress_bar()
    address, model_path, prompts_file = sys.argv[1:]
    prompts = json.loads(Path(prompts_file).read_text())
    model = models.load(Path(model_path)).cuda()
    shared = PrefixCache(prefixd.connect(address), model)
    gpu = prefixd.torch.gpu()
    asked, answered, seen = Asked(), 0, nothing_seen()
    print(json.dumps("ready"), flush=True)
    while not asked.ended:
        for ids, digest in prompts:
            cache = shared.fetch(ids)
            count = cache.get_seq_length()
            if count < len(ids) - 1:
                seen["misses"] += 1
                continue
            seen["hit_at"] = seen["hit_at"] or time.monotonic()
            seen["hits"] += 1
            seen["wrong"] += digest_of(cache, count) != digest
        if asked.lines > answered:
            answered += 1
            seen["pinned"] = sum(one.progress()[0] for one in gpu._pinned.values())
            print(json.dumps(seen), flush=True)
            seen = nothing_seen()


if __name__ == "__main__":
    main()
