"""vLLM on prefixd: its servers share prefixes with each other, across restarts.

    vllm serve M --kv-transfer-config '{"kv_connector": "PrefixdConnector",
        "kv_connector_module_path": "prefixd.vllm", "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute"}'

vLLM, torch and this connector are imported when PrefixdConnector is first used; Options needs none.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .options import OptionError, Options

if TYPE_CHECKING:
    from .connector import PrefixdConnector

__all__ = ["OptionError", "Options", "PrefixdConnector"]


def __getattr__(name: str) -> Any:
    if name == "PrefixdConnector":
        return importlib.import_module(".connector", __name__).PrefixdConnector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
