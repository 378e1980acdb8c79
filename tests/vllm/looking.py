"""PrefixdConnector that writes down rows of vLLM's pages: those that it saves, and those that it
loaded, as the step leaves them. Into the folder that PREFIXD_LOOKS names, in files that a later
step replaces: "saved.npz" and "loaded.npz", arrays [layers, K and V, heads, tokens, dim]."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import prefixd.vllm
import torch
from prefixd.vllm.messages import Load, Save


class PrefixdConnector(prefixd.vllm.PrefixdConnector):
    def wait_for_save(self) -> None:
        super().wait_for_save()
        for name, seen in (("saved", self._work().saves), ("loaded", self._work().loads)):
            if seen:
                self._write(name, seen[-1])

    def _write(self, name: str, one: Save | Load) -> None:
        layout = self._doer._layout
        (ids,) = one.pages
        pages = torch.from_numpy(ids[one.begin // layout.groups.page :].astype(np.int64))
        layers = []
        for layer in (place.pages for place in layout.layers):
            dtype = layer.cache.dtype
            sides = (torch.from_numpy(side).view(dtype).float() for side in layer.take(pages))
            layers.append(torch.stack(list(sides)).numpy())
        np.savez(Path(os.environ["PREFIXD_LOOKS"]) / name, rows=np.stack(layers))
