"""prefixd for engines on PyTorch: leased pages as tensors, and rows of K and V between pages and
the engine's own tensors, on the CPU and on NVIDIA GPUs.

    for block in prefixd.torch.blocks(lease, layer): ...        # read-only, nothing is copied
    load = prefixd.torch.load(lease, {0: kv_cache[0], 1: kv_cache[1]}, table=block_ids)
    load.wait(0)                                                # the stream waits, not the CPU
    prefixd.torch.store(plan, layer, begin, key, value)
    out = torch.ops.prefixd.attend(query, blocks, pages, ...)   # Table.attend() calls it

A GPU is reached through libprefixd_cuda.so (`why_no_gpu()` says why one is not). Tensors on the CPU
need libprefixd.so alone.
"""

from ._attention import Table, attend
from ._gpu import Gpu, Pinned, gpu, why_no_gpu
from ._loading import DevicePages, Load, load
from ._storing import store
from ._views import Block, PageTensor, blocks

__all__ = [
    "Block",
    "DevicePages",
    "Gpu",
    "Load",
    "PageTensor",
    "Pinned",
    "Table",
    "attend",
    "blocks",
    "gpu",
    "load",
    "store",
    "why_no_gpu",
]
