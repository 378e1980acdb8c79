"""What the scheduler's connector and the workers' tell each other. All of it is pickled."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

import prefixd

from .groups import Pages, State

Tokens = NDArray[np.uint32]
Trace = tuple[str, str]  # traceparent and tracestate (W3C Trace Context); ("", ""): none


@dataclass(frozen=True)
class Prompt:
    """The first tokens of a request, and what else decides their caches."""

    tokens: Tokens
    content: tuple[prefixd.Content, ...]  # images and the like under some of the tokens
    salt: str  # of the request
    adapter: bytes = b""  # digest of its LoRA adapter
    trace: Trace = ("", "")  # of the request

    def cut(self, end: int) -> Prompt:
        content = tuple(item for item in self.content if item.start < end)
        return replace(self, tokens=self.tokens[:end], content=content)


@dataclass(frozen=True)
class Load:
    """Pages [begin, end) of a request are to be filled, in tokens. `pages`: of each group, the ids
    of all its pages up to `end`."""

    request_id: str
    prompt: Prompt  # up to `end`
    begin: int
    pages: tuple[Pages, ...]
    beside: bool  # beside the engine's steps; else before this step's forward pass

    @property
    def end(self) -> int:
        return len(self.prompt.tokens)


@dataclass(frozen=True)
class Save:
    """Tokens [begin, end) of a request are computed after this step. `pages`: of each group, the
    ids of all its pages up to `end`. `number` is the scheduler's; `is_last`: the sequence ends
    here, maybe with no token that is not saved. `turn_ends`: where the next requests may go on."""

    number: int
    request_id: str
    prompt: Prompt  # up to `end`
    begin: int
    pages: tuple[Pages, ...]
    is_last: bool = False
    states: tuple[State, ...] = ()
    turn_ends: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        return len(self.prompt.tokens)


@dataclass
class Work(KVConnectorMetadata):
    """What the workers are to do in a step. `parting`: saves of requests that have ended, whose
    pages somebody may write from this step on."""

    loads: list[Load] = field(default_factory=list)
    saves: list[Save] = field(default_factory=list)
    parting: list[Save] = field(default_factory=list)


@dataclass
class Report(KVConnectorWorkerMetadata):
    """What became of saves since the last report: their numbers, and up to which token prefixd has
    their sequence (0: unknown)."""

    saved: dict[int, int]

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        assert isinstance(other, Report)
        saved = dict(self.saved)
        for number, end in other.saved.items():
            saved[number] = min(saved.get(number, end), end)
        return Report(saved)


@dataclass
class Hello(KVConnectorHandshakeMetadata):
    """How a worker keeps its caches. `why_not`: why it shares none."""

    layers: tuple[prefixd.Layer, ...]
    salt: str  # of the layout of its pages; "" for rows that any engine reads
    bytes_per_token: int
    why_not: str = ""
    block_tokens: int = 0  # of its space; 0: the daemon's default
