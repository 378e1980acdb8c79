"""What decides the bytes of a server's chunks, and with that their space."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import prefixd

from ..engine.files import Files
from ..engine.spaces import Unsupported
from .tier_chunks import TOKENS, layers_of
from .tier_options import TierOptions


@dataclass(frozen=True)
class TierIdentity:
    """What vLLM tells a tier, and the files of the model say. vLLM does not tell everything: see
    client/README.md."""

    name: str
    weights: bytes
    salt: str

    @staticmethod
    def of(spec: Any, options: TierOptions) -> TierIdentity:
        """Reads the files whole. `spec`: vLLM's OffloadingSpec. Raises Unsupported, or what Files
        raises, if the chunks cannot be shared."""
        model = spec.config.model.name
        files = Files.of(model, revision=options.revision)
        if prefixd.rope_of(files.config()).scaling == "longrope":
            raise Unsupported("vLLM does not tell a tier with which factors of longrope it runs")
        said = json.dumps([options.salt, _layout(spec)], sort_keys=True)
        return TierIdentity(
            name=options.model_name or Path(model).name,
            weights=files.weights(),
            salt="vllm-tier:" + hashlib.sha256(said.encode()).hexdigest(),
        )

    def open(self, client: prefixd.Client, chunk_bytes: int) -> prefixd.Space:
        return client.open_space(
            model=self.name,
            weights=self.weights,
            layers=layers_of(chunk_bytes),
            salt=self.salt,
            block_tokens=TOKENS,
        )


def _layout(spec: Any) -> dict[str, Any]:
    """Returns the settings that decide what stands where in a chunk: those by which vLLM's own
    tiers tell their files apart, and on what it runs, for that chooses the layout of a page."""
    import vllm
    from vllm.platforms import current_platform
    from vllm.v1.kv_offload.file_mapper import FileMapper

    mapper = FileMapper.from_offloading_spec(
        root_dir="",
        offloading_spec=spec,
        blocks_per_file=spec.blocks_per_chunk,
        parallel_agnostic=True,
    )
    said = mapper.get_run_config()
    del said["model_name"]  # the digest of its weights stands for it
    said["rank"] = mapper.rank
    said["kv_cache_layout"] = spec.config.kv_cache_layout
    said["vllm"] = vllm.__version__
    said["device"] = f"{current_platform.device_type} {current_platform.get_device_name()}"
    return said
