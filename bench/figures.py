#!/usr/bin/env python3
"""The measured figures of bench/README.md: taken by prefixd-bench, kept in bench/figures, written between markers.

figures.py measure BUILD_DIR [WORKLOAD...]   runs `prefixd-bench WORKLOAD --quick --json`, all workloads if none is named
figures.py write                             writes the tables of README.md from bench/figures/*.json
figures.py check                             fails if README.md is not what `write` makes of these files
figures.py --self-test                       proves that `check` can fail
"""
import datetime
import json
import pathlib
import re
import subprocess
import sys
import time

BENCH = pathlib.Path(__file__).resolve().parent
WORKLOADS = ("share", "ssd", "kernels", "trace", "hits", "hostile", "quality", "kv-cache", "engines", "remote", "fleet")
# Rows that have no target and are shown all the same, by how their names begin. A workload that is not here shows those of
# its figures alone that have one.
ROWS = {"kernels": ("decode of ", "fused ", "cascade "), "quality": ("",), "kv-cache": ("",), "engines": ("",),
        "ssd": ("load time",), "remote": ("",), "fleet": ("",)}
MARKED = re.compile(r"<!-- figures: ([\w-]+) -->\n.*?<!-- end -->\n", re.DOTALL)
TARGET_FIELDS = ("name", "ours", "reference", "measure", "seen", "at_most", "at_least", "unit", "holds")


def digits(value):
    """Three figures."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def scaled(value, units, step):
    at = 0
    while abs(value) >= step and at + 1 < len(units):
        value, at = value / step, at + 1
    return f"{digits(value)} {units[at]}"


def figure_text(name, value):
    """The unit is the end of a figure's name (bench/common/bench.h)."""
    for end, text in (("_bytes_per_s", lambda v: scaled(v, ("B/s", "kB/s", "MB/s", "GB/s"), 1000)),
                      ("_flop_per_s", lambda v: scaled(v, ("FLOP/s", "kFLOP/s", "MFLOP/s", "GFLOP/s"), 1000)),
                      ("_us", lambda v: scaled(v, ("us", "ms", "s"), 1000)),
                      ("_bytes", lambda v: scaled(v, ("B", "KiB", "MiB", "GiB"), 1024)),
                      ("_percent", lambda v: f"{digits(v)} %"), ("_ratio", lambda v: f"{digits(v)}x")):
        if name.endswith(end):
            return f"{name.removesuffix(end).replace('_', ' ')} {text(value)}"
    return f"{name.replace('_', ' ')} {digits(value)}"


def target_line(target):
    limit = f"<= {target['at_most']:.4g}" if "at_most" in target else f">= {target['at_least']:.4g}"
    held = "" if target["holds"] else ", missed"
    reference = target["reference"] or "-"
    return (f"| {target['name']} | {target['ours']} | {reference} | {target['measure']} {digits(target['seen'])}{target['unit']} "
            f"| {limit}{target['unit']}{held} |")


def section(kept):
    """What one workload's file says, in Markdown."""
    machine = kept["machine"]
    lines = [f"`prefixd-bench {kept['workload']} --quick`, {kept['seconds']} s: {machine['cpu']}, {machine['cores']} cores, "
             f"{machine['memory_bytes'] / 2**30:.1f} GiB, kernels on {machine['target']}; {kept['date']}, commit "
             f"{kept['commit']}.", ""]
    if kept["targets"]:
        lines += ["| line | measured | beside | result | target |", "|---|---|---|---|---|"]
        lines += [target_line(target) for target in kept["targets"]]
    if kept["targets"] and kept["rows"]:
        lines.append("")
    if kept["rows"]:
        lines += ["| line, without a target | measured |", "|---|---|"]
        lines += [f"| {row['name']} | " + "; ".join(figure_text(*f) for f in row.items() if f[0] != "name") + " |"
                  for row in kept["rows"]]
    return "\n".join(lines) + "\n"


def written(readme, folder):
    def replaced(found):
        file = folder / f"{found[1]}.json"
        if not file.is_file():
            raise SystemExit(f"figures: README.md has a table of {found[1]}, and {file.name} is not there")
        return f"<!-- figures: {found[1]} -->\n{section(json.loads(file.read_text()))}<!-- end -->\n"
    return MARKED.sub(replaced, readme)


def complaints(readme, folder):
    """What is wrong with a README for these files."""
    named = set(MARKED.findall(readme))
    wrong = [f"figures: {file.name} has no table in README.md" for file in sorted(folder.glob("*.json")) if file.stem not in named]
    if written(readme, folder) != readme:
        wrong.append("figures: the tables of bench/README.md are not those of bench/figures; run bench/figures.py write")
    return wrong


def measure(build, workloads):
    commit = subprocess.run(["git", "-C", str(BENCH), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    for workload in workloads:
        begin = time.monotonic()
        print(f"figures: {workload} ...", file=sys.stderr, flush=True)
        run = subprocess.run([build / "prefixd-bench", workload, "--quick", "--json"], stdout=subprocess.PIPE, text=True, check=False)
        report = json.loads(run.stdout)
        [found] = report["workloads"]
        if found["failures"]:
            raise SystemExit(f"figures: {workload}: {found['failures']}")
        if not found["targets"] and not found["rows"]:
            raise SystemExit(f"figures: {workload} measured nothing: {'; '.join(found.get('notes', [])) or 'it does not say why'}")
        kept = {"workload": workload, "machine": {k: report["machine"][k] for k in ("cpu", "cores", "target", "memory_bytes")},
                "date": datetime.date.today().isoformat(), "commit": commit.stdout.strip(),
                "seconds": round(time.monotonic() - begin),
                "targets": [{k: t[k] for k in TARGET_FIELDS if k in t} for t in found["targets"]],
                "rows": [row for row in found["rows"] if row["name"].startswith(ROWS.get(workload, ("\0",)))]}
        (BENCH / "figures").mkdir(exist_ok=True)
        (BENCH / "figures" / f"{workload}.json").write_text(json.dumps(kept, indent=1) + "\n")


def self_test():
    import tempfile
    target = {"name": "a line", "ours": "1 us", "reference": "2 us", "measure": "ratio", "seen": 0.5, "at_most": 1, "unit": "",
              "holds": True}
    kept = {"workload": "share", "machine": {"cpu": "a CPU", "cores": 2, "target": "AVX2", "memory_bytes": 2**33},
            "date": "2026-01-01", "commit": "abc", "seconds": 60, "targets": [target],
            "rows": [{"name": "a row", "rate_bytes_per_s": 2.5e9, "median_us": 1500.0}]}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "share.json").write_text(json.dumps(kept))
        right = written("before\n<!-- figures: share -->\n<!-- end -->\nafter\n", folder)
        wrong = [what for what, readme, expected in (
            ("complains about its own tables", right, False),
            ("does not see a figure that was changed by hand", right.replace("1 us", "0.9 us"), True),
            ("does not see a table that is missing", "before\nafter\n", True)) if bool(complaints(readme, folder)) != expected]
        for text in ("before\n", "after\n", "ratio 0.5 | <= 1 |", "rate 2.5 GB/s; median 1.5 ms", "8.0 GiB"):
            if text not in right:
                wrong.append(f"does not write {text!r}")
    for what in wrong:
        print(f"figures: {what}", file=sys.stderr)
    return 1 if wrong else 0


def main(arguments):
    readme = BENCH / "README.md"
    if arguments == ["--self-test"]:
        return self_test()
    if len(arguments) >= 2 and arguments[0] == "measure":
        return measure(pathlib.Path(arguments[1]), arguments[2:] or WORKLOADS)
    if arguments == ["write"]:
        readme.write_text(written(readme.read_text(), BENCH / "figures"))
        return 0
    if arguments == ["check"]:
        wrong = complaints(readme.read_text(), BENCH / "figures")
        for what in wrong:
            print(what, file=sys.stderr)
        return 1 if wrong else 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
