"""How layers of one kind turn their keys: theta, channels, scaling and its parameters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ._canonical import canonical, number
from ._rope_families import MOST, ORIGINAL, SCALINGS, TYPE_NAMES, Scaling
from ._rope_fields import DIMS, LOCAL_THETA, SHARE, THETA, Fields, Notes, same

_MAX_ROTARY_DIM = 16384  # the daemon's limit
_ANY_THETA = 10000.0  # stands in for a theta that the digest covers
_A_NAME = re.compile(r"[a-z0-9_.-]{1,20}")
_DEFAULTS = {"truncate": True, "mrope_interleaved": False}  # these values mean the same as no field


@dataclass(frozen=True)
class Turn:
    theta: float
    dims: int
    scaling: str
    params: tuple[float, ...] = ()
    notes: str = ""  # canonical text

    def as_list(self) -> list[Any]:
        return [self.theta, self.dims, self.scaling, self.params, self.notes]


def turn_of(fields: Fields, said: Mapping[str, Any], head_dim: Any, is_full: bool) -> Turn:
    """Returns how layers of one kind turn. `said`: their rope_parameters or rope_scaling.
    `is_full`: the configuration's own fields apply to them, else those for sliding layers."""
    return _OneKind(fields, said, is_full).turn(head_dim)


class _OneKind:
    def __init__(self, fields: Fields, said: Mapping[str, Any], is_full: bool) -> None:
        self._fields, self._family, self._is_full = fields, fields.family, is_full
        self._said = {name: value for name, value in said.items() if value is not None}
        self._notes = Notes()

    def turn(self, head_dim: Any) -> Turn:
        scaling = self._scaling()
        theta = self._theta()
        dims = self._dims(head_dim, is_proportional=scaling == "proportional")
        params = self._params(SCALINGS.get(scaling, Scaling()))
        if scaling not in ("", "mrope") and self._is_full and not self._fields.was_read(ORIGINAL):
            self._note_beside(ORIGINAL)
        for name, value in self._said.items():
            if _DEFAULTS.get(name) is not value:
                self._notes.add(f"field {name!r}", value)
        return Turn(theta, dims, scaling, params, canonical(self._notes) if self._notes else "")

    def _scaling(self) -> str:
        """Returns a name of SCALINGS, or one that needs a digest beside it."""
        unscaled = "mrope" if "mrope_section" in self._said else ""
        names: list[Any] = []
        for field in ("rope_type", "type"):
            name = self._said.pop(field, None)
            if isinstance(name, str):
                name = TYPE_NAMES.get(name, name) or unscaled
            if name == "yarn" and self._family.yarn_is_longrope:
                name = "longrope"
            names += [] if name is None else [name]
        name = names[0] if names else unscaled
        is_known = isinstance(name, str) and name in SCALINGS
        if not is_known:
            self._notes.add("rope_type", name)
        if len(names) > 1 and not same(*names):
            self._notes.add("type", names[1])
        return name if is_known or isinstance(name, str) and _A_NAME.fullmatch(name) else "other"

    def _theta(self) -> float:
        said = self._said.pop("rope_theta", None)
        first = {} if said is None else {("rope_theta" if self._is_full else LOCAL_THETA[0]): said}
        names = THETA if self._is_full else LOCAL_THETA
        said = self._fields.take(names, self._notes, first)
        if said is None:
            said = self._theta_unsaid()
        theta = number(said)
        if theta is not None and theta > 0:
            return theta
        self._notes.add("rope_theta", [said, "" if said is not None else self._fields.model_type])
        return _ANY_THETA

    def _theta_unsaid(self) -> Any:
        sliding = self._family.sliding
        if not self._is_full and sliding is not None and sliding.theta is not None:
            return sliding.theta
        of_all = self._fields.take(THETA, Notes()) if not self._is_full else None
        return self._family.theta if of_all is None else of_all

    def _dims(self, head_dim: Any, is_proportional: bool) -> int:
        share = self._fields.take(SHARE, self._notes, self._said)
        if is_proportional:  # all channels are paired, a share of the pairs turns
            self._said["partial_rotary_factor"] = share
            return self._even(head_dim)
        said = self._fields.take(DIMS, self._notes, self._said)
        if said is None:
            return self._dims_of(self._family.share if share is None else share, head_dim)
        is_of_rope_alone = "qk_rope_head_dim" in self._fields and same(share, 1)
        if share is not None and not is_of_rope_alone and not same(_product(share, head_dim), said):
            self._notes.add("partial_rotary_factor", [share, head_dim])
        return self._even(said)

    def _dims_of(self, share: Any, head_dim: Any) -> int:
        product = _product(share, head_dim)
        dims = 0 if product is None else _nearest(product)
        if product != dims:  # engines round differently
            self._notes.add("rotary_dim", [share, head_dim])
        return dims

    def _even(self, said: Any) -> int:
        dims = number(said)
        taken = 0 if dims is None else _nearest(dims)
        if taken != dims:
            self._notes.add("rotary_dim", said)
        return taken

    def _params(self, order: Scaling) -> tuple[float, ...]:
        params = [self._param(name, default) for name, default in order.numbers]
        for name in order.lists:
            said = self._said.pop(name, None)
            numbers = _numbers(said)
            if numbers is None:
                self._notes.add(name, said)
            params += [] if name == order.lists[-1] else [float(len(numbers or ()))]
            params += numbers or ()
        if order.last is not None:
            last = number(self._said.get(order.last))
            if last is not None:
                self._said.pop(order.last)
                params.append(last)
        return tuple(params)

    def _param(self, name: str, default: float | None) -> float:
        said = None if name == MOST else self._said.pop(name, None)
        if name == MOST or name == ORIGINAL and self._is_full:
            said = self._fields.take((name,), self._notes, {name: said})
        if name == "mscale" and number(self._said.get("mscale_all_dim", 0)) == 0:
            default = 1  # with mscale_all_dim set, engines disagree
        param = number(default if said is None else said)
        if param is not None:
            return param
        self._notes.add(name, said)
        if said is None:  # some engines take MOST in its place
            self._note_beside(MOST)
        return 0.0

    def _note_beside(self, name: str) -> None:
        if name in self._fields:
            self._notes.add(f"beside: {name}", self._fields.get(name))


def _product(share: Any, head_dim: Any) -> float | None:
    left, right = number(share), number(head_dim)
    return None if left is None or right is None else number(left * right)


def _nearest(dims: float) -> int:
    """Rounds down to an even number that the daemon takes."""
    return int(min(max(dims, 0), _MAX_ROTARY_DIM)) // 2 * 2


def _numbers(said: Any) -> list[float] | None:
    if not isinstance(said, (list, tuple)):
        return None
    numbers = [double for double in map(number, said) if double is not None]
    return numbers if len(numbers) == len(said) else None
