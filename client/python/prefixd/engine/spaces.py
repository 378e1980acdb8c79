"""What the spaces of all adapters have in common: blocks for sliding windows, and the anchor."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from .._formats import FullLayer, raw
from .._plan import Plan

DEFAULT_BLOCK_TOKENS = 64
_BLOCKS_IN_A_WINDOW = 4  # at least: the block that a window begins in is kept whole


class Unsupported(Exception):
    """The reason why caches of a model are not shared."""


ANCHOR = FullLayer(1, 1, 0, [raw("float16")], values="none")
"""A layer of two bytes a token, for models in which no layer keeps a row for every token. After a
kill prefixd finds a sequence by what each of its blocks has in the arena, so each must have
something."""


def write_anchor(plan: Plan, layer: int, begin: int, end: int) -> None:
    plan.write_packed(layer, begin, key=np.zeros((1, 1, end - begin, 1), np.float16))


def block_tokens_for(windows: Collection[int]) -> int:
    """Returns a block size for the smallest window; 0, the daemon's default, if that is small
    enough. Raises Unsupported if no block is."""
    if not windows or min(windows) >= _BLOCKS_IN_A_WINDOW * DEFAULT_BLOCK_TOKENS:
        return 0
    for block_tokens in (32, 16):
        if min(windows) >= _BLOCKS_IN_A_WINDOW * block_tokens:
            return block_tokens
    raise Unsupported(
        f"a layer keeps the last {min(windows)} tokens, windows of "
        f"{_BLOCKS_IN_A_WINDOW * 16} and more can be shared"
    )
