"""Spaces: the spaces of one server's rank or ranks, one for each salt and adapter of requests."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import vllm

import prefixd

from .identity import Identity, Rank
from .options import Options

log = logging.getLogger("vllm.prefixd")

_MOST_OPEN = 64  # salts and adapters whose spaces are kept open; the one used last longest ago is closed
_PAUSE_S = 1.0  # after prefixd did not answer, until it is asked again


class Spaces:
    """Thread-safe. The model's files are read on a thread of its own; until then, or if they cannot
    be, of() gives None."""

    def __init__(
        self, vllm_config: Any, options: Options, ranks: Sequence[Rank], role: str
    ) -> None:
        self._config, self._options, self._ranks = vllm_config, options, tuple(ranks)
        self._client = prefixd.connect(
            options.address,
            name=f"{options.name or 'vllm'}-{role}-{os.getpid()}",
            engine=f"vllm {vllm.__version__}",
            token_file=options.token_file,
        )
        self._identity: Identity | None = None
        self._open: OrderedDict[tuple[str, bytes], list[prefixd.Space]] = OrderedDict()
        self._lock = threading.Lock()
        self._silent_until = 0.0
        self._said = ""
        threading.Thread(target=self._read_files, name="prefixd-files", daemon=True).start()

    def of(self, request_salt: str, adapter: bytes = b"") -> list[prefixd.Space] | None:
        """Returns the space of each rank. adapter: digest of the request's LoRA adapter."""
        identity = self._identity
        if identity is None:
            return None
        with self._lock:
            key = (request_salt, adapter)
            spaces = self._open.get(key)
            if spaces is None:
                try:
                    spaces = [
                        identity.open(self._client, rank, self._options.salt, request_salt, adapter)
                        for rank in self._ranks
                    ]
                except prefixd.Error as error:
                    self._refuse(identity.name, str(error))
                    return None
                self._open[key] = spaces
                if len(self._open) > _MOST_OPEN:
                    self._open.popitem(last=False)
            self._open.move_to_end(key)
            return spaces

    @property
    def is_silent(self) -> bool:
        """True for a moment after prefixd did not answer: nobody waits for it again meanwhile."""
        return time.monotonic() < self._silent_until

    def heard(self, error: str) -> None:
        """Notes how a call to prefixd ended; "" = well. Says once that it fails, once that it does
        not any more."""
        if error:
            self._silent_until = time.monotonic() + _PAUSE_S
            if not self._said:
                log.warning("prompts are computed without prefixd: %s", error)
        elif self._said:
            log.info("prefixd is back")
        self._said = error

    def close(self) -> None:
        with self._lock:
            self._identity = None
            self._open.clear()
        self._client.close()

    def _read_files(self) -> None:
        try:
            identity = Identity.of(self._config, self._options)
        except Exception as error:  # a folder that is no checkpoint, a file that cannot be read
            name = str(self._config.model_config.model)
            self._refuse(name, f"{type(error).__name__}: {error}")
            return
        self._identity = identity
        spaces = self.of("")
        if spaces and not any(space.error for space in spaces):
            log.info("prefixd holds caches of %s", identity.name)

    def _refuse(self, name: str, why: str) -> None:
        self._identity = None
        log.warning("prefixd does not hold caches of %s: %s", name, why)
        self._client.not_shared(name, why)
