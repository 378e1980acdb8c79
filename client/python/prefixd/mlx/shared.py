"""SharedCaches: what every process that serves a model has of its caches, through prefixd."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import mlx.core as mx

from . import geometry
from .pages import Shorter
from .part import Part, Stored
from .tokens import Prompt


class SharedCaches:
    """The prompt cache of a model, or of a model and its draft model: a list of one cache object
    for each layer, of the one then of the other. opening.open_model() makes it."""

    def __init__(self, parts: Sequence[Part]):
        self._parts = parts

    def fetch(self, prompt: Prompt) -> tuple[list[Any] | None, int]:
        """Cache objects with the longest prefix that is here, and its tokens: not the last one."""
        if len(prompt.tokens) < 2:
            return None, 0
        with contextlib.ExitStack() as held:
            leases = [held.enter_context(part.acquire(prompt)) for part in self._parts]
            count = prompt.outside_images(min(lease.wait_all() for lease in leases))
            if not count:
                return None, 0
            try:
                rows = [part.gather(lease, count) for part, lease in zip(self._parts, leases)]
            except Shorter:
                return None, 0
        prefix = prompt.cut(count)
        caches = [
            cache for part, own in zip(self._parts, rows) for cache in part.restore(prefix, own)
        ]
        mx.eval([(cache.keys, cache.values) for cache in caches])
        return caches, count

    def store(self, prompt: Prompt, caches: Sequence[Any], turn_ends: Sequence[int] = ()) -> Stored:
        """Saves what the caches hold of `prompt`, which may be less than all of it. Bytes that are
        here already are neither converted nor sent."""
        geometry.check_supported(caches)
        stored = [part.store(prompt, own, turn_ends) for part, own in self._split(caches)]
        return Stored(
            held=all(one.held for one in stored),
            sequence_ends=stored[0].sequence_ends,
            bytes=sum(one.bytes for one in stored),
        )

    def _split(self, caches: Sequence[Any]) -> Iterator[tuple[Part, Sequence[Any]]]:
        wanted = sum(len(part.layers) for part in self._parts)
        if len(caches) != wanted:
            raise geometry.Unsupported(f"{len(caches)} caches, its layers are {wanted}")
        begin = 0
        for part in self._parts:
            yield part, caches[begin : begin + len(part.layers)]
            begin += len(part.layers)
