"""Groups of vLLM's layers. The layers of a group share a request's table of pages: of all its
tokens, of those in a window, or one of a state."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

Pages = NDArray[np.int32]

NO_PAGE = 0  # vLLM's null page: stands where no page is needed
_KNOWN = (FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec, MambaSpec)


@dataclass(frozen=True)
class Group:
    """`page`: tokens of one of its pages. `window`: tokens that one attends on, itself among them;
    0: all. `has_states`: a page holds the state after its last token, and no rows."""

    page: int
    window: int = 0
    has_states: bool = False

    @staticmethod
    def of(spec: Any) -> Group:
        one = next(specs_of(spec))
        # A layer with a window whose pages are all kept is as good as one without.
        window = one.sliding_window if isinstance(one, SlidingWindowSpec) else 0
        return Group(spec.block_size, window, isinstance(one, MambaSpec))

    @property
    def stored_window(self) -> int:
        """The window in whole pages: they are filled or not at all."""
        return -(-self.window // self.page) * self.page

    def pages(self, ids: Sequence[int], end: int) -> Pages:
        return np.array(ids[: end // self.page], np.int32)


@dataclass(frozen=True)
class State:
    """After a step a page of a group holds the state after so many tokens."""

    group: int
    page: int
    tokens: int


@dataclass(frozen=True)
class Groups:
    each: tuple[Group, ...]

    @staticmethod
    def of(kv_cache_config: Any) -> Groups:
        return Groups(tuple(Group.of(one.kv_cache_spec) for one in kv_cache_config.kv_cache_groups))

    @property
    def page(self) -> int:
        """Tokens of the shortest piece that is whole pages in every group."""
        return math.lcm(*(one.page for one in self.each))

    @property
    def cuts_anywhere(self) -> bool:
        """True if what is there of a prefix is there of every shorter one, and pages have numbers
        that tell whose they are."""
        return len(self.each) == 1 and not self.each[0].window and not self.each[0].has_states

    def pages(self, ids: Sequence[Sequence[int]], end: int) -> tuple[Pages, ...]:
        """Returns the pages of each group up to token `end`, of all that it has."""
        return tuple(one.pages(own, end) for one, own in zip(self.each, ids, strict=True))

    def states(self, ids: Sequence[Sequence[int]], tokens: int) -> Iterator[State]:
        """Yields the states after so many tokens that the pages `ids` hold once they are computed:
        those of a request whose step ends with a page."""
        for number, (one, own) in enumerate(zip(self.each, ids, strict=True)):
            at = tokens // one.page - 1
            if one.has_states and not tokens % self.page and 0 <= at < len(own):
                if own[at] != NO_PAGE:
                    yield State(number, own[at], tokens)

    def held(self, ids: Sequence[Sequence[int]]) -> int:
        """Returns for how many tokens there are pages."""
        return min(len(own) * one.page for one, own in zip(self.each, ids, strict=True))


def why_not(kv_cache_config: Any) -> str:
    """Returns why these groups cannot be shared; "" if they can."""
    for group in kv_cache_config.kv_cache_groups:
        for one in specs_of(group.kv_cache_spec):
            if type(one) not in _KNOWN:
                return f"a layer keeps a {type(one).__name__}"
            if isinstance(one, MambaSpec) and one.mamba_cache_mode != "align":
                return "states are kept at no page's end (mamba_cache_mode must be 'align')"
    return "" if kv_cache_config.kv_cache_groups else "it keeps no caches"


def specs_of(spec: Any) -> Iterator[Any]:
    """Yields what the layers of a group keep."""
    if isinstance(spec, UniformTypeKVCacheSpecs):
        yield from spec.kv_cache_specs.values()
    else:
        yield spec


def first_page(pages: Pages) -> int:
    """Returns the index of the first page that is there; their number if none is."""
    there = np.flatnonzero(pages != NO_PAGE)
    return int(there[0]) if there.size else len(pages)
