"""Converts a caller's values to C. Raises Error if C would take a value for something else."""

from __future__ import annotations

from math import isfinite
from typing import Any

from ._errors import Error

UINT32, UINT64 = 2**32 - 1, 2**64 - 1


def _number(name: str, value: Any, low: int, high: int) -> int:
    """Returns a whole number from `low` to `high`; a float may hold it too."""
    try:
        number = int(value)
        if number == value and low <= number <= high:
            return number
    except (TypeError, ValueError, OverflowError):  # None, "x", NaN, infinity
        pass
    raise Error(f"{name} is {value!r}, must be a whole number from {low} to {high}")


def _real(name: str, value: Any) -> float:
    """Returns a finite number that is not negative."""
    try:
        number = float(value)
        if isfinite(number) and number >= 0:
            return number
    except (TypeError, ValueError, OverflowError):
        pass
    raise Error(f"{name} is {value!r}, must be a finite number from 0 on")


def _ms(name: str, value: Any) -> int:
    """Returns milliseconds for prefixd.h. None = 0, its default; a caller's 0 becomes 1, the
    shortest time."""
    return 0 if value is None else max(_number(name, value, 0, UINT32), 1)


def _text(name: str, value: str | bytes) -> bytes:
    """Returns the text for C. Raises Error if it holds a NUL, at which C would end it."""
    try:
        text = value if isinstance(value, bytes) else value.encode()
    except (AttributeError, UnicodeEncodeError) as error:
        raise Error(f"{name} is {value!r}: {error}") from None
    if b"\0" in text:
        raise Error(f"{name} is {value!r}, must be without NUL")
    return text
