"""SharedCaches: the caches of a model that all its processes share through prefixd."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import mlx.core as mx
import prefixd

from . import geometry
from .geometry import leaves_of
from .layers import Shorter, WindowPages, arrays_of
from .options import Options
from .part import Part, Stored, content_of
from .tokens import Prompt


class SharedCaches:
    """The prompt cache of a model, or of a model and its draft model: a list of cache objects,
    first those of the model, then those of the draft. opening.open_model() makes it."""

    def __init__(self, parts: Sequence[Part]):
        self._parts = parts

    @property
    def error(self) -> str:
        """Why nothing is shared, for good; "" while a daemon may serve every model of it."""
        return next((part.space.error for part in self._parts if part.space.error), "")

    @property
    def save_interval(self) -> int:
        """Tokens after which a cache must be saved again, before it drops rows that are missed; 0
        if its layers keep every row."""
        slack = [
            pages.window.window - pages.block_tokens
            for part in self._parts
            for pages in part.pages
            if isinstance(pages, WindowPages)
        ]
        return min(slack, default=0)

    def fetch(
        self, prompt: Prompt, prefill_tokens_per_s: float = 0.0
    ) -> tuple[list[Any] | None, int]:
        """Returns cache objects with the longest prefix that is here, and its number of tokens;
        never the last token. Returns None and 0 if nothing is here. `prefill_tokens_per_s`: the
        speed at which they would have been computed, for the daemon's statistics."""
        if len(prompt.tokens) < 2:
            return None, 0
        with contextlib.ExitStack() as held:
            leases = [held.enter_context(lease) for lease in self._acquire(prompt)]
            count = min(lease.wait_all() for lease in leases)
            if not count or prompt.outside_images(count) != count:
                return None, 0
            try:
                found = [part.gather(lease, count) for part, lease in zip(self._parts, leases)]
            except Shorter:
                return None, 0
            for lease in leases:
                lease.release(used_tokens=count, prefill_tokens_per_s=prefill_tokens_per_s)
        prefix = prompt.cut(count)
        caches = [
            cache for part, own in zip(self._parts, found) for cache in part.restore(prefix, own)
        ]
        mx.eval([leaf.state for leaf in leaves_of(caches)])
        return caches, count

    def store(self, prompt: Prompt, caches: Sequence[Any], turn_ends: Sequence[int] = ()) -> Stored:
        """Saves what the caches hold of `prompt`, which may be less than all of it. Neither
        converts nor sends bytes that are stored already."""
        return self.prepare_store(prompt, caches, turn_ends)()

    def prepare_store(
        self, prompt: Prompt, caches: Sequence[Any], turn_ends: Sequence[int] = ()
    ) -> Callable[[], Stored]:
        """store() in two steps. This call, on the engine's thread, computes what the caches hold.
        The returned function saves it, on any thread, whatever becomes of the caches meanwhile."""
        split = list(self._split(geometry.unbatched(caches)))
        taken = [part.take(own) for part, own in split]
        mx.eval(arrays_of(one for own in taken for one in own))

        def store_all() -> Stored:
            stored = [
                part.store(prompt, own, turn_ends) for (part, _), own in zip(split, taken)
            ]
            return Stored(
                held=all(one.held for one in stored),
                why=next((one.why for one in stored if one.why), ""),
                sequence_ends=stored[0].sequence_ends,
                bytes=sum(one.bytes for one in stored),
            )

        return store_all

    def announce(self, prompt: Prompt) -> list[prefixd.Plan]:
        """Tells others that this process is computing `prompt`, until the plans are abandoned."""
        return [
            part.space.reserve(
                prompt.tokens, content=content_of(prompt), deadline_ms=part.options.deadline_ms
            )
            for part in self._parts
        ]

    def _acquire(self, prompt: Prompt) -> list[prefixd.Lease]:
        """Returns leases of one length on all but the last token, which is computed for its
        logits."""
        asked = _asked(prompt, self._parts[0].options)
        if len(self._parts) == 1:
            (part,) = self._parts
            return [part.space.acquire(prompt.tokens, readable=part.readable, **asked)]
        spaces, readable = zip(*((part.space, part.readable) for part in self._parts))
        return prefixd.acquire_set(spaces, prompt.tokens, readable=list(readable), **asked)

    def _split(self, caches: Sequence[Any]) -> Iterator[tuple[Part, Sequence[Any]]]:
        wanted = sum(part.objects for part in self._parts)
        if len(caches) != wanted:
            raise geometry.Unsupported(f"{len(caches)} caches, its layers are {wanted}")
        begin = 0
        for part in self._parts:
            yield part, caches[begin : begin + part.objects]
            begin += part.objects


def _asked(prompt: Prompt, options: Options) -> dict[str, Any]:
    return {
        "content": content_of(prompt),
        "max_cached_tokens": len(prompt.tokens) - 1,
        "deadline_ms": options.deadline_ms,
        "load_deadline_ms": options.load_deadline_ms,
        "wait_pending_ms": options.wait_pending_ms,
    }
