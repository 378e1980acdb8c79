"""The control block of faults.cc: which calls of the daemon fail, and how often they did."""

from __future__ import annotations

import errno
import mmap
import struct
from pathlib import Path

KINDS = "open read write short sync rename resize unlink folder map lock thread".split()
_HEAD = struct.Struct("<Iiqqq")
_LOADED = struct.Struct("<Q")
_COUNTS = struct.Struct(f"<{len(KINDS)}Q")
_BYTES = 4096


class Control:
    """Of one daemon after the other: what is set stays until clear()."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(_BYTES))
        with open(path, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _BYTES)
        self.path = path
        self._clock_s = 0

    def fail(self, kinds: list[str], error: str, after: int, count: int) -> None:
        bits = sum(1 << KINDS.index(kind) for kind in kinds)
        # The calls last: until then none is meant.
        self._memory[: _HEAD.size] = _HEAD.pack(0, 0, after, count, self._clock_s)
        self._memory[: _HEAD.size] = _HEAD.pack(bits, getattr(errno, error), after, count, self._clock_s)

    def clear(self) -> None:
        self._memory[: _HEAD.size] = _HEAD.pack(0, 0, 0, 0, self._clock_s)

    def set_clock(self, ahead_s: int) -> None:
        self._clock_s = ahead_s
        self.clear()

    def loaded(self) -> int:
        """How many daemons have heard it."""
        return _LOADED.unpack_from(self._memory, _HEAD.size)[0]

    def injected(self) -> dict[str, int]:
        counts = _COUNTS.unpack_from(self._memory, _HEAD.size + _LOADED.size)
        return dict(zip(KINDS, counts))
