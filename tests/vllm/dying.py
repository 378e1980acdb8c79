"""PrefixdConnector beside a prefixd that dies at the worst moment: it has promised a prefix, and a
worker comes to load it. The file that PREFIXD_DIES names holds its process id."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import prefixd.vllm


class PrefixdConnector(prefixd.vllm.PrefixdConnector):
    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        victim = Path(os.environ["PREFIXD_DIES"])
        if self._work().loads and victim.exists():
            os.kill(int(victim.read_text()), signal.SIGKILL)
            victim.unlink()
        super().start_load_kv(forward_context, **kwargs)
