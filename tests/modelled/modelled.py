#!/usr/bin/env python3
"""Instructions that fast decode of one tile (64 tokens, 4 query heads) takes, counted under qemu-user, and the cycles that
llvm-mca says a CPU takes for them. For machines that are not at hand.

Usage: modelled.py BUILD_DIR [CPU...], after `scripts/build arm64 decode_tiles` (or `release`). CPUs are LLVM's names. It wants the
Debian packages qemu-user-static and llvm-19, and a few minutes.

llvm-mca knows no caches and no branches, and takes a call's instructions one function after the other here: what a core overlaps
between them, and what it waits for memory, is not in its figures."""
import collections
import pathlib
import re
import subprocess
import sys
import tempfile

FORMATS = ("8/8", "8/4", "4/4", "q8_0", "q4_0", "f16")
# Fewer instructions than this in a row are a call's glue.
LEAST_PART = 400


def machine(program):
    """qemu, objdump and LLVM's triple for the program's machine."""
    elf = program.read_bytes()[:20]
    if elf[18] == 183:
        return "qemu-aarch64-static", "aarch64-linux-gnu-objdump", "aarch64", ["neoverse-v2", "neoverse-n1", "apple-m1"]
    return "qemu-x86_64-static", "objdump", "x86_64", ["znver3"]


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def disassemble(objdump, program):
    """Address: (function, instruction)."""
    found, function = {}, ""
    for line in output(objdump, "-d", "--no-show-raw-insn", str(program)).splitlines():
        if named := re.match(r"^[0-9a-f]+ <(.*)>:$", line):
            function = named.group(1)
        elif instruction := re.match(r"^\s+([0-9a-f]+):\t(.*)$", line):
            text = re.split(r"<|//|# ", instruction.group(2))[0].replace("\t", " ").strip()
            text = re.sub(r"^(b\.\w+|b|bl|j\w+|call|cbn?z \w+,|tbn?z \w+, #\d+,|adrp \w+,)\s+[0-9a-f]+$", r"\1 target", text)
            found[int(instruction.group(1), 16)] = (function, text)
    return found


def trace(qemu, command, known):
    """The bytes that the program prints, and the addresses of its instructions in order."""
    with tempfile.NamedTemporaryFile("r") as log:
        printed = output(qemu, "-cpu", "max", "-singlestep", "-d", "exec,nochain", "-D", log.name, *command)
        addresses = (int(at, 16) for at in re.findall(r"/([0-9a-f]{16})/", log.read()))
        return int(printed), [at for at in addresses if at in known]


def a_tile(addresses, tiles, more):
    """The addresses between two runs of an instruction that each tile runs once. `more` has two tiles more than `addresses`."""
    few, many = collections.Counter(addresses), collections.Counter(more)
    size = (len(more) - len(addresses)) / 2
    best = None
    for at in [at for at, count in many.items() if count - few[at] == 2 and count <= tiles]:
        second, first = [i for i in range(len(more) - 1, 0, -1) if more[i] == at][:2]
        if best is None or abs(second - first - size) < abs(len(best) - size):
            best = more[first:second]
        if abs(len(best) - size) < size / 50:
            break
    return best, round(size)


def cycles(instructions, triple, cpu):
    text = "target:\n" + "\n".join(instructions) + "\n"
    said = subprocess.run(["llvm-mca-19", f"-mtriple={triple}", f"-mcpu={cpu}", "-iterations=1", "-instruction-info=0", "-resource-pressure=0"],
                          input=text, capture_output=True, text=True, check=True).stdout
    return int(re.search(r"Total Cycles:\s+(\d+)", said).group(1))


def main():
    program = pathlib.Path(sys.argv[1]) / "decode_tiles"
    qemu, objdump, triple, usual = machine(program)
    cpus = sys.argv[2:] or usual
    known = disassemble(objdump, program)
    print("| pages | bytes | instructions | " + " | ".join(f"{cpu}: cycles, bytes a cycle" for cpu in cpus) + " |")
    print("|---" * (3 + len(cpus)) + "|")
    for name, mode in [(format_name, []) for format_name in FORMATS] + [("8/4", ["precise"])]:
        size, few = trace(qemu, [str(program), name, "256", *mode], known)
        _, more = trace(qemu, [str(program), name, "384", *mode], known)
        tile, instructions = a_tile(few, 6, more)
        parts = collections.defaultdict(list)  # consecutive instructions of one function
        last, number = "", 0
        for at in tile:
            if known[at][0] != last:
                last, number = known[at][0], number + 1
            parts[number].append(known[at][1])
        large = [part for part in parts.values() if len(part) >= LEAST_PART]
        figures = []
        for cpu in cpus:
            total = sum(cycles(part, triple, cpu) for part in large)
            figures.append(f"{total:,}, {size / total:.1f}")
        print(f"| {name}{', precise' if mode else ''} | {size:,} | {instructions:,} | " + " | ".join(figures) + " |", flush=True)


main()
