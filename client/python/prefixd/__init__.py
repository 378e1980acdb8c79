"""prefixd: a prefix KV cache for inference engines, from Python.

    client = prefixd.connect("unix:///run/prefixd/prefixd.sock")
    space = client.open_space(model=..., weights=..., tokenizer=..., rope=..., layers=[...])
    with space.acquire(tokens, max_cached_tokens=len(tokens) - 1) as lease:
        n = lease.wait_all()
        key, value = lease.gather(layer=0, tokens=n)
    with space.reserve(tokens) as plan:
        for begin, end in plan.missing: ...

No call in the path of tokens raises because the daemon or the library is absent, late or dying: the
call gives fewer tokens, and `error` says why. Calls raise `Error` only for a caller's mistake.
"""

from ._client import Client, Stats, connect, digest_checkpoint, digest_file
from ._errors import Error
from ._formats import (
    Content,
    Format,
    FullLayer,
    Layer,
    Rope,
    SharedLayer,
    SlidingLayer,
    StateLayer,
    TensorFormat,
    mlx_affine,
    mxfp4,
    mxfp8,
    nvfp4,
    pair,
    q4_0,
    q4_1,
    q5_0,
    q5_1,
    q8_0,
    raw,
)
from ._batch import gather_batch
from ._lease import Block, Lease, Match, Reason
from ._plan import CommitInfo, Plan, Run
from ._rope import rope_of
from ._set import acquire_set
from ._space import Space
from ._trace import trace

__version__ = "0.1.0"
__all__ = [
    "Block",
    "Client",
    "CommitInfo",
    "Content",
    "Error",
    "Format",
    "FullLayer",
    "Layer",
    "Lease",
    "Match",
    "Plan",
    "Reason",
    "Rope",
    "Run",
    "SharedLayer",
    "SlidingLayer",
    "Space",
    "StateLayer",
    "Stats",
    "TensorFormat",
    "acquire_set",
    "connect",
    "digest_checkpoint",
    "digest_file",
    "gather_batch",
    "mlx_affine",
    "mxfp4",
    "mxfp8",
    "nvfp4",
    "pair",
    "q4_0",
    "q4_1",
    "q5_0",
    "q5_1",
    "q8_0",
    "raw",
    "rope_of",
    "trace",
]
