"""rope_of(): turns a model's configuration, as Hugging Face and mlx-lm write it, into a Rope.

Configurations that mean the same have the same Rope, however they are spelled. Configurations that
say anything else about RoPE have another Rope.

`scaling` begins with the name of the full layers' scaling ("" for none). If sliding layers turn in
another way, "+local" follows ("local" alone after ""). If something is left to say, ":" and a
digest follow: "llama3", "linear+local", "mrope:0f1c...". A model without RoPE that has rope fields
has "none:...". `scaling_params` are the scaling's own, then the sliding layers' theta:

    linear        factor
    llama3        factor, low_freq_factor, high_freq_factor, original_max_position_embeddings
    dynamic       factor, max_position_embeddings
    yarn          factor, original_max_position_embeddings, beta_fast, beta_slow, mscale,
                  mscale_all_dim, and attention_factor if there is one
    longrope      original_max_position_embeddings, max_position_embeddings, how many short factors,
                  the short factors, the long factors
    mrope         mrope_section
    proportional  factor, partial_rotary_factor

The digest (_canonical.py) covers what has no place there: fields that this package does not know,
values that are no numbers, spellings that disagree, numbers that the daemon refuses (a number that
it takes replaces them), how sliding layers turn if more than theta differs, layers that do not
turn, and absent fields whose default depends on the engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ._canonical import digest, number
from ._formats import Rope
from ._rope_families import NO_ROPE
from ._rope_fields import (
    INTERLEAVED,
    LOCAL_THETA,
    SHARE,
    Fields,
    Notes,
    levels_of,
    merged,
    other_readings,
)
from ._rope_turn import Turn, turn_of

_MAX_PARAMS = 1024  # the daemon's limit
_MAX_LAYERS = 4096
_FULL, _SLIDING = "full_attention", "sliding_attention"
_POSITIONS = "position_embedding_type"
_POSITIONS_NOT_IN_KEYS = ("absolute", "alibi", "learned", "learned_absolute", "none", "nope")


def rope_of(config: Mapping[str, Any], head_dim: int | None = None) -> Rope:
    """Returns the Rope that turns a model's keys, from its config.json.

    `head_dim`: that of the keys, if the caller knows it better; that of the sliding layers, if the
    configuration has a global_head_dim for the full ones. Does not raise, whatever the values are,
    and a space opens with the result.
    """
    levels = levels_of(config)
    fields = merged(levels)
    rope = _Reading(fields, head_dim).rope()
    # A field in two places counts once, unless it matters which one an engine reads.
    doubts = {
        name: value
        for changed in other_readings(levels, fields)
        if _Reading({**fields, **changed}, head_dim).rope() != rope
        for name, value in changed.items()
    }
    return _Reading(fields, head_dim, doubts).rope() if doubts else rope


class _Reading:
    """One pass over a configuration's fields."""

    def __init__(
        self, said: Mapping[str, Any], head_dim: int | None, doubts: Mapping[str, Any] | None = None
    ) -> None:
        self._fields = Fields(said)
        self._family = self._fields.family
        self._head_dim = self._fields.head_dim() if head_dim is None else head_dim
        self._notes = Notes()
        if doubts:
            self._notes.add("said otherwise", doubts)

    def rope(self) -> Rope:
        if self._turns_nothing():
            return self._without()
        kinds = self._kinds()
        if _FULL not in kinds:
            return self._without()
        interleaved = self._interleaved(kinds[_FULL])
        full_dim = self._fields.get("global_head_dim", self._head_dim)
        full = turn_of(self._fields, kinds.pop(_FULL), full_dim, is_full=True)
        local = full
        if _SLIDING in kinds:
            local = turn_of(self._fields, kinds.pop(_SLIDING), self._head_dim, is_full=False)
        for name, said in kinds.items():
            turn = turn_of(self._fields, said, self._head_dim, is_full=True)
            self._notes.add(name, turn.as_list())
        self._note_layers_that_do_not_turn()
        return self._joined(full, local, interleaved)

    def _joined(self, full: Turn, local: Turn, interleaved: bool) -> Rope:
        name, params = full.scaling, full.params
        if full.notes:
            self._notes.add("full layers", full.notes)
        if local != full:
            name, params = f"{name}+local" if name else "local", (*params, local.theta)
            if local != Turn(local.theta, full.dims, ""):
                self._notes.add("sliding layers", local.as_list())
        self._note_unread()
        if len(params) > _MAX_PARAMS:
            self._notes.add("scaling_params", params)
            params = ()
        if self._notes:
            name = f"{name or 'default'}:{digest(self._notes)}"
        return Rope(full.theta, full.dims, name, params, interleaved)

    def _note_unread(self) -> None:
        for name, value in self._fields.unread():
            self._notes.add(f"field {name!r}", value)

    def _turns_nothing(self) -> bool:
        position = self._fields.get(_POSITIONS)
        if isinstance(position, str) and position in _POSITIONS_NOT_IN_KEYS:
            return True
        means_rope = position in ("rope", "rotary") and self._family.known
        if position is not None and position != "rope_gptj" and not means_rope:
            self._notes.add(_POSITIONS, position)
        for name in ("alibi", "mla_use_nope"):
            said = self._fields.get(name)
            if said is True or said is False and self._family.known:
                self._fields.take((name,), self._notes)
            if said is True:
                return True
        return self._fields.model_type in NO_ROPE

    def _without(self) -> Rope:
        """Returns the Rope of keys that are stored as they were computed."""
        for name in ("rope_parameters", "rope_scaling"):
            if name in self._fields:
                self._notes.add(name, self._fields.get(name))
        self._note_unread()
        return Rope(scaling=f"none:{digest(self._notes)}" if self._notes else "")

    def _kinds(self) -> dict[str, dict[str, Any]]:
        """Returns what rope_parameters says of each kind of layers: of _FULL, and of others that
        may turn in their own way. Empty if no layer turns."""
        said = self._scaling_said()
        if not _is_by_kind(said):
            return self._kinds_of_all_alike(said)
        kinds = {
            name: dict(values)
            for name, values in sorted(said.items(), key=str)
            if isinstance(name, str) and isinstance(values, Mapping)
        }
        beside = {name: value for name, value in said.items() if name not in kinds}
        if beside:  # a kind whose value is null does not turn
            self._notes.add("beside kinds", beside)
        if kinds and _FULL not in kinds:
            main = _SLIDING if _SLIDING in kinds else min(kinds)
            self._notes.add("kind", main)
            kinds[_FULL] = kinds.pop(main)
        return kinds

    def _scaling_said(self) -> Mapping[str, Any]:
        said: list[Mapping[str, Any]] = []
        for name in ("rope_parameters", "rope_scaling"):
            value = self._fields.get(name)
            if isinstance(value, Mapping):
                said += [value] if value else []
            elif value is not None:
                self._notes.add(name, value)
        return said[0] if said else self._family.parameters or {}

    def _kinds_of_all_alike(self, said: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        kinds, sliding = {_FULL: dict(said)}, self._family.sliding
        if sliding is None and not any(name in self._fields for name in LOCAL_THETA):
            return kinds
        is_scaled = any(
            name not in ("rope_theta", *SHARE) and value not in (None, "default")
            for name, value in said.items()
        )
        if is_scaled and not self._family.known:
            self._notes.add("whether sliding layers are scaled", None)
        if sliding is not None and self._fields.get("rope_parameters"):
            self._notes.add("whether rope_parameters is of all layers", None)
        scaled = sliding is not None and sliding.scaled
        kinds[_SLIDING] = {
            name: value
            for name, value in said.items()
            if name in SHARE or scaled and name != "rope_theta"
        }
        return kinds

    def _interleaved(self, full: dict[str, Any]) -> bool:
        """True for pairs (2i, 2i + 1): as one of the fields says, else as the family does."""
        said = self._fields.take(INTERLEAVED, self._notes, full)
        as_gptj = self._fields.get(_POSITIONS) == "rope_gptj"
        if said is None:
            return as_gptj or self._family.interleaved
        if as_gptj and said is not True:
            self._notes.add(_POSITIONS, "rope_gptj")
        if not isinstance(said, bool) or not said and not self._family.known:
            self._notes.add("interleaved", said)
        return said is True

    def _note_layers_that_do_not_turn(self) -> None:
        listed = self._fields.take(("no_rope_layers",), self._notes)
        interval = self._fields.take(("no_rope_layer_interval",), self._notes)
        layers = number(self._fields.get("num_hidden_layers"))
        step = self._family.nope_interval if interval is None else interval
        without = _layers_of_interval(step, layers)
        if listed is not None and listed != []:
            of_list = _layers_of_list(listed, layers)
            if interval is not None and without != of_list:
                self._notes.add("no_rope_layer_interval", interval)
            if of_list is None:
                self._notes.add("no_rope_layers", listed)
            without = of_list
        elif without is None:
            self._notes.add("no_rope_layer_interval", step)
        is_said = listed is not None or interval is not None
        if without or is_said and not self._family.known:
            self._notes.add("layers that do not turn", without)


def _is_by_kind(said: Mapping[str, Any]) -> bool:
    if _FULL in said or _SLIDING in said:
        return True
    values = [value for value in said.values() if value is not None]
    return bool(values) and all(isinstance(value, Mapping) for value in values)


def _layers_of_interval(interval: Any, layers: float | None) -> list[int] | None:
    """Returns every nth layer; None if that cannot be said."""
    step = number(interval)
    if step == 0:
        return []
    if step is None or step < 1 or step % 1 or layers is None or not 0 <= layers <= _MAX_LAYERS:
        return None
    return [layer for layer in range(int(layers)) if (layer + 1) % step == 0]


def _layers_of_list(listed: Any, layers: float | None) -> list[int] | None:
    """Returns the layers that have 0 in a list of 0 and 1; None for anything else."""
    if not isinstance(listed, (list, tuple)):
        return None
    if any(not isinstance(item, bool) and number(item) not in (0, 1) for item in listed):
        return None
    most = len(listed) if layers is None else layers
    if len(listed) < most:
        return None
    return [layer for layer, turns in enumerate(listed) if not turns and layer < most]
