"""What routers make of published events: vLLM's own classes, and the rules of Dynamo's and llm-d's decoders."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch


class Stored(NamedTuple):
    block: int
    parent: int | None
    tokens: tuple[int, ...]
    medium: str
    extra: Any = None


class Removed(NamedTuple):
    block: int
    medium: str


class Cleared(NamedTuple):
    pass


Event = Stored | Removed | Cleared
_VLLM = msgspec.msgpack.Decoder(type=KVEventBatch)
U64, U32 = 1 << 64, 1 << 32


def by_vllm(payload: bytes, block_size: int) -> list[Event]:
    """As a subscriber of vLLM 0.32 decodes: with its classes, which refuse a missing field or a wrong type."""
    batch = _VLLM.decode(payload)
    assert batch.data_parallel_rank == 0 and batch.ts > 1.7e9, batch
    found: list[Event] = []
    for event in batch.events:
        if isinstance(event, BlockStored):
            assert event.block_size == block_size and event.lora_id is None and event.group_idx == 0, event
            [block] = event.block_hashes
            extra = event.extra_keys
            found.append(Stored(block, event.parent_block_hash, tuple(event.token_ids), event.medium, extra))
        elif isinstance(event, BlockRemoved):
            found += [Removed(block, event.medium) for block in event.block_hashes]
        else:
            assert isinstance(event, AllBlocksCleared), event
            found.append(Cleared())
    return found


def by_dynamo(payload: bytes, block_size: int) -> list[Event]:
    """As Dynamo's router does (ai-dynamo/dynamo, lib/kv-router/src/zmq_wire: deserialize.rs, convert.rs, and StorageTier
    of protocols.rs, at 4fb5a208fe6e): maps with "type", unknown keys are ignored; a block is published only if its
    tokens are there and of the router's block size, and if no hash of an event repeats. A medium that it does not know
    is taken for the GPU."""
    tiers = {"GPU": "Device", "CPU": "HostPinned", "CPU_PINNED": "HostPinned", "DISK": "Disk", "NVME": "Disk"}
    back = {"Device": "GPU", "HostPinned": "CPU", "Disk": "DISK"}
    _, events, _ = msgspec.msgpack.decode(payload)
    found: list[Event] = []
    for event in events:
        kind = event["type"]
        assert kind in ("BlockStored", "BlockRemoved", "AllBlocksCleared"), kind
        if kind == "AllBlocksCleared":
            found.append(Cleared())
            continue
        hashes = event["block_hashes"]
        assert all(isinstance(one, int) and 0 <= one < U64 for one in hashes), hashes
        medium = back[tiers.get(event.get("medium"), "Device")]
        if kind == "BlockRemoved":
            found += [Removed(one, medium) for one in hashes]
            continue
        parent, tokens = event.get("parent_block_hash"), event["token_ids"]
        seen = [*hashes, *([] if parent is None else [parent])]
        assert all(isinstance(one, int) and 0 <= one < U32 for one in tokens), tokens
        if len(set(seen)) != len(seen) or event["block_size"] != block_size:
            continue
        for at, one in enumerate(hashes):
            part = tuple(tokens[at * block_size : (at + 1) * block_size])
            if len(part) < block_size:
                break
            found.append(Stored(one, parent, part, medium, event.get("extra_keys")))
            parent = one
    return found


def by_llm_d(payload: bytes, block_size: int) -> list[Event]:
    """As llm-d's does (llm-d/llm-d-kv-cache v0.9, pkg/kvevents/engineadapter/vllm_adapter.go with pull request 661): a map
    becomes the positional fields of vLLM's array form, what is absent is nil; a hash is an integer or bytes, of which the
    last 8 count; the medium in lower case is the tier."""
    order = ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys")
    removed = ("block_hashes", "medium")

    def number(raw: Any) -> int:
        return raw % U64 if isinstance(raw, int) else int.from_bytes(raw[-8:], "big")

    _, events, *_ = msgspec.msgpack.decode(payload)
    found: list[Event] = []
    for event in events:
        tag = event["type"]
        assert isinstance(tag, str)
        if tag == "BlockStored":
            hashes, parent, tokens, size, _, medium, _, extra = (event.get(name) for name in order)
            parent = None if parent is None else number(parent)
            for at, one in enumerate(map(number, hashes)):
                part = tuple(tokens[at * size : (at + 1) * size])
                found.append(Stored(one, parent, part, medium.lower().upper(), extra))
                parent = one
        elif tag == "BlockRemoved":
            hashes, medium = (event.get(name) for name in removed)
            found += [Removed(one, medium) for one in map(number, hashes)]
        else:
            assert tag == "AllBlocksCleared", tag
            found.append(Cleared())
    return found


class Index:
    """Blocks by name: parent, tokens and where they are."""

    def __init__(self) -> None:
        self.blocks: dict[int, tuple[int | None, tuple[int, ...]]] = {}
        self.mediums: dict[int, set[str]] = {}

    def apply(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Cleared):
                self.__init__()  # type: ignore[misc]
            elif isinstance(event, Stored):
                self.blocks[event.block] = (event.parent, event.tokens)
                self.mediums.setdefault(event.block, set()).add(event.medium)
            elif event.block in self.blocks:
                self.mediums[event.block].discard(event.medium)
                if not self.mediums[event.block]:
                    del self.mediums[event.block], self.blocks[event.block]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Index) and (self.blocks, self.mediums) == (other.blocks, other.mediums)
