"""A vLLM engine that answers one line of JSON with another: the child of engines.Engine.

A request is {"prompts": [[token, ...], ...], "max_tokens": n, ...}, see _generate(). The answer has
for each prompt its sequences of tokens, their log probabilities, and how many tokens were cached.
"""

from __future__ import annotations

import json
import sys
import time
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


def main() -> None:
    answers = open(3, "w")
    llm = LLM(
        skip_tokenizer_init=True,
        enforce_eager=True,
        disable_log_stats=False,
        **json.loads(sys.argv[1]),
    )
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if asked.get("forget"):  # what vLLM has cached itself
            assert llm.reset_prefix_cache()
        print(json.dumps(_generate(llm, asked)), file=answers, flush=True)


if __name__ == "__main__":
    main()
