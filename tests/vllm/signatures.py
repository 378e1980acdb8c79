"""What of vLLM's interfaces prefixd.vllm implements: names of methods and of their arguments, and
which are required. `tests/vllm/run BUILD_DIR record` writes them down, for a test without vLLM."""

from __future__ import annotations

import importlib
import inspect
import json
from pathlib import Path
from typing import Any

import vllm

RECORDED = Path(__file__).resolve().parents[1] / "python" / "vllm_signatures.json"
_BASES = {
    "connector.py PrefixdConnector": [
        "vllm.distributed.kv_transfer.kv_connector.v1.base.KVConnectorBase_V1",
        "vllm.distributed.kv_transfer.kv_connector.v1.base.SupportsHMA",
    ],
    "tier.py PrefixdTier": ["vllm.v1.kv_offload.tiering.base.SecondaryTierManager"],
}


def look() -> dict[str, Any]:
    return {
        "vllm": vllm.__version__.partition("+")[0],
        **{ours: _methods(theirs) for ours, theirs in _BASES.items()},
    }


def _methods(bases: list[str]) -> dict[str, Any]:
    found = {}
    for path in bases:
        module, _, name = path.rpartition(".")
        kind = getattr(importlib.import_module(module), name)
        for method, value in inspect.getmembers(kind):
            if method == "__init__" or not method.startswith("_"):
                found.setdefault(method, _method(kind, method, value))
    return dict(sorted(found.items()))


def _method(kind: type, name: str, value: Any) -> dict[str, Any]:
    plain = inspect.getattr_static(kind, name)
    if isinstance(plain, property):
        value = plain.fget
    arguments = list(inspect.signature(value).parameters) if callable(value) else []
    return {
        "arguments": [one for one in arguments if one not in ("self", "cls")],
        "required": bool(getattr(plain, "__isabstractmethod__", False)),
    }


def record() -> None:
    RECORDED.write_text(json.dumps(look(), indent=1) + "\n")


if __name__ == "__main__":
    record()
