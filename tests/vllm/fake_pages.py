"""Pages of one layer as vLLM's backends have them, without vLLM."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from prefixd.vllm.pages import LayerPages, pages_of

HEADS, PAGES = 2, 8


def fake_pages(
    writer: object,
    dim: int,
    bits: tuple[int, int] | None,
    dtype: torch.dtype = torch.float32,
    *,
    dense: bool = True,
    tokens: int = 128,
    device: str = "cpu",
    rows: bool = True,
    window: int = 0,
) -> LayerPages:
    """Of one layer of three that share each page, as some backends have it. `dense`: heads before
    tokens in memory, too; without it as FlashAttention has them on GPUs. tokens: of a page."""
    if dense:
        cache = torch.zeros((PAGES, 3, HEADS, tokens, 2 * dim), dtype=dtype, device=device)[:, 1]
    else:
        cache = torch.zeros((PAGES, 3, tokens, HEADS, 2 * dim), dtype=dtype, device=device)[:, 1]
        cache = cache.transpose(1, 2)
    return pages_of(SimpleNamespace(impl=writer), cache, HEADS, dim, rows, bits, window)


class Opaque:
    """A backend without a writer that can be called."""


class Writer:
    """A backend whose pages are [heads, tokens, K and V]."""

    def do_kv_cache_update(self, layer, key, value, cache, slots) -> None:
        rows = torch.cat([key, value], dim=-1)  # [tokens, heads, 2 * dim]
        cache[0, :, slots] = rows.transpose(0, 1)


class Scatterer:
    """A backend that has the elements of a page in no regular order."""

    def do_kv_cache_update(self, layer, key, value, cache, slots) -> None:
        rows = torch.cat([key, value], dim=-1).transpose(0, 1).reshape(-1)
        order = torch.randperm(rows.numel(), generator=torch.Generator().manual_seed(3))
        cache[0] = rows[order.to(rows.device)].view(cache.shape[1:])
