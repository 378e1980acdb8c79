#!/usr/bin/env python3
"""The closing table of scripts/demo-cluster: demo_cluster_table.py FOLDER; fails when a row is not what it must be."""
import pathlib
import sys

from demo_table import DIVERGES_AT, PROMPT, print_table, read

BLOCK = 64  # tokens; whole blocks travel
WHOLE = PROMPT // BLOCK * BLOCK

# Name, title, the least and the most tokens that may come from the cache.
ROWS = [
    ("first", f"A  {PROMPT:,} bytes", 0, 0),
    ("second", "B  the same, computed on A", WHOLE, WHOLE),
    ("other", f"B  other from {DIVERGES_AT:,} on", DIVERGES_AT, DIVERGES_AT),
    ("back", "A  the same, computed on B", WHOLE, WHOLE),
    ("hurt", "B  another, a primary is dead", DIVERGES_AT, DIVERGES_AT),
    ("anew", "A  started anew: the first prompt", WHOLE, WHOLE),
]


def main():
    folder = pathlib.Path(sys.argv[1])
    rows, wrong = [], []
    for name, title, least, most in ROWS:
        cold, warm = read(folder, f"{name}-cold"), read(folder, name)
        if not least <= warm["cached_tokens"] <= most:
            wrong.append(f"demo: {title}: {warm['cached_tokens']} tokens came from the cache, must be {least} to {most}")
        if warm["cache_error"]:
            wrong.append(f"demo: {title}: the cache was not used: {warm['cache_error']}")
        if warm["tokens"] != cold["tokens"]:
            wrong.append(f"demo: {title}: the text differs from the cold run's")
        before, after = cold["first_token_ms"], warm["first_token_ms"]
        rows.append((title, warm["kind"], f"{warm['prompt_tokens']:,}", f"{warm['cached_tokens']:,}", f"{before:.1f} ms",
                     f"{after:.1f} ms", f"{before / after:.1f}x", "", "same" if warm["tokens"] == cold["tokens"] else "DIFFERS"))
    print_table(("request", "kind", "prompt", "cached", "cold", "warm", "ratio", "", "text"), rows)
    for fault in wrong:
        print(fault, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
