"""Runs the tests that FEATURES.md names and prints each feature with its result: run.py BUILD_DIR [ID...]

Red when a feature is missing from the table, stands there twice, is none of the list below, has neither a test nor a
reason, or names a test that does not exist or fails. Each program runs once, with all tests that are named of it, unless
CTest ran it since it was built and kept its results.
`run.py --self-test` proves on planted tables that it can turn red. Standard library only.
"""
import collections
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
TABLE = pathlib.Path(__file__).with_name("FEATURES.md")
RANGES = (("S0", 9), ("S1", 50), ("S2", 25), ("S3", 10), ("S4", 18), ("M", 7))
IDS = [f"{family}-{number:02}" for family, last in RANGES for number in range(1, last + 1)]
PACKAGES = {"mlx": ("client/python", "tests/mlx", "tests/support"), "python": ("client/python", "tests/python")}
NO_TEST = "No test: "  # how the last cell begins where a reason stands instead
PROGRAM_LIMIT_S = 1200
SKIPPED = 77  # tests/mlx/run: the packages cannot be had

Row = collections.namedtuple("Row", "id what where tests reason")
Result = collections.namedtuple("Result", "state text")  # state: "ok", "FAILED", "skipped"


def read_table(text):
    """Rows in order, and what is wrong with them."""
    rows, wrong = [], []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if not line.startswith("| ") or not re.fullmatch(r"(S\d|M)-\d+", cells[0]):
            continue
        if len(cells) != 4 or not all(cells):
            wrong.append(f"{cells[0]}: a row has four cells, this has {len(cells)}")
            continue
        spans = re.findall(r"`([^`]+)`", cells[3])
        tests = [span for span in spans if re.match(r"(\w+_test|mlx|python|prefixd-bench) ", span)]
        reason = cells[3] if cells[3].startswith(NO_TEST) else ""
        if bool(tests) == bool(reason):
            wrong.append(f"{cells[0]}: names a test or begins with \"{NO_TEST}\" and a reason, one of both")
        rows.append(Row(*cells[:3], tests, reason))
    seen = collections.Counter(row.id for row in rows)
    wrong += [f"{name}: is not in the table" for name in IDS if name not in seen]
    wrong += [f"{name}: stands there {count} times" for name, count in seen.items() if count > 1]
    wrong += [f"{name}: is no feature" for name in seen if name not in IDS]
    return rows, wrong


def gtest_results(report):
    """From GoogleTest's JSON: "Suite.Name" to Result, all instances of a parametrised test together."""
    found = {}
    for suite in report["testsuites"]:
        for test in suite["testsuite"]:
            suite_name = next(part for part in reversed(suite["name"].split("/")) if not part.isdigit())
            name = f"{suite_name}.{test['name'].split('/')[0]}"
            if test["result"] == "SKIPPED":
                result = Result("skipped", "skipped itself")
            elif test.get("failures"):
                result = Result("FAILED", test["failures"][0]["failure"].splitlines()[-1])
            else:
                result = Result("ok", "")
            order = ("ok", "skipped", "FAILED")
            found[name] = max(found.get(name, result), result, key=lambda r: order.index(r.state))
    return found


def kept(build, name, sources=()):
    """What CTest's run of a program said, or None if a program or a source changed since."""
    report = build / "Testing/results" / name
    if not report.is_file():
        return None
    programs = [path for path in build.iterdir() if path.is_file() and (os.access(path, os.X_OK) or ".so" in path.name)]
    scripts = [path for folder in sources for path in (ROOT / folder).rglob("*.py")]
    newest = max((path.stat().st_mtime for path in [*programs, *scripts]), default=0)
    return report.read_text(encoding="utf-8", errors="replace") if report.stat().st_mtime > newest else None


def gtests_kept(build, program):
    try:
        return gtest_results(json.loads(kept(build, f"{program}.json") or '{"testsuites": []}'))
    except ValueError:  # cut off
        return {}


def run_gtest(build, program, names):
    before = gtests_kept(build, program)
    missing = [name for name in names if name not in before]
    found = run_gtests(build, program, missing) if missing else {}
    return {name: found.get(name, before.get(name)) for name in names}


def run_gtests(build, program, names):
    binary = build / program
    if not binary.is_file():
        return {name: Result("FAILED", f"{program} is not built") for name in names}
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.json"
        filters = ":".join(f"{name}:*/{name}:{name}/*:*/{name}/*" for name in names)
        try:
            done = subprocess.run([binary, f"--gtest_filter={filters}", f"--gtest_output=json:{report}"], cwd=build,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PROGRAM_LIMIT_S)
        except subprocess.TimeoutExpired:
            return {name: Result("FAILED", f"{program} took more than {PROGRAM_LIMIT_S} s") for name in names}
        found = gtest_results(json.loads(report.read_text())) if report.is_file() else {}
    ended = f"{program} ended with {done.returncode}" if done.returncode else "there is no such test"
    return {name: found.get(name, Result("FAILED", ended)) for name in names}


def run_unittest(command, environment, names, before):
    """One process for all whose results are not in the text `before`."""
    results = unittest_results(before or "", names)
    missing = [name for name in names if results[name] is None]
    if not missing:
        return results
    done = subprocess.run([*command, "-v", *missing], env={**os.environ, **environment}, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=PROGRAM_LIMIT_S)
    if done.returncode == SKIPPED:
        return {name: Result("skipped", done.stdout.strip().splitlines()[-1].removeprefix("SKIP: ")) for name in names}
    found = unittest_results(done.stdout, missing)
    return {name: results[name] or found[name] or Result("FAILED", "there is no such test") for name in names}


def unittest_results(text, names):
    """`name (module.Class...) ... ok` is a line of a verbose report. None for a test that is not in it."""
    results = {}
    for name in names:
        module, _, method = name.rpartition(".")
        # What a test prints may stand between its name and its result.
        line = re.search(rf"^{method} \((?:[\w.]*\.)?{re.escape(module)}(?:\.{method})?\).*?\.\.\. .*?(ok|skipped.*|FAIL|ERROR)$",
                         text, re.MULTILINE | re.DOTALL)
        if line is None:
            results[name] = None
        elif line[1] == "ok":
            results[name] = Result("ok", "")
        else:
            results[name] = Result("skipped" if line[1].startswith("skipped") else "FAILED", line[1])
    return results


def run_bench(build, arguments):
    done = subprocess.run([build / "prefixd-bench", *arguments.split()], cwd=build, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=PROGRAM_LIMIT_S)
    last = (done.stdout.strip().splitlines() or [""])[-1]
    return Result("ok", "") if done.returncode == 0 else Result("FAILED", f"exit code {done.returncode}: {last}")


def run_program(build, program, names):
    if program == "prefixd-bench":
        return {name: run_bench(build, name) for name in names}
    if program == "mlx":
        return run_unittest([ROOT / "tests/mlx/run", build], {}, names, kept(build, "mlx.txt", PACKAGES["mlx"]))
    if program == "python":
        paths = os.pathsep.join(str(ROOT / path) for path in ("client/python", "tests/python"))
        return run_unittest([sys.executable, "-B", "-m", "unittest"],
                            {"PREFIXD_BUILD_DIR": str(build), "PREFIXD_LIBRARY": str(build / "libprefixd.so"),
                             "PYTHONPATH": paths}, names, kept(build, "python.txt", PACKAGES["python"]))
    return run_gtest(build, program, names)


def run_tests(build, tests, run=run_program, say=lambda line: print(line, file=sys.stderr, flush=True)):
    """Every test that is named, once: "program name" to Result."""
    programs = collections.defaultdict(list)
    for test in tests:
        program, _, name = test.partition(" ")
        if name not in programs[program]:
            programs[program].append(name)
    results = {}
    for program, names in programs.items():
        begin = time.monotonic()
        try:
            found = run(build, program, names)
        except (OSError, subprocess.SubprocessError) as error:
            found = {name: Result("FAILED", str(error)) for name in names}
        say(f"ran {len(names)} of {program} in {time.monotonic() - begin:.1f} s")
        results.update({f"{program} {name}": result for name, result in found.items()})
    return results


def result_of(row, results):
    """A feature holds when none of its tests fails and at least one of them ran."""
    if row.reason:
        return Result("reason", row.reason.removeprefix(NO_TEST))
    if not row.tests:
        return Result("FAILED", "neither a test nor a reason")
    seen = {test: results[test] for test in row.tests}
    for test, result in seen.items():
        if result.state == "FAILED":
            return Result("FAILED", f"{test}: {result.text}")
    ran = sum(result.state == "ok" for result in seen.values())
    if ran == 0:
        return Result("skipped", next(iter(seen.values())).text)
    return Result("ok", f"{ran} test{'s' * (ran != 1)}" + ("" if ran == len(seen) else f", {len(seen) - ran} skipped"))


def report(rows, wrong, results):
    """True when everything holds."""
    states = collections.Counter()
    for row in rows:
        result = result_of(row, results)
        states[result.state] += 1
        print(f"{row.id} {result.state}: {row.what} ({result.text})")
    for complaint in wrong:
        print(f"FAILED {complaint}")
    print(f"{len(rows)} features: " + ", ".join(f"{count} {state}" for state, count in sorted(states.items())))
    return not wrong and states["FAILED"] == 0


def self_test():
    def row(name, proof="`a_test A.B`"):
        return f"| {name} | what | where | {proof} |"

    whole = [row(name) for name in IDS]
    fine = {"A.B": Result("ok", "")}

    def holds(lines, found):
        rows, wrong = read_table("\n".join(lines))
        tests = [test for r in rows for test in r.tests]
        return report(rows, wrong, run_tests(None, tests, lambda build, program, names: {
            name: found.get(name, Result("FAILED", "there is no such test")) for name in names}, say=len))

    planted = {
        "a feature that is missing": (whole[1:], fine),
        "a feature that stands there twice": (whole + whole[:1], fine),
        "a feature that nobody knows": (whole + [row("S1-99")], fine),
        "a row with neither test nor reason": (whole[1:] + [row("S0-01", "later")], fine),
        "a test that does not exist": (whole[1:] + [row("S0-01", "`a_test A.C`")], fine),
        "a test that fails": (whole, {"A.B": Result("FAILED", "1 != 2")}),
    }
    real, sys.stdout = sys.stdout, open(os.devnull, "w", encoding="utf-8")
    failures = [] if holds(whole, fine) else ["a whole table whose tests pass is red"]
    if not holds(whole[1:] + [row("S0-01", NO_TEST + "because")], fine):
        failures.append("a reason is not taken")
    failures += [f"{what} is not seen" for what, case in planted.items() if holds(*case)]
    sys.stdout = real
    report_json = {"testsuites": [{"name": "All/Suite/0", "testsuite": [{"name": "Name/raw", "result": "COMPLETED"},
                                                                      {"name": "Name/8", "result": "COMPLETED",
                                                                       "failures": [{"failure": "x\ny"}]}]}]}
    if gtest_results(report_json) != {"Suite.Name": Result("FAILED", "y")}:
        failures.append("one failed instance of a parametrised test is not seen")
    with tempfile.TemporaryDirectory() as folder:
        build = pathlib.Path(folder)
        (build / "Testing/results").mkdir(parents=True)
        (build / "Testing/results/a_test.json").write_text(json.dumps(report_json))
        if "Suite.Name" not in gtests_kept(build, "a_test"):
            failures.append("results that CTest kept are not read")
        (build / "prefixd").touch(mode=0o755)
        os.utime(build / "prefixd", (2**31, 2**31))
        if gtests_kept(build, "a_test"):
            failures.append("results of a program before the last build are taken")
    verbose = "test_x (t.C.test_x)\nA sentence. ... said\nok\ntest_y (t.C.test_y) ... FAIL\n"
    seen = unittest_results(verbose, ["t.C.test_x", "t.C.test_y", "t.C.test_z"])
    if [result and result.state for result in seen.values()] != ["ok", "FAILED", None]:
        failures.append("a verbose report is not read")
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


def main(arguments):
    if arguments == ["--self-test"]:
        return self_test()
    if not arguments:
        print(__doc__, file=sys.stderr)
        return 2
    build = pathlib.Path(arguments[0]).resolve()
    rows, wrong = read_table(TABLE.read_text(encoding="utf-8"))
    if arguments[1:]:
        rows, wrong = [row for row in rows if row.id in arguments[1:]], []
    results = run_tests(build, [test for row in rows for test in row.tests])
    return 0 if report(rows, wrong, results) and self_test() == 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
