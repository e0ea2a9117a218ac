"""A trajectory as a row, and back.

The columns say what older readers expect of them. Whatever they do not say exactly (the test is to read them
back) goes into the column `exact`, so that the two together are the trajectory.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import ConfigDict

from art.tracking.trajectory_log.json_text import from_text, storable, to_text
from art.tracking.trajectory_log.turns import as_item, from_struct, kept, to_struct
from art.trajectories import History, Trajectory
from art.turns import is_choice
from art.types import Unscored

Row = dict[str, Any]
INT64 = 2**63


class LoggedTrajectory(Trajectory):
    """A trajectory of a subclass that the reader was not told of: its further fields are attributes."""

    model_config = ConfigDict(extra="allow")


def to_row(trajectory: Trajectory) -> Row:
    """The row of a trajectory, without the columns of its group."""
    row = _shown(_raw_fields(trajectory))
    fields = all_fields(trajectory)
    told = _told(row)
    exact = {name: value for name, value in fields.items() if name not in told or _differs(told[name], value)}
    exact.pop("messages_and_choices", None)
    items, shown = fields["messages_and_choices"], told["messages_and_choices"]
    turns = {
        str(place): item
        for place, (item, known) in enumerate(zip(items, shown, strict=True))
        if _turn_differs(known, item)
    }
    if turns:
        exact["messages_and_choices"] = turns
    return row | {"exact": to_text(exact) if exact else None}


def from_row(row: Row, trajectory_class: type[Trajectory] = Trajectory) -> Trajectory:
    """The trajectory of a row, also of one that lacks some or all of our own columns.

    A class that is given validates the fields; otherwise fields of a subclass make a `LoggedTrajectory`.
    """
    fields = _told(row)
    exact = from_text(row["exact"]) if row.get("exact") else {}
    turns = exact.pop("messages_and_choices", {})
    for place, item in turns.items():
        fields["messages_and_choices"][int(place)] = as_item(item)
    fields |= {name: revive(name, value) for name, value in exact.items()}
    return build(fields, trajectory_class)


def build(fields: dict[str, Any], trajectory_class: type[Trajectory] = Trajectory) -> Trajectory:
    """A trajectory of revived fields. See `from_row` for the class."""
    if trajectory_class is not Trajectory:
        return trajectory_class.model_validate(fields)
    further = {name: fields[name] for name in fields.keys() - Trajectory.model_fields.keys()}
    known = {name: value for name, value in fields.items() if name not in further}
    if not further:
        return Trajectory.model_construct(**known)  # what was written was valid; keep 1 apart from 1.0
    logged = LoggedTrajectory.model_construct(**known)
    for name, value in further.items():
        setattr(logged, name, value)
    return logged


def all_fields(trajectory: Trajectory) -> dict[str, Any]:
    """All fields by name as they are read back, also those that are left out of dumps."""
    fields = _raw_fields(trajectory)
    histories = [
        one.model_copy(update={"messages_and_choices": kept(one.messages_and_choices)})
        for one in fields["additional_histories"]
    ]
    turns = kept(fields["messages_and_choices"])
    return {**fields, "messages_and_choices": turns, "additional_histories": histories}


def _raw_fields(trajectory: Trajectory) -> dict[str, Any]:
    named = {name: getattr(trajectory, name) for name in type(trajectory).model_fields}
    return {**named, **(trajectory.model_extra or {})}


def _shown(fields: dict[str, Any]) -> Row:
    reward, started = fields["reward"], fields["start_time"]
    return {
        "reward": double(reward),
        "metrics": to_text(fields["metrics"]) if fields["metrics"] else None,
        "metadata": to_text(fields["metadata"]) if fields["metadata"] else None,
        "tools": to_text(fields["tools"]) if fields["tools"] else None,
        "logs": [storable(str(line)) for line in fields["logs"]] or None,
        "messages": [to_struct(item) for item in fields["messages_and_choices"]],
        "additional_histories": to_text(fields["additional_histories"])
        if fields["additional_histories"]
        else None,
        "unscored_reason": storable(reward.reason) if isinstance(reward, Unscored) else None,
        "initial_policy_version": _int64(fields["initial_policy_version"]),
        "final_policy_version": _int64(fields["final_policy_version"]),
        "start_time": started.isoformat() if isinstance(started, datetime) else None,
        "rollout_id": storable(fields["rollout_id"]) if fields.get("rollout_id") else None,
    }


def _told(row: Row) -> dict[str, Any]:
    """The fields as the columns alone tell them."""
    reward: Any = row["reward"]
    if row.get("unscored_reason") is not None:
        reward = Unscored(row["unscored_reason"])
    elif reward is None:
        reward = 0.0
    told = {
        "messages_and_choices": [from_struct(struct) for struct in row["messages"] or ()],
        "tools": from_text(row["tools"]) if row.get("tools") else None,
        "additional_histories": _histories(from_text(row.get("additional_histories") or "[]")),
        "reward": reward,
        "initial_policy_version": row.get("initial_policy_version"),
        "final_policy_version": row.get("final_policy_version"),
        "metrics": from_text(row.get("metrics") or "{}"),
        "metadata": from_text(row.get("metadata") or "{}"),
        "logs": list(row.get("logs") or ()),
        "rollout_id": row.get("rollout_id"),
    }
    if row.get("start_time"):
        told["start_time"] = datetime.fromisoformat(row["start_time"])
    return told


def _histories(values: list[dict[str, Any]]) -> list[History]:
    return [
        History.model_construct(
            **{"tools": None, **{name: revive(name, field) for name, field in value.items()}}
        )
        for value in values
    ]


def revive(name: str, value: Any) -> Any:
    """A field's value from its JSON."""
    if name == "messages_and_choices":
        return [as_item(item) for item in value]
    if name == "additional_histories":
        return _histories(value)
    if name == "start_time" and isinstance(value, str):
        return datetime.fromisoformat(value)
    if name == "reward" and isinstance(value, dict) and value.keys() == {"reason"}:
        return Unscored(**value)
    return value


def _differs(told: Any, value: Any) -> bool:
    if type(told) is type(value) and isinstance(value, str | int | datetime | None):
        return bool(told != value)
    return to_text(told) != to_text(value)


def _turn_differs(told: Any, item: Any) -> bool:
    """A choice is always kept in full; a message if the struct lost something, be it a key order."""
    return is_choice(item) or not isinstance(item, Mapping) or to_text(told) != to_text(item)


def double(value: Any) -> float | None:
    """The number as a column holds it; null for what is none, and for an integer beyond all doubles."""
    try:
        return float(value) if isinstance(value, int | float) else None
    except OverflowError:
        return None


def _int64(value: Any) -> int | None:
    return value if isinstance(value, int) and -INT64 <= value < INT64 else None
