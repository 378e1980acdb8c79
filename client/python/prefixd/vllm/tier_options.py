"""TierOptions: what an entry of "secondary_tiers" may say beside `type` and `module_path`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .options import DEFAULT_ADDRESS, OptionError, check_options


@dataclass(frozen=True)
class TierOptions:
    """`address`, `token_file`, `name`: as of prefixd.connect(). `salt`: servers with different ones
    share nothing. `revision`: that of the checkpoint, if the server is given one. Deadlines in ms:
    `lookup_deadline_ms` of one chunk, `load_deadline_ms` and `store_deadline_ms` of one job of
    vLLM, from the moment it is submitted. `threads`: so many load and as many store. `locality`:
    vLLM's, "LOCAL" or "REMOTE". `model_name`: for people, but servers share under one name alone;
    default: the name of the model's folder."""

    address: str = DEFAULT_ADDRESS
    token_file: str | None = None
    name: str = ""
    salt: str = ""
    revision: str | None = None
    lookup_deadline_ms: int = 200
    load_deadline_ms: int = 2000
    store_deadline_ms: int = 5000
    threads: int = 4
    locality: str | None = None
    model_name: str = ""

    @staticmethod
    def of(said: Mapping[str, Any]) -> TierOptions:
        """Returns the options. Raises OptionError for an unknown key or a value of another type."""
        check_options(TierOptions, said, "secondary_tiers, PrefixdTier")
        options = TierOptions(**said)
        if options.threads == 0:
            raise OptionError("threads is 0, must be at least 1")
        if options.locality not in (None, "LOCAL", "REMOTE"):
            raise OptionError(f"locality is {options.locality!r}, must be 'LOCAL' or 'REMOTE'")
        return options
