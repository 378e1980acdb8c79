"""transformers' generate() with a prompt cache that all processes share, and that is still there
after a restart.

Usage: transformers_generate.py ADDRESS MODEL PROMPT      run it twice
"""

import sys

import prefixd
import prefixd.transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

address, path, prompt = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(path)
model = AutoModelForCausalLM.from_pretrained(path)
client = prefixd.connect(address, name="transformers_generate")
hf = prefixd.transformers.PrefixCache(client, model, tokenizer)

ids = tokenizer(prompt, return_tensors="pt").input_ids
cache = hf.fetch(ids)
cached = cache.get_seq_length()
out = model.generate(
    ids,
    past_key_values=cache,
    max_new_tokens=16,
    do_sample=False,
    return_dict_in_generate=True,
)
stored = hf.store(out.sequences, out.past_key_values)
print(tokenizer.decode(out.sequences[0, ids.shape[1] :]))
print(f"{ids.shape[1]} prompt tokens, {cached} cached, {stored} stored")
