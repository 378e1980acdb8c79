"""What prefixd has stored, read by its plain client; and what it should be, by NumPy alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from engines import MODEL
from numpy.typing import NDArray
from safetensors.torch import load_file

import prefixd
from prefixd.engine.files import Files
from prefixd.engine.formats import RAW as AS_COMPUTED
from prefixd.engine.formats import as_format, ladder

LAYERS, HEADS, DIM = 6, 2, 64
RAW = tuple(as_format(form, "float32") for form in ladder(AS_COMPUTED))
"""The formats of the spaces in which all adapters keep raw rows of this model."""


def rows(
    address: str, tokens: list[int], layer: int, count: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Returns K and V [1, heads, count, dim] of a layer, as any engine of this model reads them."""
    with (
        space_of(address, MODEL, layers_of(*RAW)) as space,
        space.acquire(tokens, readable=0) as lease,
    ):
        assert lease.wait_all() >= count, lease
        found = lease.gather(layer, count)
        assert found is not None, lease.error
        (key,), (value,) = found
        return key, value


def layers_of(*formats: prefixd.Format) -> list[prefixd.Layer]:
    """Those of the shipped model."""
    return [prefixd.FullLayer(HEADS, DIM, DIM, formats)] * LAYERS


@contextlib.contextmanager
def space_of(address: str, model: Path, layers: Sequence[prefixd.Layer]) -> Iterator[prefixd.Space]:
    """Opens the space as any engine of a model does, one that knows nothing of vLLM."""
    files = Files.of(str(model))
    with prefixd.connect(address, name="test") as client:
        yield client.open_space(
            model=model.name,
            weights=files.weights(),
            tokenizer=files.tokenizer(),
            rope=prefixd.rope_of(files.config()),
            layers=layers,
        )


def first_rows(tokens: list[int]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Computes K and V [heads, tokens, dim] of the first layer."""
    weights = load_file(MODEL / "model.safetensors")

    def weight(name: str) -> NDArray[np.float32]:
        return weights[f"model.{name}.weight"].to(torch.float32).numpy()

    hidden = weight("embed_tokens")[tokens]
    hidden = hidden / np.sqrt((hidden**2).mean(-1, keepdims=True) + 1e-5)
    hidden = hidden * weight("layers.0.input_layernorm")

    def heads(name: str) -> NDArray[np.float32]:
        turned = hidden @ weight(f"layers.0.self_attn.{name}").T
        return turned.reshape(len(tokens), HEADS, DIM).transpose(1, 0, 2)

    angles = np.arange(len(tokens))[:, None] * 10000.0 ** (-np.arange(0, DIM, 2) / DIM)
    cos, sin = np.cos(angles), np.sin(angles)
    low, high = np.split(heads("k_proj"), 2, axis=-1)
    key = np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)
    return key.astype(np.float32), heads("v_proj")


def damage(folder: Path) -> None:
    """Turns bits in the pages of a stopped prefixd's SSD tier, here and there."""
    tables = [path for path in folder.rglob("*.sst") if path.stat().st_size > 1 << 20]
    assert tables, f"{folder} has no pages"
    for path in tables:
        size = path.stat().st_size
        with path.open("r+b") as file:
            for at in range(size // 2, size * 3 // 4, 1 << 18):  # its index is behind the pages
                file.seek(at)
                old = file.read(1)
                file.seek(at)
                file.write(bytes([old[0] ^ 1]))
