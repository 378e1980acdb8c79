"""mlx-lm on prefixd: any process saves its cache objects and gets them back.

PromptCache   takes the place of mlx_lm.server's LRUPromptCache
open_model    opens the shared caches of one model: fetch() and store()
Options       whether and how caches are quantized
convert       converts cache objects that keep every row to rows, and back

``python -m prefixd.mlx.server`` is mlx_lm.server on all of this. mlx and mlx_lm are imported when
one of the names is first used; Options needs neither.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .options import OptionError, Options, TensorFormat

if TYPE_CHECKING:
    from . import convert
    from .geometry import Unsupported
    from .opening import Model, open_model
    from .prompt_cache import PromptCache
    from .shared import SharedCaches

__all__ = [
    "Model",
    "OptionError",
    "Options",
    "PromptCache",
    "SharedCaches",
    "TensorFormat",
    "Unsupported",
    "convert",
    "open_model",
]

_HOMES = {
    "Model": "opening",
    "PromptCache": "prompt_cache",
    "SharedCaches": "shared",
    "Unsupported": "geometry",
    "open_model": "opening",
}


def __getattr__(name: str) -> Any:
    if name == "convert":
        return importlib.import_module(".convert", __name__)
    if name in _HOMES:
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
