"""A process that attends on a prefix in place. Usage: in_place.py ADDRESS MODEL PROMPT_FILE ARENA
Prints, as JSON: once its model is loaded {"private": bytes}, after its answer {"cached": tokens,
"private": bytes, "answer": tokens}; then, for each line that it reads, {"arena": [rss, pss]}."""

import json
import sys
from pathlib import Path

import models
import prefixd
import torch
from prefixd.transformers import Options, PrefixCache
from transformers.utils.logging import disable_progress_bar

_FIELDS = ("Rss", "Pss", "Private_Clean", "Private_Dirty")


def mapped(of: str = "") -> dict[str, int]:
    """Bytes of this process's mappings, or of those of a file."""
    total, counts = dict.fromkeys(_FIELDS, 0), True
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *rest = line.split()
        if "-" in name and not name.endswith(":"):
            counts = of in line
        elif counts and name[:-1] in total:
            total[name[:-1]] += 1024 * int(rest[0])
    return total


def private() -> int:
    seen = mapped()
    return seen["Private_Clean"] + seen["Private_Dirty"]


def main() -> None:
    torch.set_num_threads(1)
    disable_progress_bar()
    address, model_path, prompt_file, arena = sys.argv[1:]
    ids = json.loads(Path(prompt_file).read_text())
    model = models.load(Path(model_path), torch.bfloat16, attn_implementation="prefixd")
    shared = PrefixCache(
        prefixd.connect(address, staging_bytes=0), model, options=Options(deadline_ms=30_000)
    )
    models.generate(model, ids[:8], 2, shared.fetch(ids[:8]))  # what a first call allocates
    print(json.dumps({"private": private()}), flush=True)
    cache = shared.fetch(ids)
    cached = cache.get_seq_length()
    out = models.generate(model, ids, 2, cache)
    answer = out.sequences[0, -2:].tolist()
    print(json.dumps({"cached": cached, "private": private(), "answer": answer}), flush=True)
    for _ in sys.stdin:
        seen = mapped(arena)
        print(json.dumps({"arena": [seen["Rss"], seen["Pss"]]}), flush=True)


if __name__ == "__main__":
    main()
