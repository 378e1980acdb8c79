"""Makes a manual page from a program's --help: manual.py PROGRAM OUT.gz --version VERSION

help2man reads --help. A program with commands has the help of each as a section of its own.
"""

from __future__ import annotations

import argparse
import gzip
import re
import subprocess
import tempfile
from pathlib import Path

_ABOUT = {
    "prefixd": "the prefix cache beside LLM workers",
    "prefixctl": "ask a running prefixd what it holds, and tell it what to drop",
    "prefixd-llama": "put prefixd between clients and llama-server",
    "prefixd-worker": "a reference inference worker on prefixd",
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes a manual page from a program's --help.")
    parser.add_argument("program", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--version", required=True)
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with open(options.out, "wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as page:
        page.write(manual(options.program.resolve(), options.out.name.split(".")[-2], options.version))
    options.out.chmod(0o644)


def manual(program: Path, section: str, version: str) -> bytes:
    """Returns the page as troff."""
    with tempfile.TemporaryDirectory() as scratch:
        # help2man takes the name from the path, and the usage line repeats it.
        alias, extra = Path(scratch) / program.name, Path(scratch) / "extra.h2m"
        alias.symlink_to(program)
        extra.write_text("".join(_sections(program)))
        told = ["--no-info", f"--section={section}", f"--version-string={version}", f"--name={_ABOUT[program.name]}"]
        told += [f"--source=prefixd {version}", f"--include={extra}"]
        path = f"{scratch}:/usr/bin:/bin"
        done = subprocess.run(["help2man", *told, program.name], env={"PATH": path, "LC_ALL": "C"}, capture_output=True)
    if done.returncode != 0:
        raise SystemExit(f"manual: help2man failed for {program.name}: {done.stderr.decode().strip()}")
    return done.stdout


def _sections(program: Path):
    if names := commands(_help(program)):
        yield "[COMMANDS]\n"
        for name in names:
            lines = (_troff(line) for line in _help(program, name).rstrip().splitlines())
            yield f".SS {program.name} {name}\n.nf\n" + "\n".join(lines) + "\n.fi\n"
    see = ", ".join(f"\\fB{name}\\fR(1)" for name in _ABOUT if name not in (program.name, "prefixd"))
    yield "[SEE ALSO]\n" + ("" if program.name == "prefixd" else "\\fBprefixd\\fR(8), ") + see + "\n"


def commands(said: str) -> list[str]:
    """Returns the commands that a --help lists."""
    listed = said.partition("\nSubcommands:\n")[2].partition("\n\n")[0]
    return re.findall(r"^  (\w+)", listed, re.M)


def _troff(line: str) -> str:
    line = line.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{line}" if line[:1] in ".'" else line


def _help(program: Path, *words: str) -> str:
    return subprocess.run([program, *words, "--help"], capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main()
