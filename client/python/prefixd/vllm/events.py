"""Events for vLLM's subscribers: which of a server's blocks prefixd has, by vLLM's own hashes.

prefixd tells nobody what it evicts. So a block that is gone is announced when a lookup finds it
missing, or when its sequence is looked up again beside the requests (watching.py).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

from vllm.distributed.kv_events import BlockRemoved, BlockStored
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

from .messages import Prompt
from .watching import Sequences, Watched

MEDIUM = "prefixd"
_MOST_BLOCKS = 1_000_000  # that are remembered as announced


class BlockEvents:
    """All calls come from the scheduler's thread. `unit`: tokens of vLLM's hashes."""

    def __init__(self, unit: int) -> None:
        self._unit = unit
        self._announced: OrderedDict[Any, None] = OrderedDict()
        self._saving: dict[int, tuple[_Blocks, Prompt]] = {}  # by number
        self._events: list[Any] = []
        self.sequences = Sequences()

    def will_save(self, number: int, request: Any, prompt: Prompt) -> None:
        count = len(prompt.tokens) // self._unit
        self._saving[number] = (_Blocks.of(request, count, self._unit), prompt)

    @property
    def waits(self) -> bool:
        """True while saves are under way whose end is to be told."""
        return bool(self._saving)

    def saved(self, number: int, end: int) -> None:
        """Notes that prefixd has the sequence of a save up to token `end`."""
        blocks, prompt = self._saving.pop(number, (None, None))
        if blocks is None or prompt is None or not end:
            return
        stored = blocks.cut(end // self._unit)
        self._store(stored)
        self.sequences.add(Watched(prompt.cut(end), tuple(stored.hashes)))

    def seen(self, request: Any, prompt: Prompt, no_more: bool) -> None:
        """Notes that prefixd has these first tokens of a request. `no_more`: and no more of it."""
        count = len(prompt.tokens) // self._unit
        blocks = _Blocks.of(request, request.num_tokens // self._unit, self._unit)
        self._store(blocks.cut(count))
        self.sequences.add(Watched(prompt, tuple(blocks.hashes[:count])))
        if no_more:
            self._remove(blocks.hashes[count:])

    def take(self) -> Iterable[Any]:
        for gone in self.sequences.take_gone():
            self._remove(gone)
        events, self._events = self._events, []
        return events

    def _store(self, blocks: _Blocks) -> None:
        """Announces the blocks that are not announced, which may have gaps between them."""
        first = None
        for at, one in enumerate([*blocks.hashes, None]):
            is_new = one is not None and one not in self._announced
            if is_new:
                self._announced[one] = None
                first = at if first is None else first
            elif first is not None:
                self._events.append(blocks.stored(first, at))
                first = None
        while len(self._announced) > _MOST_BLOCKS:
            self._announced.popitem(last=False)

    def _remove(self, hashes: Iterable[Any]) -> None:
        gone = [one for one in hashes if one in self._announced]
        for one in gone:
            del self._announced[one]
        if gone:
            said = [maybe_convert_block_hash(one) for one in gone]
            self._events.append(BlockRemoved(block_hashes=said, medium=MEDIUM))


class _Blocks:
    """The first whole blocks of a request."""

    def __init__(
        self, hashes: Sequence[Any], tokens: Sequence[int], unit: int, lora: Any = None
    ) -> None:
        self.hashes, self._tokens, self._unit = list(hashes), tokens, unit
        self._lora = lora

    @staticmethod
    def of(request: Any, count: int, unit: int) -> _Blocks:
        tokens = request.all_token_ids[: count * unit]
        return _Blocks(request.block_hashes[:count], tokens, unit, request.lora_request)

    def cut(self, count: int) -> _Blocks:
        return _Blocks(self.hashes[:count], self._tokens, self._unit, self._lora)

    def stored(self, begin: int, end: int) -> BlockStored:
        parent = maybe_convert_block_hash(self.hashes[begin - 1]) if begin else None
        return BlockStored(
            block_hashes=[maybe_convert_block_hash(one) for one in self.hashes[begin:end]],
            parent_block_hash=parent,
            token_ids=list(self._tokens[begin * self._unit : end * self._unit]),
            block_size=self._unit,
            lora_id=None if self._lora is None else self._lora.lora_int_id,
            medium=MEDIUM,
            lora_name=None if self._lora is None else self._lora.lora_name,
        )
