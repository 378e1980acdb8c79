"""A canonical text of JSON values, the same for every spelling of a value, and its digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from math import isfinite
from numbers import Integral, Real
from typing import Any


def number(value: Any) -> float | None:
    """Returns `value` as a double; None if it is no number, not finite or not exact."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        double = float(value)
    except (OverflowError, TypeError, ValueError):
        return None
    return double + 0.0 if isfinite(double) and double == value else None  # so that -0.0 is 0.0


def canonical(value: Any) -> str:
    """Returns JSON without spaces, keys in order; 8 and 8.0 are one number. Also takes values that
    JSON cannot say.

    Does not recurse: a configuration may be nested more deeply than Python's stack.
    """
    said: list[str] = []
    left: list[tuple[bool, Any]] = [(False, value)]
    while left:
        is_said, item = left.pop()
        if is_said:
            said.append(item)
        elif isinstance(item, Mapping):
            pairs = sorted(((_scalar(name), inner) for name, inner in item.items()), key=_name)
            left += _reversed("{", [(f"{name}:", inner) for name, inner in pairs], "}")
        elif isinstance(item, (list, tuple)):
            left += _reversed("[", [("", inner) for inner in item], "]")
        else:
            said.append(_scalar(item))
    return "".join(said)


def digest(value: Any) -> str:
    """Returns the first 32 hex digits of the SHA-256 of the value's canonical text."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:32]


def _name(pair: tuple[str, Any]) -> str:
    return pair[0]


def _reversed(begin: str, items: list[tuple[str, Any]], end: str) -> list[tuple[bool, Any]]:
    """Returns a stack whose top is `begin`."""
    stack: list[tuple[bool, Any]] = [(True, begin)]
    for at, (prefix, item) in enumerate(items):
        stack += [(True, ("," if at else "") + prefix), (False, item)]
    stack.append((True, end))
    return stack[::-1]


def _scalar(value: Any) -> str:
    if value is None or isinstance(value, (bool, str)):
        return json.dumps(value)
    double = number(value)
    if double is not None:
        return repr(double)
    if isinstance(value, Integral):
        return hex(int(value))  # str() refuses very long ints
    if isinstance(value, Real):
        return repr(value)
    return f"!{type(value).__name__}{json.dumps(_shown(value))}"


def _shown(value: Any) -> str:
    try:
        return repr(value)
    except Exception:  # a foreign repr() may raise anything
        return ""
