#!/usr/bin/env python3
"""Includes point down only: every include of src, daemon and client against the floors table of src/README.md, every
third-party header against the rooms that may include it, and the public headers against the standard library."""
import re
import sys

import tree

# Prefix of a third-party include: the rooms that may have it. None: every room below client and daemon too.
THIRD_PARTY = {
    "rocksdb/": {"ssd"},
    "zstd.h": {"ssd", "sizing"},
    "grpc/": {"wire", "daemon", "client/cpp", "client/cli"},
    "grpcpp/": {"wire", "daemon", "client/cpp", "client/cli"},
    "google/protobuf/": {"wire", "daemon", "client/cpp", "client/cli"},
    "prefixd/v1/": {"wire", "daemon", "client/cpp", "client/cli"},  # generated
    "prefixd/otlp/": {"daemon"},  # generated
    "spdlog/": {"daemon"},
    "fmt/": {"daemon"},
    "prometheus/": {"daemon"},
    "civetweb.h": {"daemon"},
    "hwy/": {"kernels"},
    "openssl/": {"base", "daemon", "remote"},
    "xxhash.h": {"base"},
    "cblas.h": {"client/worker"},
    "CLI/": {"completion", "daemon", "client/cli", "client/worker", "client/llama"},
    "nlohmann/": {"daemon", "interop", "sizing", "client/cli", "client/worker", "client/llama"},
    "httplib.h": {"client/llama"},
    "cuda_": {"client/cuda", "client/worker_cuda"},  # the toolkit's headers
    "cuda.h": {"client/cuda"},
    "absl/": None,
    "gtest/": set(),
    "gmock/": set(),
}
PUBLIC = "client/include/prefixd"  # of client/cpp
SHARED = ("prefixd/block_table.h", "prefixd/format.h")  # public headers in a room at the bottom: "client/include"
CUDA = f"{PUBLIC}/cuda.h"  # of client/cuda: C functions over the types of client/c/prefixd.h
CUDA_INCLUDES = ("stddef.h", "stdint.h", "prefixd.h")
# client/examples shows what an engine sees: it stands above client/cpp and may include its public headers only.
EXAMPLES = "client/examples"
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]', re.M)


# Files of the room cache that know all of its parts; the others beside them know none.
WHOLE_CACHE = ("src/cache/parts.h", "src/cache/parts.cc", "src/cache/cache.cc")


def read_table(root, name):
    """The fenced table of that name in src/README.md: what stands below each line."""
    text = (root / "src/README.md").read_text()
    table = re.search(rf"```{name}\n(.*?)```", text, re.S)
    if not table:
        raise SystemExit(f"floors: src/README.md has no ```{name} table")
    floors = {}
    for line in table.group(1).splitlines():
        room, _, below = line.partition(":")
        floors[room.strip()] = set(below.split())
    return floors


def room_folder(room):
    return room if "/" in room or room == "daemon" else f"src/{room}"


def room_of(path, rooms):
    if path in [f"client/include/{header}" for header in SHARED]:
        return "client/include"
    if path == CUDA:
        return "client/cuda"
    if path.startswith(PUBLIC + "/"):
        return "client/cpp"
    for room in rooms:
        if path.startswith(room_folder(room) + "/"):
            return room
    return EXAMPLES if path.startswith(EXAMPLES + "/") else None


def target_room(include, rooms):
    """The room that an include of ours names, or None."""
    if include in SHARED:
        return "client/include"
    if include in ("prefixd/client.h", "prefixd/attention.h"):
        return "client/cpp"
    if include == "prefixd/cuda.h":
        return "client/cuda"
    for prefix in (include, "src/" + include):
        room = room_of(prefix, rooms)
        if room:
            return room
    return None


def check_public(name, bracket, include):
    if bracket == "<" and "/" not in include and "." not in include:
        return None
    if bracket == '"' and include.startswith("prefixd/") and not include.startswith("prefixd/v1/"):
        return None
    return f"floors: {name} includes {include}; public headers include the standard library and each other only"


def check_include(root, path, room, floors, bracket, include):
    name = str(path.relative_to(root))
    if name == CUDA:
        if include in CUDA_INCLUDES:
            return None
        return f"floors: {name} includes {include}; it may include {' '.join(CUDA_INCLUDES)}"
    if name.startswith(PUBLIC + "/"):
        return check_public(name, bracket, include)
    third = next((prefix for prefix in THIRD_PARTY if include.startswith(prefix)), None)
    if third:
        allowed = THIRD_PARTY[third]
        if allowed is None and room != EXAMPLES or allowed and room in allowed:
            return None
        where = ", ".join(sorted(allowed)) if allowed else "tests and bench"
        return f"floors: {name} includes {include}, which only {where} may include"
    if bracket == "<":
        return None  # the system's
    target = target_room(include, floors)
    if target is None and (path.parent / include).is_file() and "/" not in include:
        return None  # beside it
    if target is None:
        return f"floors: {name} includes {include}, which is in no room of src/README.md"
    if room == EXAMPLES:
        if target == EXAMPLES or include.startswith("prefixd/"):
            return None
        return f"floors: {name} includes {include}; an example sees the public headers only"
    if target == room or target in floors[room]:
        return None
    below = " ".join(sorted(floors[room])) or "nothing"
    return f"floors: {name} includes {include}, but {room} may include {below}"


def part_of(name, parts):
    return next((part for part in parts if name.startswith(f"src/cache/{part}/")), None)


def check_part(name, include, parts):
    """Inside the room cache: a part includes parts below it, and nobody but WHOLE_CACHE includes all."""
    if not name.startswith("src/cache/") or not include.startswith("cache/") or name in WHOLE_CACHE:
        return None
    part, target = part_of(name, parts), part_of("src/" + include, parts)
    if include == "cache/parts.h":
        return f"floors: {name} includes {include}, which knows all parts"
    if target is None or target == part or part and target in parts[part]:
        return None
    below = " ".join(sorted(parts[part])) if part else ""
    return f"floors: {name} includes {include}, but {part or 'what all parts share'} may include {below or 'no part'}"


def check(root):
    floors, parts = read_table(root, "floors"), read_table(root, "parts")
    complaints = []
    for table in (floors, parts):
        for line, below in table.items():
            unknown = below - set(table)
            complaints += [f"floors: the table of {line} names {u}, which has no line" for u in sorted(unknown)]
    for path in tree.cpp_files(root, tree.CODE):
        name = str(path.relative_to(root))
        room = room_of(name, floors)
        if room is None:
            complaints.append(f"floors: {name} is in no room of src/README.md")
            continue
        text = path.read_text()
        if "FRIEND_TEST" in text or re.search(r"friend\s+class\s+\w*Test\b", text):
            complaints.append(f"floors: {name} befriends a test; tests go through the public API")
        for bracket, include in INCLUDE.findall(text):
            found = (check_include(root, path, room, floors, bracket, include), check_part(name, include, parts))
            complaints += [complaint for complaint in found if complaint]
        if name.startswith("src/cache/") and path.parent.name not in (*parts, "cache"):
            complaints.append(f"floors: {name} is in no part of src/README.md")
    return complaints


def self_test():
    table = ("```floors\nbase:\nquant: base\nssd: base\ncache: base ssd\ndaemon: base\nclient/cpp: base quant\n"
             "client/cli: base client/cpp\nclient/cuda: base quant\n```\n```parts\nroom:\nstore: room\nverbs: room store\n```\n")
    clean = {
        "src/README.md": table,
        "src/base/size.h": "#include <string>\n",
        "src/quant/a.cc": '#include "quant/a.h"\n#include "base/size.h"\n#include "absl/status/status.h"\n',
        "src/quant/a.h": "#include <cstdint>\n",
        "src/ssd/a.cc": '#include "rocksdb/db.h"\n',
        "src/cache/context.h": '#include "base/size.h"\n',
        "src/cache/parts.h": '#include "cache/store/spiller.h"\n#include "cache/verbs/verbs.h"\n',
        "src/cache/room/room.h": '#include "cache/context.h"\n',
        "src/cache/store/spiller.h": '#include "cache/room/room.h"\n',
        "src/cache/verbs/verbs.h": '#include "cache/store/spiller.h"\n',
        "client/include/prefixd/client.h": "#include <vector>\n",
        "client/cpp/a.cc": '#include "b.h"\n#include "prefixd/client.h"\n#include "prefixd/v1/admin.pb.h"\n',
        "client/cpp/b.h": "",
        "client/examples/worker.cc": '#include "prefixd/client.h"\n',
        "client/include/prefixd/cuda.h": '#include <stdint.h>\n#include "prefixd.h"\n',
        "client/cuda/a.cu": '#include <cuda_fp16.h>\n#include "prefixd/cuda.h"\n#include "quant/a.h"\n',
    }
    cpp = "client/include/prefixd/client.h"
    return tree.self_test(check, clean, [
        ("an include that points up", "src/base/up.cc", '#include "quant/a.h"\n', "base may include nothing"),
        ("an include sideways", "src/ssd/side.cc", '#include "quant/a.h"\n', "ssd may include base"),
        ("an include of daemon", "src/quant/d.cc", '#include "daemon/server.h"\n', "quant may include base"),
        ("rocksdb outside ssd", "src/quant/r.cc", '#include <rocksdb/db.h>\n', "which only ssd may"),
        ("protobuf outside wire", "src/quant/p.cc", '#include "prefixd/v1/admin.pb.h"\n', "which only client/cli"),
        ("a gtest include", "src/quant/t.cc", '#include "gtest/gtest.h"\n', "which only tests and bench may"),
        ("a friend test", "src/quant/f.h", "class A { FRIEND_TEST(ATest, B); };\n", "befriends a test"),
        ("absl in a public header", cpp, '#include "absl/status/status.h"\n', "public headers include"),
        ("a C library in a public header", cpp, "#include <zstd.h>\n", "public headers include"),
        ("CUDA outside its room", "src/quant/c.cc", "#include <cuda_runtime_api.h>\n", "which only client/cuda, client/worker_cuda may"),
        ("CUDA in its public header", "client/include/prefixd/cuda.h", "#include <cuda_fp16.h>\n", "it may include"),
        ("a kernel that calls a client", "client/cuda/k.cu", '#include "prefixd/client.h"\n', "client/cuda may include"),
        ("an example that looks inside", "client/examples/x.cc", '#include "base/size.h"\n', "public headers only"),
        ("a part that calls up", "src/cache/room/up.cc", '#include "cache/store/spiller.h"\n', "room may include no part"),
        ("a part that knows all", "src/cache/store/all.cc", '#include "cache/parts.h"\n', "knows all parts"),
        ("shared code that knows a part", "src/cache/context.cc", '#include "cache/room/room.h"\n', "what all parts share"),
        ("a part without a line", "src/cache/extra/x.cc", "", "in no part"),
        ("a room without a line", "src/extra/x.cc", "", "in no room"),
        ("an include of nowhere", "src/quant/n.cc", '#include "nowhere/x.h"\n', "which is in no room"),
    ])


if __name__ == "__main__":
    sys.exit(self_test() if "--self-test" in sys.argv else tree.report(check(tree.ROOT)))
