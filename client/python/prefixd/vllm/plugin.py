"""The plugin that vLLM loads in each of its processes: `PREFIXD=1 vllm serve M` is all to type.

vLLM asks its plugins before it reads its command line, so the plugin completes the command line.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

_FLAG = "--kv-transfer-config"


def register() -> None:
    """Adds PrefixdConnector to the command line of `vllm serve`, where $PREFIXD is "1" and the user
    has named no connector. $PREFIXD_ADDRESS: prefixd's address; $PREFIXD_SALT: the salt;
    $PREFIXD_START=1: starts a prefixd where none runs."""
    if os.environ.get("PREFIXD") == "1" and is_to_complete(sys.argv):
        sys.argv += [_FLAG, json.dumps(transfer_config())]


def is_to_complete(command: list[str]) -> bool:
    if Path(command[0]).stem != "vllm" or command[1:2] != ["serve"]:
        return False
    named = [word.partition("=")[0].replace("_", "-") for word in command]
    return not {_FLAG, "--config"} & set(named)  # a file may name a connector


def transfer_config() -> dict[str, object]:
    said: dict[str, object] = {
        "start": os.environ.get("PREFIXD_START") == "1",
        "address": os.environ.get("PREFIXD_ADDRESS"),
        "salt": os.environ.get("PREFIXD_SALT"),
        "token_file": os.environ.get("PREFIXD_TOKEN_FILE"),
    }
    return {
        "kv_connector": "PrefixdConnector",
        "kv_connector_module_path": "prefixd.vllm",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {name: value for name, value in said.items() if value},
    }
