"""A terminal: what a program that draws on an xterm leaves on the screen. It knows the sequences that ncurses sends
for TERM=xterm, and raises for any other."""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections.abc import Callable

_CSI = re.compile(r"\x1b\[([?>]?)([0-9;]*)([@-~])")
_OTHER = re.compile(r"\x1b(?:[()][0AB]|[78=>MDE])")


def width_of(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


class Terminal:
    def __init__(self, columns: int, rows: int) -> None:
        self.modes: set[str] = set()  # private ones that are on: "1049" is the other screen
        self.hidden_cursor = False
        self.looks: set[str] = set()  # every parameter that SGR got
        self.wrapped = 0  # characters that did not fit into their line
        self.look = ""  # that of SGR now
        self._decode = codecs.getincrementaldecoder("utf-8")("strict").decode
        self._left = ""
        self._row = self._column = 0
        self._last = " "
        self.cells: list[list[str]] = []
        self.resize(columns, rows)

    def resize(self, columns: int, rows: int) -> None:
        """What stands in the upper left corner stays."""
        self.columns, self.rows = columns, rows
        kept = [(line + [" "] * columns)[:columns] for line in self.cells[:rows]]
        self.cells = kept + [[" "] * columns for _ in range(rows - len(kept))]
        self._row, self._column = min(self._row, rows - 1), min(self._column, columns - 1)
        self._top, self._bottom = 0, rows - 1

    def lines(self) -> list[str]:
        return ["".join(line).rstrip() for line in self.cells]

    def text(self) -> str:
        return "\n".join(self.lines())

    def feed(self, data: bytes) -> None:
        text = self._left + self._decode(data)
        at = 0
        while at < len(text):
            if text[at] != "\x1b":
                self._plain(text[at])
                at += 1
                continue
            found = _CSI.match(text, at) or _OTHER.match(text, at)
            if found is None:
                if len(text) - at > 32:
                    raise AssertionError(f"an unknown sequence: {text[at:at + 32]!r}")
                break
            self._obey(found)
            at = found.end()
        self._left = text[at:]

    def _plain(self, character: str) -> None:
        if character == "\r":
            self._column = 0
        elif character == "\n":
            self._down()
        elif character == "\b":
            self._column = max(0, self._column - 1)
        elif character == "\t":
            self._column = min(self.columns - 1, self._column // 8 * 8 + 8)
        elif character not in "\x00\x07\x0e\x0f":
            self._put(character)

    def _put(self, character: str) -> None:
        width = width_of(character)
        if width == 0:
            self.cells[self._row][max(0, self._column - 1)] += character
            return
        if self._column + width > self.columns:
            self.wrapped += 1
            self._column = 0
            self._down()
        self.cells[self._row][self._column : self._column + width] = [character] + [""] * (width - 1)
        self._column += width
        self._last = character

    def _down(self) -> None:
        if self._row == self._bottom:
            self._scroll(self._top, 1)
        else:
            self._row = min(self.rows - 1, self._row + 1)

    def _scroll(self, top: int, count: int) -> None:
        """Lines from `top` to the bottom of the region move up; down if `count` is negative."""
        for _ in range(abs(count)):
            blank = [" "] * self.columns
            if count > 0:
                del self.cells[top]
                self.cells.insert(self._bottom, blank)
            else:
                del self.cells[self._bottom]
                self.cells.insert(top, blank)

    def _obey(self, found: re.Match[str]) -> None:
        if found.re is _OTHER:
            if found.group() == "\x1bM":
                if self._row == self._top:
                    self._scroll(self._top, -1)
                else:
                    self._row -= 1
            return
        private, text, final = found.groups()
        numbers = [int(number) if number else 0 for number in text.split(";")]
        if private == "?" and final in "hl":
            self._mode(text.split(";"), final == "h")
        elif private == "" and final in _ACTIONS:
            _ACTIONS[final](self, numbers)
        elif private == "" and final == "m":
            self.look = text
            self.looks.update(text.split(";"))
        elif private == "" and final in "hlt":
            pass
        else:
            raise AssertionError(f"an unknown sequence: {found.group()!r}")

    def _mode(self, names: list[str], on: bool) -> None:
        for name in names:
            (self.modes.add if on else self.modes.discard)(name)
            if name == "25":
                self.hidden_cursor = not on
            if name == "1049":
                self.cells = [[" "] * self.columns for _ in range(self.rows)]

    def _move(self, row: int, column: int) -> None:
        self._row = max(0, min(self.rows - 1, row))
        self._column = max(0, min(self.columns - 1, column))

    def _erase_line(self, which: int) -> None:
        begin = 0 if which else self._column
        end = self._column + 1 if which == 1 else self.columns
        self.cells[self._row][begin:end] = [" "] * (end - begin)

    def _erase_screen(self, which: int) -> None:
        self._erase_line(which)
        for row in range(self.rows):
            if which == 2 or (which == 0 and row > self._row) or (which == 1 and row < self._row):
                self.cells[row] = [" "] * self.columns

    def _insert(self, count: int) -> None:
        line = self.cells[self._row]
        line[self._column : self._column] = [" "] * count
        del line[self.columns :]

    def _delete(self, count: int) -> None:
        line = self.cells[self._row]
        del line[self._column : self._column + count]
        line += [" "] * (self.columns - len(line))

    def _blank(self, count: int) -> None:
        end = min(self.columns, self._column + count)
        self.cells[self._row][self._column : end] = [" "] * (end - self._column)

    def _repeat(self, count: int) -> None:
        for _ in range(count):
            self._put(self._last)

    def _region(self, numbers: list[int]) -> None:
        self._top = max(1, numbers[0]) - 1
        self._bottom = (numbers[1] if len(numbers) > 1 and numbers[1] else self.rows) - 1
        self._move(0, 0)


def _n(numbers: list[int]) -> int:
    return max(1, numbers[0])


_ACTIONS: dict[str, Callable[[Terminal, list[int]], None]] = {
    "H": lambda t, n: t._move(_n(n) - 1, (n[1] if len(n) > 1 and n[1] else 1) - 1),
    "A": lambda t, n: t._move(t._row - _n(n), t._column),
    "B": lambda t, n: t._move(t._row + _n(n), t._column),
    "C": lambda t, n: t._move(t._row, t._column + _n(n)),
    "D": lambda t, n: t._move(t._row, t._column - _n(n)),
    "G": lambda t, n: t._move(t._row, _n(n) - 1),
    "d": lambda t, n: t._move(_n(n) - 1, t._column),
    "J": lambda t, n: t._erase_screen(n[0]),
    "K": lambda t, n: t._erase_line(n[0]),
    "X": lambda t, n: t._blank(_n(n)),
    "@": lambda t, n: t._insert(_n(n)),
    "P": lambda t, n: t._delete(_n(n)),
    "L": lambda t, n: t._scroll(t._row, -_n(n)),
    "M": lambda t, n: t._scroll(t._row, _n(n)),
    "S": lambda t, n: t._scroll(t._top, _n(n)),
    "T": lambda t, n: t._scroll(t._top, -_n(n)),
    "b": lambda t, n: t._repeat(_n(n)),
    "r": lambda t, n: t._region(n),
}
