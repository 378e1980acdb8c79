"""LoRA adapters of requests: by the files of an adapter, servers that call it by any name share."""

from __future__ import annotations

import hashlib
import logging
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import prefixd

log = logging.getLogger("vllm.prefixd")

_Seen = tuple[tuple[str, int, int, int], ...]


@dataclass(frozen=True)
class _Known:
    digest: bytes  # b"": its requests are not shared
    path: str
    seen: _Seen  # its files when they were read


class Adapters:
    """The adapters that this server has loaded, by vLLM's number. vLLM does not tell what it loaded,
    nor when: an adapter whose files, path or number change while the server runs is not shared any
    more. Thread-safe."""

    def __init__(self, lora_config: Any) -> None:
        self._dtype = str(getattr(lora_config, "lora_dtype", ""))
        self._known: dict[int, _Known] = {}
        self._lock = threading.Lock()

    def look_at(self, lora: Any) -> bytes:
        """Returns the adapter's digest, b"" if it is not shared. Reads its files the first time that
        it is asked for: not on the scheduler's thread."""
        with self._lock:
            if lora.lora_int_id not in self._known:
                self._known[lora.lora_int_id] = self._read(lora)
        return self.digest(lora)

    def digest(self, lora: Any) -> bytes:
        """Returns what look_at() found, if the adapter is still as it was then; else b""."""
        known = self._known.get(lora.lora_int_id)
        if known is None or not known.digest:
            return b""
        if lora.load_inplace or lora.lora_path != known.path or _look(lora) != known.seen:
            self._refuse(lora, "it changed while this server runs")
            return b""
        return known.digest

    def _read(self, lora: Any) -> _Known:
        seen = _look(lora)
        if lora.load_inplace or not seen:
            return self._refuse(lora, f"{lora.lora_path} is no folder that is read once")
        digest = hashlib.sha256(f"{self._dtype} {lora.is_3d_lora_weight}".encode())
        try:
            for name, *_ in seen:
                digest.update(name.encode() + prefixd.digest_file(Path(lora.lora_path) / name))
        except prefixd.Error as error:
            return self._refuse(lora, str(error))
        return _Known(digest.digest(), lora.lora_path, seen)

    def _refuse(self, lora: Any, why: str) -> _Known:
        log.warning("requests with %s are computed without prefixd: %s", lora.lora_name, why)
        refused = self._known[lora.lora_int_id] = _Known(b"", lora.lora_path, ())
        return refused


def _look(lora: Any) -> _Seen:
    """Returns what tells that a file of the adapter was changed or replaced."""
    folder, seen = Path(lora.lora_path), []
    try:
        for path in sorted(folder.iterdir()):
            if path.suffix in (".json", ".safetensors", ".bin", ".pt"):
                stat = path.stat()
                seen.append((path.name, stat.st_ino, stat.st_size, stat.st_mtime_ns))
    except OSError:
        return ()
    return tuple(seen)
