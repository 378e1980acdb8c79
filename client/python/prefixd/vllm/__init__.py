"""vLLM on prefixd: its servers share prefixes with each other, across restarts.

    vllm serve M --kv-transfer-config '{"kv_connector": "PrefixdConnector",
        "kv_connector_module_path": "prefixd.vllm", "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute"}'

Behind vLLM's own offloading of GPU hosts: PrefixdTier, see tier.py. vLLM, torch and these two are
imported when one is first used; Options needs none.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .options import OptionError, Options

if TYPE_CHECKING:
    from .connector import PrefixdConnector
    from .tier import PrefixdTier

__all__ = ["OptionError", "Options", "PrefixdConnector", "PrefixdTier"]


def __getattr__(name: str) -> Any:
    if name == "PrefixdConnector":
        return importlib.import_module(".connector", __name__).PrefixdConnector
    if name == "PrefixdTier":
        return importlib.import_module(".tier", __name__).PrefixdTier
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
