#!/usr/bin/env python3
"""Every header compiles alone, and every source that the build compiles together with others.
Usage: headers.py BUILD_DIR (for the generated headers, and to know what is compiled how); CXX and PREFIXD_JOBS count.
A source that includes the header of its name first proves that this header compiles alone, here or in the build (but not with
a precompiled header).
PREFIXD_LINT=changed: only the files that differ from the last commit; recent: those too that the last 60 commits touched;
headers: every header and no source, in a third of the time."""
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


def compile_alone(command, root, path, text=None, folder=None):
    run = subprocess.run(command, input=text, text=True, capture_output=True, check=False, cwd=folder)
    if run.returncode == 0:
        return None
    first = next((line for line in run.stderr.splitlines() if "error" in line), run.stderr[:300])
    return f"headers: {path.relative_to(root)} does not compile alone: {first}"


def compile_header(compiler, root, generated, path):
    # Included, not compiled as the main file: GCC warns about #pragma once there.
    return compile_alone([*compiler, *flags(root, generated), "-"], root, path, f'#include "{path}"\n')


def alone(command, source):
    """Turns the command that compiles a batch into one for a source of it, without the precompiled header."""
    words = iter(shlex.split(command))
    kept = []
    for word in words:
        if word in ("-o", "-c", "-MT", "-MF", "-include"):
            next(words)
        elif word not in ("-MD", "-Winvalid-pch", "-fpch-preprocess") and not word.endswith("ccache"):
            kept.append(word)
    return [*kept, "-fsyntax-only", str(source)]


def files_named(root, commands):
    """The names that git's commands print; None where git does not know."""
    names = set()
    for command in commands:
        run = subprocess.run(["git", "-C", str(root), *command], text=True, capture_output=True, check=False)
        if run.returncode != 0:
            return None
        names.update(run.stdout.splitlines())
    return names


def header_of(source):
    """The header of a source's name, if the source sees it first."""
    first = re.search(r'^#include ["<](.+)[">]', source.read_text(), re.M)
    header = source.with_suffix(".h")
    return header if first and header.is_file() and str(header).endswith("/" + first.group(1)) else None


def sources_of(root, build):
    """Sources that the build compiles alone; of each that it compiles with others a command, and its folder."""
    commands = build / "compile_commands.json"
    single, batched = set(), {}
    for entry in json.loads(commands.read_text()) if commands.is_file() else []:
        folder = root / entry["directory"]
        source = (folder / entry["file"]).resolve()
        if not source.is_file():
            continue
        if re.fullmatch(r"unity_\d+_cxx\.cxx", source.name):
            for name in re.findall(r'^#include "(.+)"', source.read_text(), re.M):
                batched.setdefault((folder / name).resolve(), (entry["command"], folder))
        elif "cmake_pch" not in entry["command"]:
            single.add(source)
    return single, {source: how for source, how in batched.items() if source not in single}


def check(root, build=None):
    compiler = shlex.split(os.environ.get("CXX", "g++"))
    root = root.resolve()
    build = build or root / "build"
    generated = build / "gen"
    single, batched = sources_of(root, build)
    mode = os.environ.get("PREFIXD_LINT", "")
    batched = {source: how for source, how in batched.items()
               if mode != "headers" and source.is_relative_to(root) and build not in source.parents}
    shown = {header_of(source) for source in (*single, *batched)}
    headers = [path for path in tree.cpp_files(root, FOLDERS) if path.suffix == ".h" and path.resolve() not in shown]
    absent = () if sys.platform == "darwin" else DARWIN_FOLDERS
    if not (CUDA_HEADERS / "cuda_runtime_api.h").is_file():
        absent += CUDA_FOLDERS
    headers = [path for path in headers if not str(path.relative_to(root)).startswith(absent)]
    asked = {"changed": CHANGED, "recent": RECENT}.get(mode)
    names = files_named(root, asked) if asked else None
    if names is not None:
        headers = [path for path in headers if str(path.relative_to(root)) in names]
        batched = {source: how for source, how in batched.items()
                   if not names.isdisjoint(str(source.with_suffix(end).relative_to(root)) for end in (".cc", ".h"))}
    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("PREFIXD_JOBS", "2"))) as pool:
        found = [*pool.map(lambda path: compile_header(compiler, root, generated, path), headers),
                 *pool.map(lambda source: compile_alone(alone(batched[source][0], source), root, source,
                                                        folder=batched[source][1]), batched)]
        return [complaint for complaint in found if complaint]


def self_test():
    command = {"directory": "build", "file": "unity_0_cxx.cxx", "command": "g++ -std=c++20 -I../src -o a.o -c unity_0_cxx.cxx"}
    clean = {"src/base/size.h": "#pragma once\n#include <string>\nstd::string Size();\n",
             "src/base/size.cc": '#include "base/size.h"\nstd::string Size() { return {}; }\n',
             "src/base/limit.cc": "int Limit() { return 1; }\n",
             "build/compile_commands.json": json.dumps([command]),
             "build/unity_0_cxx.cxx": '#include "../src/base/size.cc"\n#include "../src/base/limit.cc"\n'}
    return tree.self_test(check, clean, [
        ("a header that leans on its includer", "src/base/a.h", "#pragma once\nstd::string Name();\n", "base/a.h"),
        ("a header of the tests", "tests/base/b.h", '#pragma once\n#include "base/gone.h"\n', "base/b.h"),
        ("a source that leans on one before it", "src/base/limit.cc", "std::string Limit() { return {}; }\n", "limit.cc"),
        ("a header that its source alone shows", "src/base/size.h", "#pragma once\nstd::string Size();\n", "size.cc"),
    ])


def main():
    if "--self-test" in sys.argv:
        return self_test()
    if len(sys.argv) != 2:
        raise SystemExit("usage: headers.py BUILD_DIR")
    build = pathlib.Path(sys.argv[1]).resolve()
    if not (build / "gen/prefixd/v1/admin.pb.h").is_file():
        return tree.report([f"headers: {build} has no generated headers: build first (scripts/build)"])
    return tree.report(check(tree.ROOT, build))


if __name__ == "__main__":
    sys.exit(main())
