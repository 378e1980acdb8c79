"""A configuration's fields about RoPE: their places, their names, and what contradicts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ._canonical import canonical, number
from ._rope_families import FAMILIES, UNKNOWN

THETA = ("rope_theta", "global_rope_theta", "rotary_emb_base", "rotary_embedding_base") + (
    "rope_embedding_base",
    "rope_freq_constant",
)
LOCAL_THETA = ("rope_local_base_freq", "local_rope_theta", "rope_local_theta", "swa_rope_theta")
SHARE = ("partial_rotary_factor", "rotary_pct", "rope_pct")
DIMS = ("qk_rope_head_dim", "rotary_dim", "rope_dim")
INTERLEAVED = ("rope_traditional", "rope_interleave", "rope_interleaved")

# Fields that hold the language model's configuration inside a larger one, outermost first.
_INSIDE = ("thinker_config", "text_config", "language_config", "llm_config", "attn_config")
_ABOUT_ROPE = re.compile(r"(^|_)(m?rope|rotary|nope|theta|yarn|ntk|alibi)")
_SHAPES = ("qk_nope_head_dim",)  # named like RoPE's, but only about the width of a key
_HEAD_SIZES = (("hidden_size", "num_attention_heads"), ("n_embd", "n_head"), ("d_model", "n_heads"))


def levels_of(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the configuration and those inside it that describe the language model."""
    levels = [config]
    for name in _INSIDE:
        inner = levels[-1].get(name)
        if isinstance(inner, Mapping):
            levels.append(inner)
    return levels


def merged(levels: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the innermost value of each field. null counts as absent."""
    return {name: value for level in levels for name, value in level.items() if value is not None}


def other_readings(
    levels: list[Mapping[str, Any]], fields: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yields fields that another engine may read differently, as several places have them."""
    for level in levels[:-1]:
        yield {
            name: value
            for name, value in level.items()
            if value is not None and _is_about_rope(name) and not same(value, fields[name])
        }
    if "rope_scaling" in fields and "rope_parameters" in fields:
        yield {"rope_parameters": fields["rope_scaling"]}


def _is_about_rope(name: Any) -> bool:
    return isinstance(name, str) and _ABOUT_ROPE.search(name) is not None and name not in _SHAPES


def same(left: Any, right: Any) -> bool:
    return canonical(left) == canonical(right)


class Notes(dict[str, list[Any]]):
    """What the digest covers: all values noted under each name."""

    def add(self, name: str, value: Any) -> None:
        self.setdefault(name, []).append(value)


class Fields:
    """The fields of one configuration. unread() yields the rope fields that take() did not read."""

    def __init__(self, said: Mapping[str, Any]) -> None:
        self._said = said
        self._read = {"rope_scaling", "rope_parameters"}
        model_type = said.get("model_type")
        self.model_type = model_type if isinstance(model_type, str) else ""
        self.family = FAMILIES.get(self.model_type, UNKNOWN)

    def get(self, name: str, default: Any = None) -> Any:
        return self._said.get(name, default)

    def __contains__(self, name: str) -> bool:
        return name in self._said

    def take(
        self, names: tuple[str, ...], notes: Notes, first: dict[str, Any] | None = None
    ) -> Any:
        """Returns the first value of `names`: in `first`, which loses them, else in the
        configuration. Notes later values that differ from it."""
        values = [] if first is None else [(name, first.pop(name, None)) for name in names]
        values += [(name, self.get(name)) for name in names]
        self._read.update(names)
        said = None
        for name, value in values:
            if said is None:
                said = value
            elif value is not None and not same(value, said):
                notes.add(f"{name} too", value)
        return said

    def was_read(self, name: str) -> bool:
        return name in self._read

    def unread(self) -> Iterator[tuple[str, Any]]:
        for name, value in self._said.items():
            if _is_about_rope(name) and name not in self._read:
                yield name, value

    def head_dim(self) -> Any:
        said = self.get("head_dim", self.family.head_dim)
        for size, heads in _HEAD_SIZES:
            wide, many = number(self.get(size)), number(self.get(heads))
            if said is None and wide is not None and many is not None and many > 0:
                said = wide // many
        return said
