"""Digests of a model's files for its space: of those that decide which caches the model can use."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import prefixd

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
)
_ADAPTER_FILES = ("adapters.safetensors", "adapter_config.json")  # the latter has the scale
_NOT_OF_THE_MODEL = ("_name_or_path", "transformers_version")


def read_config(directory: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((directory / "config.json").read_text())
    return config


@dataclass(frozen=True)
class Files:
    """The files of a model and of its adapter. The digests read the files whole, on any thread."""

    directory: Path
    adapter_directory: Path | None = None

    @staticmethod
    def of(path: str, adapter: str | None = None, revision: str | None = None) -> Files:
        """Returns the files of `path`: a folder, or a name that the engine downloaded from the
        Hugging Face Hub, at `revision`."""
        directory = Path(path)
        if not directory.exists():
            from huggingface_hub import snapshot_download

            directory = Path(snapshot_download(path, revision=revision, local_files_only=True))
        return Files(directory, Path(adapter) if adapter else None)

    def config(self) -> dict[str, Any]:
        return read_config(self.directory)

    def weights(self) -> bytes:
        """Returns the digest of the tensors, and of what says how to compute with them."""
        config = self.config()
        early = _being_read.pop(self.directory, None)
        if early is not None:
            early.join()  # the library remembers its digest
        digest = hashlib.sha256(prefixd.digest_checkpoint(self.directory))
        digest.update(json.dumps(_of_the_model(config), sort_keys=True).encode())
        if config.get("model_file"):  # the model's own code
            digest.update(prefixd.digest_file(self.directory / config["model_file"]))
        return digest.digest()

    def adapter(self) -> bytes | None:
        if self.adapter_directory is None:
            return None
        return _digest_of(self.adapter_directory, _ADAPTER_FILES)

    def tokenizer(self) -> bytes:
        """Returns the digest of all files that turn text into tokens."""
        names = [name for name in _TOKENIZER_FILES if (self.directory / name).exists()]
        return _digest_of(self.directory, names)


_being_read: dict[Path, Thread] = {}


def read_early(path: str) -> None:
    """Starts a thread that reads the tensors of a checkpoint for Files.weights() while the engine
    loads them. A checkpoint that is not here yet is read later."""
    try:
        directory = Files.of(path).directory
    except Exception:  # the engine downloads it first, or says what is wrong
        return
    if directory.is_dir():
        reader = Thread(target=_digest_quietly, args=(directory,), daemon=True)
        _being_read[directory] = reader
        reader.start()


def _digest_quietly(directory: Path) -> None:
    with contextlib.suppress(Exception):  # Files.weights() raises it again
        prefixd.digest_checkpoint(directory)


def _of_the_model(config: Any) -> Any:
    """Returns a config.json without the fields that are known not to change a row of K or V. An
    unknown field counts."""
    if isinstance(config, dict):
        return {
            name: _of_the_model(value)
            for name, value in config.items()
            if name not in _NOT_OF_THE_MODEL and not name.startswith("eos_")
        }
    return config


def _digest_of(directory: Path, names: Sequence[str]) -> bytes:
    digest = hashlib.sha256()
    for name in names:
        digest.update(name.encode() + prefixd.digest_file(directory / name))
    return digest.digest()
