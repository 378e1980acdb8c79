"""A vLLM engine that answers one message with another: the process of engines.Engine.

A request is {"prompts": [[token, ...], ...], "max_tokens": n, ...}, see _generate(). The answer has
for each prompt its sequences of tokens, their log probabilities, and how many tokens were cached.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest


def _generate(llm: LLM, asked: dict[str, Any]) -> dict[str, Any]:
    sampling = SamplingParams(
        temperature=asked.get("temperature", 0.0),
        seed=asked.get("seed"),
        n=asked.get("n", 1),
        max_tokens=asked["max_tokens"],
        logprobs=1,
        detokenize=False,
    )
    prompts: list[Any] = [{"prompt_token_ids": prompt} for prompt in asked["prompts"]]
    for prompt in prompts:
        if asked.get("salt"):
            prompt["cache_salt"] = asked["salt"]
    lora = LoRARequest(*asked["lora"]) if asked.get("lora") else None
    began = time.monotonic()
    answers = llm.generate(prompts, sampling, use_tqdm=False, lora_request=lora)
    seconds = time.monotonic() - began
    return {
        "seconds": seconds,
        "external_hits": _counter(llm, "vllm:external_prefix_cache_hits"),
        "preemptions": _counter(llm, "vllm:num_preemptions"),
        "answers": [
            {
                "cached": answer.num_cached_tokens,
                "tokens": [list(one.token_ids) for one in answer.outputs],
                "reasons": [one.finish_reason for one in answer.outputs],
                "logprobs": [
                    [at[token].logprob for token, at in zip(one.token_ids, one.logprobs)]
                    for one in answer.outputs
                ],
            }
            for answer in answers
        ],
    }


def _counter(llm: LLM, name: str) -> int:
    return sum(getattr(one, "value", 0) for one in llm.get_metrics() if one.name == name)


def run(
    settings: dict[str, Any], environment: dict[str, str], log: Path, line: Connection
) -> None:
    """Answers until `line` is closed. Says {} once it runs."""
    os.setsid()
    os.environ.update(environment)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    llm = LLM(skip_tokenizer_init=True, enforce_eager=True, disable_log_stats=False, **settings)
    line.send({})
    with contextlib.suppress(EOFError):
        while True:
            asked = line.recv()
            if asked.get("forget"):  # what vLLM has cached itself
                assert llm.reset_prefix_cache()
            line.send(_generate(llm, asked))
    del llm
    atexit._run_exitfuncs()  # a process of multiprocessing ends without them
