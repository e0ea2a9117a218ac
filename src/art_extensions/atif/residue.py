"""What a value lacks to be another one, as JSON: so that a conversion loses nothing of what it cannot say.

    made    {"a": 1, "b": {"c": 2}}
    wanted  {"b": {"c": 3}}
    residue {"drop": ["a"], "in": {"b": {"set": {"c": 3}}}}

Of lists of one length each element has a residue of its own, so that those of a list that grows still fit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

Residue = dict[str, Any]


def residue_of(made: Any, wanted: Any) -> Residue | None:
    """Returns what `add_residue` needs to make `wanted` of `made`; None where they are equal."""
    if same_json(made, wanted):
        return None
    if isinstance(made, list) and isinstance(wanted, list) and len(made) == len(wanted):
        return {"each": [residue_of(one, other) for one, other in zip(made, wanted, strict=True)]}
    if not isinstance(made, Mapping) or not isinstance(wanted, Mapping):
        return {"value": wanted}
    found: Residue = {}
    if dropped := [name for name in made if name not in wanted]:
        found["drop"] = dropped
    if added := {name: value for name, value in wanted.items() if name not in made}:
        found["set"] = added
    shared = {name: residue_of(made[name], wanted[name]) for name in made if name in wanted}
    if inner := {name: one for name, one in shared.items() if one is not None}:
        found["in"] = inner
    return found


def add_residue(made: Any, residue: Residue | None) -> Any:
    """Returns the value that `residue_of` was given as `wanted`."""
    if not residue:
        return made
    if "value" in residue:
        return residue["value"]
    if "each" in residue:
        each = [*residue["each"], *[None] * len(made)]
        return [add_residue(one, of_one) for one, of_one in zip(made, each, strict=False)]
    dropped, inner = residue.get("drop", ()), residue.get("in", {})
    kept = {name: value for name, value in made.items() if name not in dropped}
    changed = {name: add_residue(value, inner.get(name)) for name, value in kept.items()}
    return {**changed, **residue.get("set", {})}


def same_json(one: Any, other: Any) -> bool:
    """Returns whether two values are the same JSON; 1, 1.0 and true are three values."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
