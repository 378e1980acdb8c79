"""Whose caches a model's are: digests of its weights, of what was changed when it was loaded, of
its adapter and of its tokenizer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from .. import Error
from ..engine.files import Files
from ..engine.spaces import Unsupported
from ..engine.tensors import bytes_of, to_host

# Fields that change no row of K or V: names, and what generate() does with logits.
_NOT_OF_THE_ROWS = {
    "_name_or_path", "architectures", "bos_token_id", "dtype", "eos_token_id", "id2label",
    "label2id", "output_attentions", "output_hidden_states", "pad_token_id", "problem_type",
    "return_dict", "sep_token_id", "torch_dtype", "transformers_version", "use_cache",
    "chunk_size_feed_forward", "_attn_implementation", "attn_implementation",
}  # fmt: skip
_NOT_OF_THE_ADAPTER = {"base_model_name_or_path", "inference_mode", "revision", "auto_mapping"}


def files_of(model: Any) -> Files | None:
    """Returns the files that the model was loaded from; None if it was made in memory."""
    path = getattr(model.config, "_name_or_path", "")
    if not path:
        return None
    try:
        return Files.of(path, revision=getattr(model.config, "_commit_hash", None))
    except Exception as error:
        raise Unsupported(f"the files of {path} are not on this host ({error})") from error


def weights_of(model: Any, files: Files | None, given: bytes | None) -> bytes:
    """Returns the digest of the weights and of everything else that decides what rows the model
    computes. `given` replaces that of the files."""
    if given is not None:
        said = _clean(model.config.to_dict())
        return hashlib.sha256(given + _json(said)).digest()
    if files is None:
        raise Unsupported("it was made in memory: give weights=, a digest of 32 bytes")
    try:
        digest = files.weights()
    except (Error, OSError, ValueError) as error:
        raise Unsupported(f"its weights have no digest ({error})") from error
    changed = _changed_at_loading(model, files)
    return hashlib.sha256(digest + _json(changed)).digest() if changed else digest


def tokenizer_of(tokenizer: Any, files: Files | None) -> bytes | None:
    """Returns the digest of the tokenizer's files. `tokenizer`: transformers' object, a folder, a
    digest, or None: it is beside the model."""
    if isinstance(tokenizer, bytes):
        return tokenizer
    path = getattr(tokenizer, "name_or_path", tokenizer)
    if path and Path(path).is_dir():
        return Files(Path(path)).tokenizer()
    return files.tokenizer() if files is not None else None


def config_of(model: Any, files: Files | None) -> Mapping[str, Any]:
    """Returns the configuration that says how keys are turned, as it is on disk if it is there."""
    return model.config.to_dict() if files is None else files.config()


class Adapters:
    """The PEFT adapters of a model, and whether its weights are those that they were at first."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._tuners = [one for one in model.modules() if hasattr(one, "merged_adapters")]
        self._weights = [one for one in model.parameters() if not one.is_inference()]
        self._first = self._state()

    @property
    def unchanged(self) -> bool:
        return self._state() == self._first

    def digest(self) -> bytes | None:
        """Returns the digest of the adapters that are in use; None if none is. Reads them whole."""
        in_use, _, _ = self._first
        if not in_use:
            return None
        from peft import get_peft_model_state_dict

        digest = hashlib.sha256(repr(in_use).encode())
        names = {name for active, _, merged in in_use for name in (*active, *merged)}
        for name in sorted(names):
            config = self._model.peft_config[name].to_dict()
            kept = {key: config[key] for key in config if key not in _NOT_OF_THE_ADAPTER}
            digest.update(_json(kept))
            tensors = get_peft_model_state_dict(self._model, adapter_name=name)
            digest.update(_digest_of(sorted(tensors.items())))
        return digest.digest()

    def _state(self) -> tuple[list[tuple[Any, ...]], list[str], tuple[Any, ...]]:
        """Returns which adapters the layers use, which there are, and what tells that weights were
        changed, converted or moved."""
        in_use = set()
        for one in self._tuners:
            active = one.active_adapters
            active = (active,) if isinstance(active, str) else tuple(active)
            disabled, merged = bool(one.disable_adapters), tuple(one.merged_adapters)
            if merged or (active and not disabled):
                in_use.add((() if disabled else active, disabled, merged))
        known = sorted(getattr(self._model, "peft_config", None) or {})
        changes = sum(one._version for one in self._weights)
        weights = (self._model.dtype, self._model.device, changes)
        return sorted(in_use), known, weights


def _changed_at_loading(model: Any, files: Files) -> dict[str, Any]:
    """Returns the fields of the model's configuration that are not as its file says: given to
    from_pretrained(), such as another RoPE or a quantization of the weights."""
    config = type(model.config)
    try:
        on_disk = AutoConfig.from_pretrained(files.directory)
        if type(on_disk) is not config:
            on_disk = config.from_pretrained(files.directory)
    except (OSError, ValueError, KeyError) as error:
        raise Unsupported(f"its config.json cannot be read ({error})") from error
    now, then = _clean(model.config.to_dict()), _clean(on_disk.to_dict())
    names = sorted({*now, *then})
    return {name: now.get(name) for name in names if now.get(name) != then.get(name)}


def _clean(config: Any) -> Any:
    if isinstance(config, Mapping):
        return {
            str(name): _clean(value)
            for name, value in config.items()
            if name not in _NOT_OF_THE_ROWS
        }
    return config


def _json(said: Any) -> bytes:
    def plain(value: Any) -> Any:
        return sorted(value) if isinstance(value, (set, frozenset)) else str(value)

    return json.dumps(said, sort_keys=True, default=plain).encode()


def _digest_of(tensors: Iterable[tuple[str, torch.Tensor]]) -> bytes:
    digest = hashlib.sha256()
    for name, tensor in tensors:
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(bytes_of(to_host(tensor)).tobytes())
    return digest.digest()
