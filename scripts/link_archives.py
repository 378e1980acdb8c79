"""Runs a link command with archives in place of shared libraries: link_archives.py COMPILER ARGUMENT...

CMake calls it where PREFIXD_STATIC is on (CMakeLists.txt). For each libX.so that is given by its
path and has a libX.a beside it, a program is linked with libX.a. libprefixd.so is too, but for those
archives whose code cannot stand in a shared library. client/python/pack_wheel.py packs what is left.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

# Debian compiles these for programs alone (-fPIE): their thread-local variables have fixed places.
_PROGRAMS_ONLY = re.compile(r"lib(absl_\w+|protobuf|protobuf-lite|re2|rocksdb|z|zstd|snappy|bz2)\.a")
# What gRPC and RocksDB are built on. Their shared libraries name it; archives name nothing.
_BELOW = "grpc gpr upb address_sorting cares re2 ssl crypto z bz2 lz4 snappy zstd".split()
_HTTP = "libcpp-httplib.so"  # has no archive, and brings OpenSSL's shared libraries: one copy is enough
_OPENSSL = ("libssl.a", "libcrypto.a")
# Has no archive either, and gives strings and streams to the program: both must mean one C++ library.
_METRICS = "libprometheus-cpp-core.so"


def with_archives(command: list[str]) -> list[str]:
    is_program = "-shared" not in command
    names = {Path(argument).name for argument in command}
    has_openssl = _HTTP in names

    def linkable(archive: Path) -> bool:
        if not archive.exists() or has_openssl and archive.name in _OPENSSL:
            return False
        return is_program or not _PROGRAMS_ONLY.fullmatch(archive.name)

    linked, folders = [], set()
    for argument in command[1:]:
        path = Path(argument)
        name, is_shared, _ = path.name.partition(".so")
        if path.is_absolute() and is_shared and name.startswith("lib"):
            folders.add(path.parent)
            archive = path.with_name(f"{name}.a")
            if linkable(archive):
                argument = str(archive)
            elif name == "libprotobuf":  # its messages are the small Protobuf's
                argument = str(path.with_name("libprotobuf-lite.so"))
        if argument.removeprefix("-l") not in _BELOW:
            linked.append(argument)
    for folder in sorted(folders):
        archives = [folder / f"lib{name}.a" for name in _BELOW] + sorted(folder.glob("libabsl_*.a"))
        below = [str(a) if linkable(a) else f"-l{a.stem[3:]}" for a in archives if a.exists()]
        linked += ["-Wl,--start-group", *below, "-Wl,--end-group"]
    own_runtime = is_program and not names & {_HTTP, _METRICS}
    runtime = ["-static-libstdc++", "-static-libgcc"] if own_runtime else []
    return [command[0], "-Wl,--as-needed", "-Wl,--gc-sections", *linked, *runtime, "-ldl", "-lm"]


if __name__ == "__main__":
    command = with_archives(sys.argv[1:])
    os.execvp(command[0], command)
