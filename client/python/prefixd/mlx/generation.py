"""The generators of mlx_lm.server, extended to save caches on the way.

The engine hands caches in where a segment of a prompt ends and where an answer ends. In between,
layers that keep only the last rows drop rows that a later turn needs. What is generated one request
at a time is handed in only at its end. So this module counts positions, and saves caches before
rows are dropped and where a prompt ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

from .prompt_cache import PromptCache

ModelKey = Callable[[], Hashable]
"""Returns the key by which the engine knows its model now."""


@dataclass
class _Request:
    begin: int  # tokens that its caches held at first
    tokens: int  # tokens that they hold now
    saved: int  # tokens of those that are saved


class _Positions:
    """Counts the tokens that the caches of each request hold, by what a batch generator answers."""

    def __init__(self) -> None:
        self._requests: dict[int, _Request] = {}
        self._prefilled, self._prefill_s = 0, 0.0

    def add(self, uid: int, held: int) -> None:
        self._requests[uid] = _Request(held, held, held)

    def forget(self, uid: int) -> None:
        self._requests.pop(uid, None)

    def advance(self, prompts: Any, generated: Any) -> int:
        """Takes one step's answers in. Returns the prompt tokens that were computed."""
        computed = 0
        for step in prompts:
            request = self._requests.get(step.uid)
            if request is None:
                continue
            before, request.tokens = request.tokens, request.begin + step.progress[0]
            computed += request.tokens - before
            if step.end_of_segment and not step.end_of_prompt:
                request.saved = request.tokens  # the engine hands it in
        for step in generated:
            if step.finish_reason is not None:
                self.forget(step.uid)
            elif step.uid in self._requests:
                self._requests[step.uid].tokens += 1
        return computed

    def due(self, prompts: Any, interval: int) -> list[int]:
        """Returns the requests to save now: after a prefill step, or every `interval` tokens."""
        in_prompt = {step.uid for step in prompts if not step.end_of_prompt}
        found = []
        for uid, request in self._requests.items():
            unsaved = request.tokens - request.saved
            if unsaved >= (1 if uid in in_prompt else interval):
                request.saved = request.tokens
                found.append(uid)
        return found

    def tokens_per_s(self, computed: int, seconds: float) -> float:
        """Adds a prefill. Returns the speed over all prompts so far."""
        self._prefilled += computed
        self._prefill_s += seconds
        return self._prefilled / self._prefill_s if self._prefill_s > 0 else 0.0


def saving_batch_generator(
    plain: type[Any], cache: PromptCache, model_key: ModelKey
) -> type[Any]:
    """Returns mlx_lm's BatchGenerator, extended to save requests before rows are dropped."""

    class SavingBatchGenerator(plain):
        def __init__(self, *arguments: Any, **named: Any):
            super().__init__(*arguments, **named)
            self._positions = _Positions()

        def insert_segments(self, segments: Any, *arguments: Any, **named: Any) -> Any:
            uids = super().insert_segments(segments, *arguments, **named)
            held = named.get("all_tokens") or [[] for _ in uids]
            for uid, tokens in zip(uids, held):
                self._positions.add(uid, len(tokens))
            return uids

        def next(self) -> Any:
            began = time.perf_counter()
            prompts, generated = super().next()
            computed = self._positions.advance(prompts, generated)
            if computed and not generated:
                seconds = time.perf_counter() - began
                cache.prefill_tokens_per_s = self._positions.tokens_per_s(computed, seconds)
            interval = cache.save_interval(model_key())
            due = self._positions.due(prompts, interval) if interval else []
            if due:
                for caches, tokens in self.extract_cache(due).values():
                    cache.save_early(model_key(), tokens, caches)
            return prompts, generated

        def remove(self, uids: Any, *arguments: Any, **named: Any) -> Any:
            for uid in uids:
                self._positions.forget(uid)
            return super().remove(uids, *arguments, **named)

    return SavingBatchGenerator


def saving_stream_generate(
    plain: Callable[..., Iterator[Any]], cache: PromptCache, model_key: ModelKey
) -> Callable[..., Iterator[Any]]:
    """Returns mlx_lm's stream_generate, extended to save. mlx_lm.server calls it after a lookup of
    the same request."""

    def generate(**named: Any) -> Iterator[Any]:
        if named.get("draft_model") is not None:  # then caches run ahead of what is accepted
            return plain(**named)
        return _saving(plain, cache, model_key(), named)

    return generate


def _saving(
    plain: Callable[..., Iterator[Any]], cache: PromptCache, model: Hashable, named: dict[str, Any]
) -> Iterator[Any]:
    tokens = list(cache.last_asked)
    held = len(tokens) - len(named["prompt"])
    caches, report = named["prompt_cache"], named["prompt_progress_callback"]
    interval = cache.save_interval(model)
    saved = held

    def progress(done: int, total: int) -> None:
        nonlocal saved
        ends = done == total - 1
        if 0 < done < total and (ends or interval):  # at `total` a token more is computed
            saved = held + done
            cache.save_early(model, tokens[:saved], caches)
        report(done, total)

    for response in plain(**{**named, "prompt_progress_callback": progress}):
        tokens.append(response.token)
        cache.prefill_tokens_per_s = response.prompt_tps
        if interval and len(tokens) - saved >= interval and response.finish_reason is None:
            saved = len(tokens)
            cache.save_early(model, tokens, caches)
        yield response
