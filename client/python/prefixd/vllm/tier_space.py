"""TierSpace: the space of a server's chunks, opened behind vLLM's back."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Any

import vllm

import prefixd

from .tier_identity import TierIdentity
from .tier_options import TierOptions

log = logging.getLogger("vllm.prefixd")

_PAUSE_S = 1.0  # after prefixd did not answer, until it is asked again


class TierSpace:
    """Thread-safe. The model's files are read on a thread of its own; until then, or if they cannot
    be, now() gives None."""

    def __init__(self, spec: Any, chunk_bytes: int, options: TierOptions) -> None:
        self._client = prefixd.connect(
            options.address,
            name=f"{options.name or 'vllm'}-tier-{os.getpid()}",
            engine=f"vllm {vllm.__version__}",
            token_file=options.token_file,
        )
        self._space: prefixd.Space | None = None
        self._silent_until = 0.0
        self._said = ""
        self._closed = False
        self._lock = threading.Lock()  # guards the three above
        threading.Thread(
            target=self._open, args=(spec, chunk_bytes, options), name="prefixd-files", daemon=True
        ).start()

    def now(self) -> prefixd.Space | None:
        """Returns the space; None for a moment after prefixd did not answer: nobody waits for it
        again meanwhile."""
        return None if time.monotonic() < self._silent_until else self._space

    def heard(self, error: str) -> None:
        """Notes how a call to prefixd ended; "" = well. Says once that it fails, once that it does
        not any more."""
        if not error and not self._said:
            return
        with self._lock:
            before, self._said = self._said, error
            if error:
                self._silent_until = time.monotonic() + _PAUSE_S
        if error and not before:
            log.warning("chunks are neither stored in prefixd nor loaded: %s", error)
        elif before and not error:
            log.info("prefixd is back")

    def close(self) -> None:
        with self._lock:
            self._closed, self._space = True, None
        self._client.close()

    def _open(self, spec: Any, chunk_bytes: int, options: TierOptions) -> None:
        try:
            identity = TierIdentity.of(spec, options)
            space = identity.open(self._client, chunk_bytes)
        except Exception as error:  # no checkpoint, unreadable, or nothing that a space can hold
            name, why = spec.config.model.name, f"{type(error).__name__}: {error}"
            log.warning("prefixd does not hold chunks of %s: %s", name, why)
            self._client.not_shared(name, why)
            return
        with self._lock:
            if not self._closed:
                self._space = space
        self.heard(space.error)
        if not space.error:
            log.info("prefixd holds chunks of %s", identity.name)
