"""Time to the first token after everything was killed, bytes on disk, prefixes that part and a second server: prefixd-llama
beside hearth and a server with neither, in one run. Usage: bench/llama/run BUILD_DIR [--repeats N] [--only LINE...] [--kv TYPE]

Ends with 1 if an answer differs, or if prefixd does not beat hearth in one of the lines."""

from __future__ import annotations

import argparse
import platform
import re
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import make_gguf
from servers import DATA, text
from systems import Hearth, Messages, Prefixd, Said, System

LENGTHS = (1000, 3000, 7000)
ANSWER_TOKENS = 16
RESTORES = 9
MOST_OF_OWN_LOAD = 1.5


@dataclass
class Table:
    lines: list[tuple[str, ...]] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)

    def add(self, name: str, cold: str, hearth: str, prefixd: str, holds: bool | None) -> None:
        verdict = "" if holds is None else "holds" if holds else "MISSED"
        self.lines.append((name, cold, hearth, prefixd, verdict))
        if holds is False:
            self.missed.append(name)
        print(f"{name}: alone {cold}, hearth {hearth}, prefixd {prefixd} {verdict}", file=sys.stderr)

    def text(self) -> str:
        rows = ["| line | server alone | hearth | prefixd | |", "|---|---|---|---|---|"]
        return "\n".join(rows + ["| " + " | ".join(line) + " |" for line in self.lines])


def conversation(length: int, question: int = 0) -> Messages:
    """A document, another one for each length, and a question about it."""
    begin = sum(each for each in LENGTHS if each < length)
    return [
        {"role": "system", "content": text(begin, length)},
        {"role": "user", "content": text(90_000 + 200 * question, 60)},
    ]


def followed(messages: Messages, answer: str, number: int) -> Messages:
    more = {"role": "user", "content": text(70_000 + 100 * number, 40)}
    return [*messages, {"role": "assistant", "content": answer}, more]


def median(said: Sequence[Said]) -> float:
    return statistics.median(each.ms for each in said)


def shown(said: Sequence[Said]) -> str:
    cached, computed = said[0].cached, said[0].computed
    return f"{median(said):.1f} ms, {cached} of {cached + computed} tokens cached"


class Comparison:
    """The server alone is asked once for each line: it computes everything."""

    def __init__(self, alone: System, hearth: Hearth, prefixd: Prefixd, repeats: int):
        self.alone, self.hearth, self.prefixd = alone, hearth, prefixd
        self.repeats, self.table = repeats, Table()
        self.answers: dict[int, str] = {}

    @property
    def systems(self) -> list[System]:
        return [self.alone, self.hearth, self.prefixd]

    def ask(self, systems: Sequence[System], messages: Messages, tokens: int = 1) -> list[Said]:
        said = []
        for system in systems:
            said.append(system.ask(messages, tokens))
            system.settle()  # or its work would slow the next one down
        if len({each.text for each in said}) != 1:
            names = [f"{s.name}: {each.text!r}" for s, each in zip(systems, said, strict=True)]
            raise AssertionError("answers differ: " + ", ".join(names))
        return said

    def add_times(self, name: str, alone: Said, asked: list[list[Said]]) -> None:
        hearth, prefixd = zip(*asked, strict=True)
        holds = median(prefixd) < median(hearth)
        self.table.add(name, shown([alone]), shown(hearth), shown(prefixd), holds)

    def first_turns(self) -> None:
        for length in LENGTHS:
            said = self.ask(self.systems, conversation(length), ANSWER_TOKENS)
            self.answers[length] = said[0].text

    def follow(self, number: int, systems: Sequence[System]) -> dict[int, list[Said]]:
        for system in systems:
            system.kill()
            system.start()
        return {
            length: self.ask(systems, followed(conversation(length), self.answers[length], number))
            for length in LENGTHS
        }

    def after_a_kill(self) -> None:
        whole = self.follow(0, self.systems)
        asked = [self.follow(n, self.systems[1:]) for n in range(1, self.repeats)]
        for length in LENGTHS:
            alone, *others = whole[length]
            both = [others, *(each[length] for each in asked)]
            self.add_times(f"L1 follow-up of {length} tokens after kill -9 of all", alone, both)

    def other_questions(self) -> None:
        for length in LENGTHS:
            alone, *others = self.ask(self.systems, conversation(length, 1))
            self.add_times(f"L2 another question about the same {length} tokens", alone, [others])

    def disk(self) -> None:
        """Eight questions about one document."""
        both = self.systems[1:]
        before = [system.bytes_on_disk() for system in both]
        for question in range(2, 10):
            self.ask(both, conversation(LENGTHS[0], question))
        after = [system.bytes_on_disk() for system in both]
        hearth, prefixd = (b - a for a, b in zip(before, after, strict=True))
        name = f"bytes on disk for 8 more questions about {LENGTHS[0]} tokens"
        sizes = [f"{each / 1e6:.2f} MB" for each in (hearth, prefixd)]
        self.table.add(name, "-", *sizes, prefixd < hearth)

    def second_server(self) -> None:
        length = LENGTHS[-1]
        messages = followed(conversation(length), self.answers[length], 0)
        alone, *others = self.ask([each.another() for each in self.systems], messages)
        self.add_times(f"L3 the follow-up of {length} tokens at a second server", alone, [others])

    def restores(self) -> None:
        """Two conversations take turns in one slot. Beside it, the server loads a file of the
        same tokens that it saved itself."""
        asked = [conversation(length) for length in LENGTHS[-2:]]
        self.prefixd.log_ends_here()
        for _ in range(RESTORES):
            for messages in asked:
                self.ask([self.prefixd], messages)
        ours = self.prefixd.restores()
        for number, messages in enumerate(asked):
            self.ask([self.prefixd], messages)
            own = statistics.median(self.prefixd.load_own_file() for _ in range(RESTORES))
            whole = statistics.median(ours[len(asked) + number :: len(asked)])  # the first is cold
            name = f"D4 restoring {LENGTHS[number - 2]} tokens / the server's loading of its own file"
            ratio = f"{whole / own:.2f} ({whole:.1f} ms / {own:.1f} ms)"
            self.table.add(name, "1.00", "-", ratio, whole <= MOST_OF_OWN_LOAD * own)


def cpu() -> str:
    names = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return f"{names[0] if names else platform.processor()}, {len(names)} cores"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench/llama/run BUILD_DIR")
    parser.add_argument("--repeats", type=int, default=5, help="kills; medians are shown")
    parser.add_argument("--only-restores", action="store_true", help="no other line")
    parser.add_argument("--kv", default="Q8_0", choices=("F16", "Q8_0", "Q4_0"), help="K and V")
    return parser.parse_args()


def compare(comparison: Comparison, only_restores: bool) -> None:
    comparison.first_turns()
    if not only_restores:
        comparison.after_a_kill()
        comparison.other_questions()
        comparison.disk()
        comparison.second_server()
    comparison.restores()


def main() -> int:
    asked = arguments()
    folder = Path(tempfile.mkdtemp(prefix="prefixd_bench_llama_", dir=Path.cwd()))
    systems: list[System] = []
    try:
        model = folder / "bible.gguf"
        make_gguf.write(DATA / "model", model)
        for each in (System, Hearth, Prefixd):
            systems.append(each(folder, model, k=asked.kv, v=asked.kv))
        comparison = Comparison(*systems, asked.repeats)
        compare(comparison, asked.only_restores)
        print(f"{cpu()}; K and V {asked.kv}; medians of {asked.repeats} kills\n")
        print(comparison.table.text())
        return 1 if comparison.table.missed else 0
    finally:
        for system in systems:
            system.remove()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
