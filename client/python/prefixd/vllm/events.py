"""Events for vLLM's subscribers: which of a server's blocks prefixd has, by vLLM's own hashes.

prefixd tells nobody what it evicts. A block that is gone is announced when a lookup finds it
missing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

from vllm.distributed.kv_events import BlockRemoved, BlockStored
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

MEDIUM = "prefixd"
_MOST_BLOCKS = 1_000_000  # that are remembered as announced


class BlockEvents:
    """All calls come from the scheduler's thread."""

    def __init__(self, page: int) -> None:
        self._page = page
        self._announced: OrderedDict[Any, None] = OrderedDict()
        self._saving: dict[int, tuple[Any, int]] = {}  # by number: hashes and tokens to come
        self._events: list[Any] = []

    def will_save(self, number: int, request: Any, end: int) -> None:
        self._saving[number] = (_Blocks.of(request, end // self._page, self._page), end)

    def saved(self, number: int, end: int) -> None:
        """Notes that prefixd has the sequence of a save up to token `end`."""
        blocks, _ = self._saving.pop(number, (None, 0))
        if blocks is not None:
            self._store(blocks.cut(end // self._page))

    def seen(self, request: Any, end: int) -> None:
        """Notes that prefixd has the request up to token `end`, and no more of it."""
        blocks = _Blocks.of(request, request.num_tokens // self._page, self._page)
        self._store(blocks.cut(end // self._page))
        gone = [
            one for one in blocks.hashes[end // self._page :] if one in self._announced
        ]
        if gone:
            for one in gone:
                del self._announced[one]
            hashes = [maybe_convert_block_hash(one) for one in gone]
            self._events.append(BlockRemoved(block_hashes=hashes, medium=MEDIUM))

    def take(self) -> Iterable[Any]:
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


class _Blocks:
    """The first whole blocks of a request."""

    def __init__(
        self, hashes: Sequence[Any], tokens: Sequence[int], page: int, lora: Any = None
    ) -> None:
        self.hashes, self._tokens, self._page = list(hashes), tokens, page
        self._lora = lora

    @staticmethod
    def of(request: Any, count: int, page: int) -> _Blocks:
        tokens = request.all_token_ids[: count * page]
        return _Blocks(request.block_hashes[:count], tokens, page, request.lora_request)

    def cut(self, count: int) -> _Blocks:
        return _Blocks(self.hashes[:count], self._tokens, self._page, self._lora)

    def stored(self, begin: int, end: int) -> BlockStored:
        parent = maybe_convert_block_hash(self.hashes[begin - 1]) if begin else None
        return BlockStored(
            block_hashes=[maybe_convert_block_hash(one) for one in self.hashes[begin:end]],
            parent_block_hash=parent,
            token_ids=list(self._tokens[begin * self._page : end * self._page]),
            block_size=self._page,
            lora_id=None if self._lora is None else self._lora.lora_int_id,
            medium=MEDIUM,
            lora_name=None if self._lora is None else self._lora.lora_name,
        )
