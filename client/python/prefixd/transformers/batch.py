"""Batches: sequences padded on the left, which all go on from one column."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any

import torch

from .. import Lease
from .core import Core
from .pages import Piece

_ROUNDS = 8  # a sequence with windows or states may offer less each time


def pads_of(ids: torch.Tensor, attention_mask: torch.Tensor | None) -> list[int]:
    """Returns the columns of padding before each sequence. Raises ValueError if there is some
    elsewhere."""
    if ids.ndim != 2:
        raise ValueError(f"ids: {list(ids.shape)}, must be [sequences, columns]")
    if attention_mask is None:
        return [0] * ids.shape[0]
    if attention_mask.ndim != 2 or attention_mask.shape[0] != ids.shape[0]:
        raise ValueError(f"attention_mask: {list(attention_mask.shape)}, ids {list(ids.shape)}")
    seen = attention_mask.ne(0)
    pads = (~seen).sum(dim=1)
    columns = torch.arange(seen.shape[1], device=seen.device)
    if not torch.equal(seen, columns[None, :] >= pads[:, None]):
        raise ValueError("attention_mask: padding must be on the left, and nowhere else")
    return pads.tolist()


def find(
    core: Core, prompts: Sequence[Sequence[int]], pads: Sequence[int], columns: int
) -> tuple[int, list[list[Piece]], str]:
    """Returns the most columns, at most `columns`, that prefixd has of every prompt, what it has of
    each, and why it gave nothing."""
    end = time.monotonic() + core.options.load_deadline_ms / 1000
    for _ in range(_ROUNDS):
        if columns < 1 or columns <= min(pads):
            break
        with contextlib.ExitStack() as held:
            counts: list[int] = []
            leases: list[Lease | None] = []
            for tokens, pad in zip(prompts, pads, strict=True):
                if columns <= pad:
                    leases.append(None)
                    counts.append(0)
                    continue
                lease = held.enter_context(core.acquire(tokens, columns - pad))
                if lease.error:
                    return 0, [], lease.error
                left_ms = max(int(1000 * (end - time.monotonic())), 1)
                leases.append(lease)
                counts.append(lease.wait_all(left_ms))
            reached = min(
                columns if lease is None else pad + count
                for lease, pad, count in zip(leases, pads, counts, strict=True)
            )
            wanted = [max(reached - pad, 0) for pad in pads]
            if reached > min(pads) and (core.cuts_anywhere or counts == wanted):
                pieces = [
                    core.gather(lease, count) if lease is not None and count else core.no_pieces()
                    for lease, count in zip(leases, wanted, strict=True)
                ]
                if not all(pieces):
                    break
                for one, count in zip(leases, wanted, strict=True):
                    if one is not None:
                        one.release(used_tokens=count)
                return reached, pieces, ""
            for one in leases:
                if one is not None:
                    one.release(used_tokens=0)
            columns = reached
    return 0, [], ""


def answers(
    sequences: torch.Tensor, pads: Sequence[int], prompt_columns: int, ends: set[int]
) -> list[list[int]]:
    """Returns the tokens of each sequence without padding, up to the end of its answer: generate()
    pads the shorter ones behind theirs."""
    found = []
    for row, pad in zip(sequences.tolist(), pads, strict=True):
        stop = next((at + 1 for at in range(prompt_columns, len(row)) if row[at] in ends), len(row))
        found.append(row[pad:stop])
    return found


def end_tokens(model: Any) -> set[int]:
    told = getattr(model.generation_config, "eos_token_id", None)
    return set() if told is None else set(told) if isinstance(told, (list, tuple)) else {told}
