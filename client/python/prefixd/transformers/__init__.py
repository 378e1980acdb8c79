"""Hugging Face transformers on prefixd: generate() goes on from what any process has computed.

    hf = prefixd.transformers.PrefixCache(client, model, tokenizer)
    out = model.generate(
        ids, past_key_values=hf.fetch(ids[0].tolist()), return_dict_in_generate=True
    )
    hf.store(out.sequences[0].tolist(), out.past_key_values)

PrefixCache   the shared caches of one model: fetch(), store(), and both for batches
Options       whether caches are stored quantized, deadlines, salt

Importing it registers attn_implementation="prefixd": on the CPU, attention on prefixd's pages in
place, so that a process has no copy of the prefix that fetch() gave.
"""

from . import attention
from .options import Options
from .prefix_cache import PrefixCache

attention.register()

__all__ = ["Options", "PrefixCache"]
