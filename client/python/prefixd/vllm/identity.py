"""What decides the bytes of a vLLM server's caches, and with that their space."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import prefixd

from ..engine.files import Files
from . import groups
from .messages import Hello
from .options import Options


@dataclass(frozen=True)
class Rank:
    """One worker of a server: its place among the ranks, and how it keeps its caches."""

    tensor: tuple[int, int]
    pipeline: tuple[int, int]
    hello: Hello


@dataclass(frozen=True)
class Identity:
    """What the files and settings of a model say. Reads the files whole."""

    name: str
    weights: bytes
    tokenizer: bytes
    rope: prefixd.Rope
    settings: tuple[str, ...]  # that are not in the files

    @staticmethod
    def of(vllm_config: Any, options: Options) -> Identity:
        model = vllm_config.model_config
        files = Files.of(model.model, revision=model.revision)
        config = files.config()
        rope = prefixd.rope_of(config, model.get_head_size())
        return Identity(
            name=options.model_name or Path(model.model).name,
            weights=files.weights(),
            tokenizer=files.tokenizer(),
            rope=rope,
            settings=tuple(_settings(model, config, rope)),
        )

    def open(
        self,
        client: prefixd.Client,
        rank: Rank,
        salt: str,
        request_salt: str,
        adapter: bytes = b"",
    ) -> prefixd.Space:
        return client.open_space(
            model=self.name,
            weights=self.weights,
            adapter=adapter or None,
            tokenizer=self.tokenizer,
            rope=self.rope,
            layers=rank.hello.layers,
            tensor_parallel=rank.tensor,
            pipeline_parallel=rank.pipeline,
            salt=_salt(salt, rank.hello.salt, request_salt, *self.settings),
            block_tokens=rank.hello.block_tokens,
        )


def why_not_shared(vllm_config: Any, kv_cache_config: Any) -> str:
    """Returns why the caches of this server are not shared; "" if they are."""
    why = groups.why_not(kv_cache_config)
    if why:
        return why
    parallel = vllm_config.parallel_config
    if parallel.decode_context_parallel_size * parallel.prefill_context_parallel_size > 1:
        return "ranks hold parts of a context"
    if vllm_config.load_config.load_format == "dummy":
        return "its weights are made up (load_format dummy)"
    if callable(vllm_config.model_config.hf_overrides):
        return "hf_overrides is a function"
    if getattr(vllm_config.cache_config, "calculate_kv_scales", False):
        return "scales of its cache are computed as it runs"
    speculative = vllm_config.speculative_config
    if speculative is not None and "ngram" not in str(speculative.method):
        return f"a draft model ({speculative.method}) keeps its rows in the same caches"
    has_states = any(one.has_states for one in groups.Groups.of(kv_cache_config).each)
    if speculative is not None and has_states:
        return "states may be those after tokens that are taken back (speculative decoding)"
    return ""


def _settings(model: Any, config: dict[str, Any], rope: prefixd.Rope) -> Iterable[str]:
    """Yields the settings that change what a checkpoint computes, as text."""
    if model.hf_overrides:
        yield "hf_overrides " + json.dumps(model.hf_overrides, sort_keys=True, default=str)
    if model.quantization and "quantization_config" not in config:
        yield f"quantization {model.quantization}"
    # vLLM turns every key by the factors for long contexts once one may be so long.
    if rope.scaling == "longrope" and model.max_model_len > rope.scaling_params[0]:
        yield "longrope, long factors"


def _salt(salt: str, *more: str) -> str:
    """Returns the salt of a space: the user's own if that is all, else a digest of all parts, each
    with its length before it, so that no two lists of parts give one text."""
    if not any(more):
        return salt
    digest = hashlib.sha256(b"prefixd.vllm")
    for part in (salt, *more):
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return "vllm:" + digest.hexdigest()
