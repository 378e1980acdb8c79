#!/usr/bin/env python3
"""Every header compiles alone. Usage: headers.py BUILD_DIR (for the generated headers); CXX and PREFIXD_JOBS count.
The build itself has shown it of a header that a .cc of the same name includes first, without a precompiled header.
PREFIXD_LINT=changed: only the headers that differ from the last commit; recent: those too that the last 60 commits touched."""
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

import tree

FOLDERS = (*tree.CODE, "tests", "bench")
# What includes CUDA's headers compiles where the toolkit is.
CUDA_HEADERS = pathlib.Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"
CUDA_FOLDERS = ("client/cuda/", "client/worker_cuda/", "tests/cuda/", "bench/cuda/")
# Darwin's own calls: scripts/check-macos compiles what includes them.
DARWIN_FOLDERS = ("src/os/darwin/",)
CHANGED = (["diff", "--name-only", "HEAD"], ["ls-files", "--others", "--exclude-standard"])
RECENT = (*CHANGED, ["log", "-60", "--format=", "--name-only"])


def flags(root, generated):
    return ["-std=c++20", "-fsyntax-only", "-x", "c++", "-I", str(root), "-I", str(root / "src"),
            "-I", str(root / "client/include"), "-I", str(root / "client/cpp"), "-I", str(root / "client/c"),
            "-isystem", str(generated), "-isystem", str(CUDA_HEADERS),
            '-DPREFIXD_TEST_DATA=""', '-DPREFIXD_SOURCE_DIR=""', '-DPREFIXD_BINARY_DIR=""']


def compile_alone(compiler, root, generated, path):
    name = str(path.relative_to(root))
    # Included, not compiled as the main file: GCC warns about #pragma once there.
    run = subprocess.run([*compiler, *flags(root, generated), "-"], input=f'#include "{path}"\n', text=True,
                         capture_output=True, check=False)
    if run.returncode == 0:
        return None
    first = next((line for line in run.stderr.splitlines() if "error" in line), run.stderr[:300])
    return f"headers: {name} does not compile alone: {first}"


def files_named(root, commands):
    """The names that git's commands print; None where git does not know."""
    names = set()
    for command in commands:
        run = subprocess.run(["git", "-C", str(root), *command], text=True, capture_output=True, check=False)
        if run.returncode != 0:
            return None
        names.update(run.stdout.splitlines())
    return names


def shown_by(build):
    """Headers that the build compiled alone: the first thing that a source of their name saw."""
    commands = build / "compile_commands.json"
    shown = set()
    for entry in json.loads(commands.read_text()) if commands.is_file() else []:
        source = pathlib.Path(entry["directory"], entry["file"]).resolve()
        if "cmake_pch" in entry["command"] or not source.is_file():
            continue
        first = re.search(r'^#include ["<](.+)[">]', source.read_text(), re.M)
        header = source.with_suffix(".h")
        if first and header.is_file() and str(header).endswith("/" + first.group(1)):
            shown.add(header)
    return shown


def check(root, generated=pathlib.Path("/nonexistent")):
    compiler = shlex.split(os.environ.get("CXX", "g++"))
    shown = shown_by(generated.parent)
    headers = [path for path in tree.cpp_files(root, FOLDERS) if path.suffix == ".h" and path.resolve() not in shown]
    absent = () if sys.platform == "darwin" else DARWIN_FOLDERS
    if not (CUDA_HEADERS / "cuda_runtime_api.h").is_file():
        absent += CUDA_FOLDERS
    headers = [path for path in headers if not str(path.relative_to(root)).startswith(absent)]
    asked = {"changed": CHANGED, "recent": RECENT}.get(os.environ.get("PREFIXD_LINT", ""))
    names = files_named(root, asked) if asked else None
    if names is not None:
        headers = [path for path in headers if str(path.relative_to(root)) in names]
    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("PREFIXD_JOBS", "2"))) as pool:
        found = pool.map(lambda path: compile_alone(compiler, root, generated, path), headers)
        return [complaint for complaint in found if complaint]


def self_test():
    clean = {"src/base/size.h": "#pragma once\n#include <string>\nstd::string Size();\n"}
    return tree.self_test(check, clean, [
        ("a header that leans on its includer", "src/base/a.h", "#pragma once\nstd::string Name();\n", "base/a.h"),
        ("a header of the tests", "tests/base/b.h", '#pragma once\n#include "base/gone.h"\n', "base/b.h"),
    ])


def main():
    if "--self-test" in sys.argv:
        return self_test()
    if len(sys.argv) != 2:
        raise SystemExit("usage: headers.py BUILD_DIR")
    generated = pathlib.Path(sys.argv[1]).resolve() / "gen"
    if not (generated / "prefixd/v1/admin.pb.h").is_file():
        return tree.report([f"headers: {generated} has no generated headers: build first (scripts/build)"])
    return tree.report(check(tree.ROOT, generated))


if __name__ == "__main__":
    sys.exit(main())
