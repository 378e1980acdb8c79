"""prefixd for asyncio: what waits in `prefixd` is awaited here, and never stops the event loop.

    async with prefixd.aio.connect("unix:///run/prefixd/prefixd.sock") as client:
        space = await client.open_space(model=..., weights=..., tokenizer=..., layers=[...])
        async with space.acquire(tokens, max_cached_tokens=len(tokens) - 1) as lease:
            n = await lease.wait_all()
            key, value = await lease.gather(layer=0, tokens=n)
        async with space.reserve(tokens) as plan:
            for begin, end in plan.missing: ...

Calls take and give what those of `prefixd` do. They run in the client's threads, a bounded number of
them; further calls wait for their turn, in order. Use a client, and all that comes from it, in one event
loop.

A cancelled call raises at once. What it had begun in a thread ends by its deadline, and what it
would have given goes back: a lease is released, a plan abandoned. A cancelled gather(out=...) or
write_packed() may use its arrays until then; the next call on the same lease or plan waits for it.
"""

from ._client import Client, Space, acquire_set, connect
from ._lease import Lease, Plan
from ._threads import Opening

__all__ = ["Client", "Lease", "Opening", "Plan", "Space", "acquire_set", "connect"]
