"""Saver: a thread that saves caches, one after another, while the engine generates."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable

log = logging.getLogger("prefixd.engine")

_MOST_WAITING = 16  # saves in the queue; each holds the rows of a prompt


class Saver:
    """One thread submits and waits, another one saves. Saves happen in the order of submit().
    `most_bytes`: what all unfinished saves may hold; one alone may hold more. None: no limit."""

    def __init__(self, most_bytes: int | None = None) -> None:
        self._most_bytes = most_bytes
        self._waiting: queue.Queue[tuple[Callable[[], None], int]] = queue.Queue(_MOST_WAITING)
        self._idle = threading.Condition()
        self._unfinished = 0
        self._bytes = 0
        threading.Thread(target=self._run, name="prefixd-saver", daemon=True).start()

    def submit(self, save: Callable[[], None], held_bytes: int = 0) -> bool:
        """Queues a save that holds so many bytes. Returns False if too many saves or bytes are
        waiting: a daemon that hangs must not fill this process."""
        with self._idle:
            most = self._most_bytes
            if self._unfinished and most is not None and self._bytes + held_bytes > most:
                return False
            self._unfinished += 1
            self._bytes += held_bytes
        try:
            self._waiting.put_nowait((save, held_bytes))
        except queue.Full:
            self._done(held_bytes)
            return False
        return True

    def settle(self, deadline_s: float) -> bool:
        """Waits up to `deadline_s` until everything submitted is saved. Returns whether it is."""
        end = time.monotonic() + deadline_s
        with self._idle:
            while self._unfinished:
                left = end - time.monotonic()
                if left <= 0:
                    return False
                self._idle.wait(left)
        return True

    def _run(self) -> None:
        while True:
            save, held_bytes = self._waiting.get()
            try:
                save()
            except Exception:
                log.warning("a save ended unexpectedly", exc_info=True)
            del save  # frees the rows that it holds
            self._done(held_bytes)

    def _done(self, held_bytes: int) -> None:
        with self._idle:
            self._unfinished -= 1
            self._bytes -= held_bytes
            self._idle.notify_all()
