"""What prefixd.llama_cpp does with a llama_cpp.Llama: its tokens, the state of its sequence, and
what of its settings changes K and V."""

from __future__ import annotations

import ctypes
import json
import os
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp import llama_chat_format
from numpy.typing import NDArray

from ._client import digest_file
from ._errors import Error

_SEQUENCE, _FLAGS = 0, 0  # a Llama has one sequence; no flags: all of its state
_HANDLERS_OF_IMAGES = tuple(
    handler
    for name in ("Llava15ChatHandler", "MTMDChatHandler")
    if (handler := getattr(llama_chat_format, name, None)) is not None
)
# Settings of a context, and the value of each that leaves it to the model file.
_LEFT_TO_THE_FILE = {
    "rope_scaling_type": -1,
    "rope_freq_base": 0.0,
    "rope_freq_scale": 0.0,
    "yarn_ext_factor": -1.0,
    "yarn_orig_ctx": 0,
}
# Settings for which Llama has values of its own: those of llama.cpp where a file names none.
_SET_BY_LLAMA = {"yarn_attn_factor": 1.0, "yarn_beta_fast": 32.0, "yarn_beta_slow": 1.0}


def tokens_of(llm: llama_cpp.Llama) -> NDArray[np.intc]:
    """Returns the tokens in the cache of its sequence, without a copy."""
    return llm.input_ids[: llm.n_tokens]


def common_prefix(a: NDArray[Any], b: NDArray[Any]) -> int:
    count = min(len(a), len(b))
    differing = np.flatnonzero(a[:count] != b[:count])
    return int(differing[0]) if len(differing) else count


def takes_images(llm: llama_cpp.Llama) -> bool:
    """An image has no token ids, so nothing could be found by them."""
    return isinstance(llm.chat_handler, _HANDLERS_OF_IMAGES)


def can_go_back_to(llm: llama_cpp.Llama, length: int) -> bool:
    """Returns whether the sequence, cut to `length` tokens, is what computing them would give. Not
    so if sliding layers have given up part of the window before, or if layers are recurrent."""
    if length == llm.n_tokens:
        return True
    first = llama_cpp.llama_memory_seq_pos_min(_memory(llm), _SEQUENCE)
    window = llama_cpp.llama_model_n_swa(llm._model.model)
    return first == 0 or first < length - window


def read_state(llm: llama_cpp.Llama) -> NDArray[np.uint8]:
    """Returns the state of the sequence, one copy of it."""
    context = llm._ctx.ctx
    state = np.empty(llama_cpp.llama_state_seq_get_size_ext(context, _SEQUENCE, _FLAGS), np.uint8)
    count = llama_cpp.llama_state_seq_get_data_ext(
        context, _pointer(state), state.size, _SEQUENCE, _FLAGS
    )
    return state[:count]


def load_state(llm: llama_cpp.Llama, state: NDArray[np.uint8], tokens: NDArray[np.intc]) -> bool:
    """Replaces the sequence by the state of `tokens`. Without success it is empty."""
    context = llm._ctx.ctx
    read = llama_cpp.llama_state_seq_set_data_ext(
        context, _pointer(state), state.size, _SEQUENCE, _FLAGS
    )
    if read != state.size:
        llm.reset()
        llama_cpp.llama_memory_clear(_memory(llm), True)
        return False
    llm.input_ids[: len(tokens)] = tokens
    llm.n_tokens = len(tokens)
    llm._requires_eval = True  # there are no logits to sample from
    return True


def any_state(llm: llama_cpp.Llama) -> NDArray[np.uint8]:
    """Returns the state of one token or more. Computes one token if there is none."""
    if llm.n_tokens > 0:
        return read_state(llm)
    llm.eval([max(llm.token_bos(), 0)])
    state = read_state(llm)
    llm.reset()
    llama_cpp.llama_memory_clear(_memory(llm), True)
    return state


def changes_of(llm: llama_cpp.Llama) -> str:
    """Returns what changes K and V beyond the model file and what a state tells; "" for nothing, as
    prefixd-llama names a server without LoRA adapters."""
    changes: list[Any] = []
    if llm.lora_path:
        changes.append(["lora", digest_file(llm.lora_path).hex(), llm.lora_scale])
    if llm.kv_overrides:
        changes.append(["kv_overrides", sorted(llm.kv_overrides.items())])
    settings = llm.context_params
    for name, left in _LEFT_TO_THE_FILE.items():
        if getattr(settings, name) != left:
            changes.append([name, getattr(settings, name)])
    family = llm.metadata.get("general.architecture", "")
    for name, plain in _SET_BY_LLAMA.items():
        of_file = np.float32(llm.metadata.get(f"{family}.rope.scaling.{name}", plain))
        if getattr(settings, name) != of_file:
            changes.append([name, getattr(settings, name)])
    return json.dumps(changes) if changes else ""


def build_of_library() -> str:
    """Returns what decides whether this process rotates quantized K and V; "" if it is not known."""
    try:
        digest = digest_file(llama_cpp.llama_cpp._lib._name)
    except Error:
        return ""
    return f"{digest.hex()} {os.environ.get('LLAMA_ATTN_ROT_DISABLE', '')}"


def _memory(llm: llama_cpp.Llama) -> Any:
    return llama_cpp.llama_get_memory(llm._ctx.ctx)


def _pointer(state: NDArray[np.uint8]) -> Any:
    return state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
