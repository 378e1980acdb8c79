"""Pinning the daemon's memory for adapters with a model on a GPU, beside their work."""

from __future__ import annotations

import logging

import torch

from .. import Error, Lease
from ..torch import Pinned, gpu, why_no_gpu


class Pinning:
    """Pins the memory behind each lease that it is given, once, on a thread; that of a daemon that
    ended goes with the last adapter that used it. Where it cannot be pinned, or `device` is none of
    prefixd's GPUs, pages are copied through a buffer; the first failure is logged, and no other
    lease is tried. Thread-safe."""

    def __init__(self, device: torch.device, log: logging.Logger) -> None:
        self._device, self._log = device, log
        self._works = device.type == "cuda" and not why_no_gpu(device)
        self._pinned: Pinned | None = None

    def pin(self, lease: Lease) -> None:
        if not self._works:
            return
        try:
            self._pinned = gpu(self._device).pin_once(lease) or self._pinned
        except Error as error:
            self._works = False
            self._log.warning("prefixd's memory is not pinned, pages are copied first: %s", error)
