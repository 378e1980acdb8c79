"""Hugging Face transformers on prefixd: generate() goes on from what any process has computed.

    hf = prefixd.transformers.PrefixCache(client, model, tokenizer)
    out = model.generate(
        ids, past_key_values=hf.fetch(ids[0].tolist()), return_dict_in_generate=True
    )
    hf.store(out.sequences[0].tolist(), out.past_key_values)

PrefixCache   the shared caches of one model: fetch(), store(), and both for batches
Options       whether caches are stored quantized, deadlines, salt
"""

from .options import Options
from .prefix_cache import PrefixCache

__all__ = ["Options", "PrefixCache"]
