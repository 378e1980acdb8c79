"""attn_implementation="prefixd": attention of prefixd's kernels on leased pages, on the CPU in
place and on a GPU in device memory, beside transformers' SDPA for every other cache."""

from __future__ import annotations

import logging
import sys
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from .. import Error
from .paged_layers import Paged, PagedTensor

log = logging.getLogger("prefixd.transformers")

NAME = "prefixd"
_CHANGES_SCORES = ("softcap", "s_aux", "sinks", "position_bias", "head_mask")
_said: set[str] = set()


def register() -> None:
    """Makes the name known to from_pretrained() and set_attn_implementation()."""
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The function that transformers calls. query [1, heads, rows, dim]; returns the attention
    [1, rows, heads, dim]."""
    changed = any(kwargs.get(name) is not None for name in _CHANGES_SCORES)
    if type(key) is PagedTensor and not (changed or dropout):
        found = _in_place(key.layer, query, attention_mask, scaling)
        if found is not None:
            return found, None
    if changed:
        mask = _additive(query, key.shape[2], attention_mask)
        eager = vars(sys.modules[type(module).__module__])["eager_attention_forward"]
        return eager(module, query, key, value, mask, scaling=scaling, dropout=dropout, **kwargs)
    return sdpa_attention_forward(
        module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
    )


def _in_place(
    layer: Paged, query: torch.Tensor, mask: torch.Tensor | None, scaling: float | None
) -> torch.Tensor | None:
    table = layer.table
    if table is None or query.shape[0] != 1 or not _is_causal(layer, query.shape[2], mask):
        return None
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    rows = query[0].transpose(0, 1)
    try:
        return table.attend(rows, scale)[None] if table.is_quick(rows, scale) else None
    except Error as error:
        if str(error) not in _said:
            _said.add(str(error))
            log.warning("attention copies what it reads: %s", error)
        return None


def _is_causal(layer: Paged, rows: int, mask: torch.Tensor | None) -> bool:
    """True if each row is to see all before it, or its window, and nothing else."""
    if mask is None:
        return True
    seen = mask.shape[-1]
    if mask.shape[:3] != (1, 1, rows):
        return False
    checked = getattr(mask, "prefixd_causal", None)  # a mask is that of many layers
    if checked is None:
        end = layer.get_seq_length()
        at = torch.arange(end - rows, end, device=mask.device)[:, None]
        to = torch.arange(end - seen, end, device=mask.device)[None, :]
        wanted = to <= at
        if layer.window:
            wanted &= to > at - layer.window
        given = mask[0, 0] if mask.dtype == torch.bool else mask[0, 0] == 0
        checked = bool(torch.equal(given, wanted))
        mask.prefixd_causal = checked  # type: ignore[attr-defined]
    return checked


def _additive(query: torch.Tensor, seen: int, mask: torch.Tensor | None) -> torch.Tensor:
    """Returns the mask as a model's own eager attention wants it."""
    if mask is None:
        rows = query.shape[2]
        mask = torch.ones(rows, seen, dtype=torch.bool, device=query.device).tril(seen - rows)
        mask = mask[None, None]
    if mask.dtype != torch.bool:
        return mask
    least = torch.finfo(query.dtype).min
    return torch.zeros(mask.shape, dtype=query.dtype, device=query.device).masked_fill(~mask, least)
