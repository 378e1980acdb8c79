"""The connector in vLLM's scheduler: what prefixd has of a request, what is loaded and saved."""

from __future__ import annotations

import hashlib
import logging
import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes

import prefixd

from ..engine.own_daemon import StartError, start_if_absent
from ..engine.spaces import DEFAULT_BLOCK_TOKENS
from .adapters import Adapters
from .events import BlockEvents
from .groups import Groups, State
from .identity import Rank
from .lookups import Answer, Lookups, Question, tokens_of
from .messages import Hello, Load, Prompt, Report, Save, Tokens, Trace, Work
from .options import Options
from .spaces import Spaces
from .watching import Watch

log = logging.getLogger("vllm.prefixd")

_PATIENCE_S = 0.0003  # that the scheduler waits for an answer before it goes on with other requests
_PATIENCE_ALONE_S = 0.002  # as long where there is none: a step without work takes about as long


@dataclass
class _Tracked:
    """A request that vLLM has not finished."""

    request: Any
    content: tuple[prefixd.Content, ...]
    ids: array[int] = field(default_factory=lambda: array("I"))
    answer: Answer | None = None
    local: int = 0  # tokens that vLLM had itself when it was asked last
    saved: int = 0  # tokens that need no save
    has_saved: bool = False
    beside: bool = False  # what is to be loaded is loaded beside the engine's steps
    loaded_at: int = -1  # its number of preemptions when it was loaded


def _start(address: str) -> None:
    try:
        if start_if_absent(address):
            log.info("prefixd was started at %s", address)
    except StartError as error:
        log.warning("prompts are computed until a prefixd runs at %s: %s", address, error)


class SchedulerSide:
    """All calls come from the scheduler's thread."""

    def __init__(self, vllm_config: Any, kv_cache_config: Any, options: Options) -> None:
        self._config, self._options = vllm_config, options
        self._groups = Groups.of(kv_cache_config)
        self._page = self._groups.page
        self._unit = self._page  # a sequence that goes on is saved in multiples of it
        self._spaces: Spaces | None = None
        self._bytes_per_token = 0
        self._adapters = Adapters(vllm_config.lora_config)
        self._lookups = Lookups(self._failed)
        self._requests: dict[str, _Tracked] = {}
        self._alive: set[str] = set()  # requests that vLLM has not finished, shareable or not
        self._loads: list[Load] = []
        self._parting: list[Save] = []
        self._saves = 0  # made so far
        self._events: BlockEvents | None = None
        self._watch: Watch | None = None
        wants = vllm_config.kv_events_config
        if wants and wants.enable_kv_cache_events:
            _, unit = resolve_kv_cache_block_sizes(kv_cache_config, vllm_config)
            self._events = BlockEvents(unit)

    def greet(self, hellos: Mapping[tuple[int, int], Hello]) -> None:
        """Learns how the workers, by pipeline and tensor rank, keep their caches."""
        parallel = self._config.parallel_config
        sizes = parallel.pipeline_parallel_size, parallel.tensor_parallel_size
        if any(hello.why_not for hello in hellos.values()):
            return
        ranks = [
            Rank((tensor, sizes[1]), (pipeline, sizes[0]), hello)
            for (pipeline, tensor), hello in sorted(hellos.items())
        ]
        if self._options.start:
            _start(self._options.address)
        self._bytes_per_token = max(hello.bytes_per_token for hello in hellos.values())
        blocks = [hello.block_tokens or DEFAULT_BLOCK_TOKENS for hello in hellos.values()]
        self._unit = math.lcm(self._page, *blocks)
        self._spaces = Spaces(self._config, self._options, ranks, "scheduler")
        if self._events is not None:
            self._watch = Watch(self._events.sequences, self._still_there)

    def arrived(self, request: Any) -> None:
        self._alive.add(request.request_id)

    def matched(self, request: Any, computed: int) -> tuple[int | None, bool]:
        """Returns how many tokens beyond `computed` prefixd has, in whole pages, never the last
        token; and whether they are loaded beside the engine's steps. None: not known yet."""
        most = (request.num_tokens - 1) // self._page * self._page
        tracked = self._track(request)
        if tracked is None:
            return 0, False
        tracked.local = tracked.saved = computed
        if most <= computed or request.skip_reading_prefix_cache:
            return 0, False
        if tracked.loaded_at == request.num_preemptions:
            return 0, False  # a load of it failed
        answer = self._answer(tracked)
        if answer is None:
            return 0, False
        is_alone = self._alive == {request.request_id}
        if not answer.wait(_PATIENCE_ALONE_S if is_alone else _PATIENCE_S):
            late = answer.age_s * 1000 > self._options.lookup_deadline_ms
            return (0 if late else None), False
        if answer.failed:
            return 0, False
        found = answer.tokens // self._page * self._page
        if self._events is not None:
            known = self._prompt(tracked, found, answer.adapter)
            self._events.seen(request, known, no_more=self._groups.cuts_anywhere)
        tracked.saved = min(found, computed)  # prefixd may have lost what vLLM has
        more = min(found, most) - computed
        if more <= 0:
            return 0, False
        large = more * self._bytes_per_token >= self._options.async_load_bytes
        # vLLM knows requests alone, and no pages, as failed where pages are of several kinds.
        tracked.beside = large or answer.on_ssd or not self._groups.cuts_anywhere
        return more, tracked.beside

    def allocated(self, request: Any, blocks: Any, external: int) -> None:
        """Notes the pages into which `external` tokens are to be loaded."""
        tracked = self._requests.get(request.request_id)
        if tracked is None or external == 0 or tracked.answer is None:
            return
        end = tracked.local + external
        tracked.loaded_at = request.num_preemptions
        tracked.saved = max(tracked.saved, end) if tracked.saved == tracked.local else tracked.saved
        self._loads.append(
            Load(
                request.request_id,
                self._prompt(tracked, end, tracked.answer.adapter),
                tracked.local,
                self._groups.pages(blocks.get_block_ids(), end),
                tracked.beside,
            )
        )

    def work(self, scheduled: Mapping[str, int], block_ids: Any) -> Work:
        """Returns what the workers are to do in this step. `scheduled`: tokens of each request."""
        saves = [
            save
            for request_id, count in scheduled.items()
            for save in self._save(request_id, count, block_ids)
        ]
        work = Work(self._loads, saves, self._parting)
        self._loads, self._parting = [], []
        return work

    def finished(self, request: Any, ids: Sequence[Sequence[int]]) -> None:
        """Saves the whole pages that are left; the last, partial one is left to vLLM."""
        self._alive.discard(request.request_id)
        tracked = self._requests.pop(request.request_id, None)
        if tracked is None or self._spaces is None:
            return
        known = min(request.num_computed_tokens, request.num_tokens, self._groups.held(ids))
        end = known // self._page * self._page
        has_end = end > tracked.saved or end == tracked.saved and tracked.has_saved
        adapter = self._adapter_now(request) if has_end else None
        if adapter is not None and request.num_computed_tokens >= tracked.saved:
            self._parting.append(self._save_of(tracked, end, ids, adapter, is_last=True))

    def heard(self, report: Report) -> None:
        if self._events is not None:
            for number, end in report.saved.items():
                self._events.saved(number, end)

    @property
    def waits_for_saves(self) -> bool:
        """True while subscribers are to be told of saves that have not ended."""
        return self._events is not None and self._events.waits

    def take_events(self) -> Iterable[Any]:
        return () if self._events is None else self._events.take()

    def close(self) -> None:
        self._lookups.close()
        if self._watch is not None:
            self._watch.close()
        if self._spaces is not None:
            self._spaces.close()

    def _track(self, request: Any) -> _Tracked | None:
        """Returns what is known of the request; None if its caches are not shared."""
        if self._spaces is None or not _is_shareable(request):
            return None
        tracked = self._requests.get(request.request_id)
        if tracked is None:
            tracked = _Tracked(request, tuple(_content_of(request)))
            self._requests[request.request_id] = tracked
        return tracked

    def _answer(self, tracked: _Tracked) -> Answer | None:
        """Returns the answer to the request as it is now; None if prefixd does not answer now."""
        answer, request = tracked.answer, tracked.request
        if answer is not None and not answer.is_old and len(answer.ids) in (0, request.num_tokens):
            return answer
        assert self._spaces is not None
        if self._spaces.is_silent:
            return None
        content = tracked.content
        tracked.answer = self._lookups.ask(
            Answer(request.all_token_ids[:], lambda answer: self._look_up(answer, request, content))
        )
        return tracked.answer

    def _look_up(
        self, answer: Answer, request: Any, content: tuple[prefixd.Content, ...]
    ) -> prefixd.Match | None:
        lora = request.lora_request
        adapter = self._adapters.look_at(lora) if lora is not None else b""
        if lora is not None and not adapter:
            return None
        answer.adapter = adapter
        spaces = self._spaces and self._spaces.of(request.cache_salt or "", adapter)
        if not spaces or self._spaces is None or self._spaces.is_silent:
            return None
        tokens = tokens_of(answer.ids)
        # The last token is computed for its logits. Where prefixes can be cut it is asked for all
        # the same: what is there need not be saved again.
        most = len(tokens) if self._groups.cuts_anywhere else len(tokens) - 1
        with prefixd.trace(*_trace_of(request)):
            return self._question(tokens, content, most).ask(spaces, self._spaces.heard)

    def _still_there(self, prompt: Prompt) -> int | None:
        """Returns how much of it prefixd has; None if it does not answer now."""
        spaces = self._spaces and self._spaces.of(prompt.salt, prompt.adapter)
        if not spaces or self._spaces is None or self._spaces.is_silent:
            return None
        question = self._question(prompt.tokens, prompt.content, len(prompt.tokens))
        found = question.ask(spaces, self._spaces.heard)
        return None if found is None or found.error else found.restorable_tokens

    def _question(self, tokens: Tokens, content: Sequence[prefixd.Content], most: int) -> Question:
        groups, deadline_ms = self._groups, self._options.lookup_deadline_ms
        return Question(tokens, content, most, groups.page, groups.cuts_anywhere, deadline_ms)

    def _prompt(self, tracked: _Tracked, end: int, adapter: bytes) -> Prompt:
        request = tracked.request
        if len(tracked.ids) < end:
            known = tracked.answer.ids if tracked.answer is not None else array("I")
            if not tracked.ids and len(known) >= end:
                tracked.ids = known
            else:
                tracked.ids.extend(request.all_token_ids[len(tracked.ids) : request.num_tokens])
        content = tuple(item for item in tracked.content if item.start < end)
        tokens = tokens_of(tracked.ids, end)
        salt = request.cache_salt or ""
        return Prompt(tokens, content, salt, adapter, _trace_of(request))

    def _adapter_now(self, request: Any) -> bytes | None:
        """Returns the digest of the request's adapter, b"" where it has none; None if it is not
        shared, or not any more."""
        lora = request.lora_request
        return b"" if lora is None else self._adapters.digest(lora) or None

    def _save(self, request_id: str, count: int, block_ids: Any) -> Iterable[Save]:
        tracked = self._requests.get(request_id)
        if tracked is None:
            return
        request = tracked.request
        # A failed load or a preemption takes tokens back, which are computed and saved again.
        tracked.saved = min(tracked.saved, request.num_computed_tokens)
        known = min(request.num_computed_tokens + count, request.num_tokens)
        end = known // self._unit * self._unit
        adapter = self._adapter_now(request) if end > tracked.saved else None
        if adapter is None:
            return
        ids = block_ids.get_block_ids(request_id)
        # vLLM offers the states that it keeps itself, and keeps none at the end of an answer.
        offered = block_ids.boundary_state_offloads.get(request_id, ())
        states = {
            *(State(*one) for one in offered if one[2] % self._page == 0),
            *self._groups.states(ids, known),
        }
        states = {one for one in states if tracked.saved < one.tokens <= end}
        yield self._save_of(tracked, end, ids, adapter, False, states)

    def _save_of(
        self,
        tracked: _Tracked,
        end: int,
        ids: Sequence[Sequence[int]],
        adapter: bytes,
        is_last: bool,
        states: Iterable[State] = (),
    ) -> Save:
        begin = tracked.saved // self._page * self._page
        tracked.saved, tracked.has_saved = end, True
        self._saves += 1
        prompt = self._prompt(tracked, end, adapter)
        if self._events is not None:
            self._events.will_save(self._saves, tracked.request, prompt)
        request, pages = tracked.request, self._groups.pages(ids, end)
        return Save(
            self._saves,
            request.request_id,
            prompt,
            begin,
            pages,
            is_last,
            tuple(states),
            self._turn_ends(request, end),
        )

    def _turn_ends(self, request: Any, end: int) -> tuple[int, ...]:
        """Returns where the same prompt would go on, if that needs a window or a state of its
        own."""
        most = (request.num_prompt_tokens - 1) // self._page * self._page
        return () if self._groups.cuts_anywhere or not 0 < most < end else (most,)

    def _failed(self, error: Exception) -> None:
        log.warning("a lookup ended unexpectedly: %s: %s", type(error).__name__, error)


def _is_shareable(request: Any) -> bool:
    """False for requests whose rows are decided by more than tokens, images and an adapter."""
    return (
        request.prompt_embeds is None
        and request.prompt_is_token_ids is None
        and request.prompt_token_ids is not None
        and not request.resumable
    )


def _trace_of(request: Any) -> Trace:
    """vLLM passes on the headers of a request if it exports traces itself."""
    headers = request.trace_headers or {}
    return headers.get("traceparent", ""), headers.get("tracestate", "")


def _content_of(request: Any) -> Iterable[prefixd.Content]:
    for feature in request.mm_features:
        where = feature.mm_position
        digest = hashlib.sha256(b"vllm image " + str(feature.identifier).encode()).digest()
        yield prefixd.Content(where.offset, where.length, digest)
