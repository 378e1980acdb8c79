#!/usr/bin/env python3
"""The prompts and the closing table of scripts/demo.

demo_table.py prompts CORPUS FOLDER   writes base, lcp (five of them) and supersequence.txt
demo_table.py longer CORPUS FOLDER    writes prefix.txt: worker A's prompt and more text, which A's answer does not begin with
demo_table.py check FOLDER            prints the table; fails when a row is not what it must be
"""
import json
import pathlib
import statistics
import sys

PROMPT, DIVERGES_AT, SHORTER, MORE = 7500, 1777, 5000, 500
LCP_NAMES = ("lcp", "lcp-2", "lcp-3", "lcp-4", "lcp-5")  # as many runs: a second one of the same prompt would find it whole
LCP_AT_MOST = 1.15  # of cold x (tokens left / tokens)


def write_prompts(corpus, folder):
    text = pathlib.Path(corpus).read_bytes()
    base = text[:PROMPT]
    (folder / "base.txt").write_bytes(base)
    # Another passage from the token on; its first byte must be a new one, else they would diverge later.
    seen, other = {base[DIVERGES_AT]}, 2 * PROMPT
    for name in LCP_NAMES:
        other = next(at for at in range(other, len(text)) if text[at] not in seen)
        seen.add(text[other])
        (folder / f"{name}.txt").write_bytes(base[:DIVERGES_AT] + text[other:other + PROMPT - DIVERGES_AT])
    (folder / "supersequence.txt").write_bytes(base[:SHORTER])


def read(folder, name):
    report = json.loads((folder / f"{name}.json").read_text())
    if report.get("error"):
        raise SystemExit(f"demo: {name}: {report['error']}")
    return report


def write_longer(corpus, folder):
    text = pathlib.Path(corpus).read_bytes()
    answer = read(folder, "a")["tokens"]
    more = next(at for at in range(PROMPT, len(text)) if text[at] != answer[0])
    (folder / "prefix.txt").write_bytes(text[:PROMPT] + text[more:more + MORE])


def expected_rows(folder):
    """Name, title, kind, tokens that must come from the cache. A worker computes the last prompt token: it needs its logits."""
    killed = [("killed", "C  the same, after kill -9", "exact", PROMPT - 1)]
    return [
        ("a", f"A  {PROMPT:,} bytes", "none", 0),
        ("exact", "B  the same", "exact", PROMPT - 1),
        ("prefix", f"B  {MORE} bytes longer", "prefix", PROMPT),
        *((name, f"B  other from {DIVERGES_AT:,} on", "lcp", DIVERGES_AT) for name in LCP_NAMES),
        ("supersequence", f"B  its first {SHORTER:,}", "supersequence", SHORTER - 1),
        *(killed if (folder / "killed.json").exists() else []),
        ("restart", "D  the same, from SSD", "exact", PROMPT - 1),
    ]


def tier(report):
    return "+".join(name for name in ("ram", "ssd") if report[f"{name}_bytes"] > 0) or "-"


def faults(name, kind, cached, warm, cold):
    if warm["cache_error"]:
        yield f"the cache was not used: {warm['cache_error']}"
    if warm["kind"].lower() != kind:
        yield f"kind is {warm['kind']}, must be {kind}"
    for field in ("cached_tokens", "used_tokens"):
        if warm[field] != cached:
            yield f"{field} is {warm[field]}, must be {cached}"
    if warm["tokens"] != cold["tokens"]:
        yield f"the text differs from the cold run's: {warm['text']!r} against {cold['text']!r}"
    if name == "restart" and warm["ssd_bytes"] == 0:
        yield "nothing came from the SSD"
    if name == "killed" and warm["ram_bytes"] == 0:
        yield "nothing came from the RAM that the killed daemon left"


def by_tokens_left(cold_ms, warm):
    """What reuse alone would leave: the cold time, in proportion to the tokens that are left."""
    return cold_ms * (warm["prompt_tokens"] - warm["used_tokens"]) / warm["prompt_tokens"]


def lcp_line(folder):
    """The fastest run with the cache against the fastest without: the machine may have had other work to do."""
    colds = [read(folder, f"{name}-cold")["first_token_ms"] for name in LCP_NAMES]
    warms = [read(folder, name) for name in LCP_NAMES]
    pairs = [warm["first_token_ms"] / by_tokens_left(cold, warm) for cold, warm in zip(colds, warms)]
    best = min(warms, key=lambda report: report["first_token_ms"])
    ratio = best["first_token_ms"] / by_tokens_left(min(colds), best)
    verdict = "holds" if ratio <= LCP_AT_MOST else "falls short"
    return (f"A1 LCP, best of {len(LCP_NAMES)}: {ratio:.2f} of cold x (tokens left / tokens), at most {LCP_AT_MOST}: {verdict}; "
            f"pairs {min(pairs):.2f} to {max(pairs):.2f}, median {statistics.median(pairs):.2f}")


def check(folder):
    rows, wrong = [], []
    for name, title, kind, cached in expected_rows(folder):
        cold = read(folder, f"{name}-cold")
        warm = read(folder, name)
        wrong += [f"demo: {title}: {fault}" for fault in faults(name, kind, cached, warm, cold)]
        before, after = cold["first_token_ms"], warm["first_token_ms"]
        left = by_tokens_left(before, warm)
        rows.append((title, warm["kind"], f"{warm['prompt_tokens']:,}", f"{warm['cached_tokens']:,}", f"{before:.1f} ms",
                     f"{after:.1f} ms", f"{before / after:.1f}x", f"{left:.1f} ms", tier(warm),
                     "same" if warm["tokens"] == cold["tokens"] else "DIFFERS"))
    print_table(("request", "kind", "prompt", "cached", "cold", "warm", "ratio", "by tokens left", "tier", "text"), rows)
    print("cold, warm: time to first token without the cache, once for each prompt, and with it; by tokens left: cold x (tokens left / tokens)")
    print(lcp_line(folder))
    for fault in wrong:
        print(fault, file=sys.stderr)
    return 1 if wrong else 0


def print_table(titles, rows):
    widths = [max(len(row[column]) for row in (titles, *rows)) for column in range(len(titles))]
    for row in (titles, *rows):
        cells = (cell.rjust(width) if 2 <= column <= 7 else cell.ljust(width)
                 for column, (cell, width) in enumerate(zip(row, widths)))
        print("  ".join(cells).rstrip())


def main():
    command, *arguments = sys.argv[1:]
    if command == "prompts":
        return write_prompts(arguments[0], pathlib.Path(arguments[1]))
    if command == "longer":
        return write_longer(arguments[0], pathlib.Path(arguments[1]))
    return check(pathlib.Path(arguments[0]))


if __name__ == "__main__":
    sys.exit(main())
