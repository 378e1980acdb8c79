"""llama-cpp-python with prefixd.llama_cpp, on its own library of llama.cpp where its package has one, else on the one
that PyPI's xllamacpp has.
Usage: plain_llama.py MODEL CACHE JSON
CACHE: the address of prefixd, "own" for llama-cpp-python's cache, "" for none
Reads requests, one JSON a line, and answers each: {"prompt": "text or tokens", "count": 8}
JSON: options of Llama, and of the cache under "cache"."""

import ctypes
import importlib.util
import itertools
import json
import logging
import os
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import Any

import xllamacpp


class Library(ctypes.CDLL):
    """xllamacpp leaves out functions that it does not need; nobody calls them here either."""

    def __getitem__(self, name: str) -> Any:
        try:
            return super().__getitem__(name)
        except AttributeError:
            return ctypes.CFUNCTYPE(None)(lambda: None)


def has_own_library() -> bool:
    package = importlib.util.find_spec("llama_cpp")
    return package is not None and Path(package.origin).with_name("lib").is_dir()


def import_llama_cpp() -> Any:
    if has_own_library():
        import llama_cpp

        return llama_cpp
    whole = Path(xllamacpp.__file__).with_name("xllamacpp.abi3.so")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "libllama.so").symlink_to(whole)
        os.environ["LLAMA_CPP_LIB_PATH"] = folder
        plain, ctypes.CDLL = ctypes.CDLL, Library
        try:
            import llama_cpp
        finally:
            ctypes.CDLL = plain
    widen_context_params(llama_cpp.llama_cpp)
    return llama_cpp


def widen_context_params(api: Any) -> None:
    """Build 11549 has one pointer more than llama-cpp-python 0.3.36 knows, before the booleans."""
    fields = list(api.llama_context_params._fields_)
    names = [name for name, _ in fields]
    fields.insert(names.index("embeddings"), ("not_known_here", ctypes.c_void_p))
    wider = type("llama_context_params", (ctypes.Structure,), {"_fields_": fields})
    api.llama_context_default_params.restype = wider
    create = api.llama_init_from_model
    create.argtypes = [create.argtypes[0], wider]
    defaults = api.llama_context_default_params()
    if not (defaults.offload_kqv and defaults.swa_full and defaults.n_batch == 2048):
        raise SystemExit("the structs of llama-cpp-python are not those of this library")


class Counted:
    """Counts what a Llama computes."""

    def __init__(self, llm: Any) -> None:
        self.computed = 0
        self._eval = llm.eval
        llm.eval = self

    def __call__(self, tokens: Any) -> None:
        self.computed += len(tokens)
        self._eval(tokens)


def main() -> None:
    model, cache_at, options = sys.argv[1:]
    options = json.loads(options)
    logging.basicConfig(level=logging.INFO, format="LOG %(levelname)s %(message)s")
    llama_cpp = import_llama_cpp()
    cache_options = options.pop("cache", {})
    settings = {"n_ctx": 8192, "n_threads": 1, "n_threads_batch": 1, "flash_attn": True, "verbose": False} | options
    llm = llama_cpp.Llama(model, **settings)
    cache = None
    begin = time.monotonic()
    if cache_at == "own":
        llm.set_cache(llama_cpp.LlamaRAMCache())
    elif cache_at:
        from prefixd.llama_cpp import LlamaPrefixdCache

        cache = LlamaPrefixdCache(llm, cache_at, **cache_options)
        llm.set_cache(cache)
    counted = Counted(llm)
    print(json.dumps({"opened_s": time.monotonic() - begin}), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(llama_cpp, llm, cache, counted, json.loads(line))), flush=True)


def answer(llama_cpp: Any, llm: Any, cache: Any, counted: Counted, request: dict) -> dict:
    if "do" in request:
        return {"is": repr(eval(request["do"], {"llm": llm, "cache": cache, "api": llama_cpp}))}
    before = (counted.computed, cache and cache.restored_tokens, cache and cache.stored_tokens)
    if request.get("traced"):
        tracemalloc.start()
    begin = time.monotonic()
    said = llm.create_completion(
        request["prompt"],
        max_tokens=request.get("count", 8),
        temperature=0,
        **request.get("more", {}),
    )
    if not isinstance(said, dict):  # a stream
        said = joined(itertools.islice(said, request.get("parts")))
    took = time.monotonic() - begin
    peak = tracemalloc.get_traced_memory()[1] if request.get("traced") else 0
    tracemalloc.stop()
    evaluated = max(said["usage"]["completion_tokens"] - 1, 0)
    return {
        "text": said["choices"][0]["text"],
        "tokens": llm.input_ids[: llm.n_tokens].tolist(),
        "computed": counted.computed - before[0] - evaluated,
        "restored": cache and cache.restored_tokens - before[1],
        "stored": cache and cache.stored_tokens - before[2],
        "peak": peak,
        "state": llama_cpp.llama_state_seq_get_size_ext(llm._ctx.ctx, 0, 0),
        "took_s": took,
    }


def joined(parts: Any) -> dict:
    """What a stream said, as an answer. A part is a token here."""
    texts = [part["choices"][0]["text"] for part in parts]
    usage = {"completion_tokens": len([text for text in texts if text])}
    return {"choices": [{"text": "".join(texts)}], "usage": usage}


if __name__ == "__main__":
    main()
