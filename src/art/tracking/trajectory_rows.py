"""A trajectory group as rows of a table, and back. One row is one trajectory; nothing is lost.

The columns that older readers know come first, and say what those readers expect of them; then come ours:

| column | type | content |
|---|---|---|
| group_index | int64 | which group of the file |
| group_metadata, group_metrics | text | JSON, null when empty |
| group_logs | list of text | null when empty |
| reward | double | null when unscored |
| metrics, metadata, tools | text | JSON, null when empty |
| logs | list of text | null when empty |
| messages | list of structs | role, content, tool_calls (JSON), tool_call_id, trainable |
| additional_histories | text | JSON: messages_and_choices and tools of each |
| group_exceptions | text | JSON: type, message and traceback of each failed rollout of the group |
| unscored_reason | text | why there is no reward |
| initial_policy_version, final_policy_version | int64 | |
| start_time | text | ISO 8601 |
| rollout_id | text | |
| group_exact, exact | text | JSON of what the columns above do not say exactly, null when they do |

`exact` holds fields by their names, among them `messages_and_choices` by position: choices with their log
probabilities and identifiers, messages with names, reasoning or images, fields of subclasses. Whether the
other columns say a field exactly is tested by reading them back. Groups without a trajectory have no row;
the file's metadata lists them under `art.empty_groups`. JSON text is in Python's own dialect: `NaN`, big
integers and lone surrogates survive.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from enum import Enum
from itertools import groupby
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from art.exchanges import TrajectoryExchanges
from art.process.foreign_files import MOST_DEPTH, check_depth, parse_json
from art.trajectories import History, PydanticException, Trajectory, TrajectoryGroup
from art.types import Unscored, is_choice, revive_choices, sample_id
from art.wire.quoting import writable

if TYPE_CHECKING:
    import polars


DEEPEST = MOST_DEPTH - 8
"""Lists and objects in one another, with room for those of the line that they stand in."""


def to_text(value: Any) -> str:
    """JSON of a value. ASCII only, so that any string can be stored as UTF-8.

    Models of pydantic become their set fields, dataclasses dicts, sets lists, dates ISO text, arrays their
    items; what JSON has no word for becomes its `str`, a key that is no text, too. What contains itself, or
    nests deeper than a log may, ends in the name of its class.
    """
    try:
        text = json.dumps(value, default=_plain_value)
        check_depth(value)
    except Exception:  # noqa: BLE001  # `str` of a program's own class may raise anything
        return json.dumps(_writable(value, ()))
    return text


def _writable(value: Any, outer: tuple[int, ...]) -> Any:
    """The value in words of JSON alone. outer: the containers that it is in."""
    if value is None or isinstance(value, str | int | float):
        return value
    if id(value) in outer or len(outer) > DEEPEST:
        return f"<{type(value).__name__}>"
    inside = (*outer, id(value))
    if isinstance(value, Mapping):
        return {_key(key): _writable(one, inside) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_writable(one, inside) for one in value]
    try:
        plain = _plain_value(value)
    except Exception:  # noqa: BLE001
        plain = f"<{type(value).__name__}>"
    return _writable(plain, inside)


def _key(key: Any) -> str:
    plain = _writable(key, ())
    return plain if isinstance(plain, str) else json.dumps(plain)


def from_text(text: str) -> Any:
    """The value of a JSON text."""
    return parse_json(text)


def _plain_value(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return _model_fields(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, set | frozenset):
        return list(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, date):  # a datetime is one
        return value.isoformat()
    if callable(listed := getattr(value, "tolist", None)):  # numbers and arrays of numpy and torch
        return listed()
    return str(value)


def _model_fields(model: BaseModel) -> dict[str, Any]:
    """The fields that were set, as the sender of a reply did, and those that were changed since."""
    if type(model).__module__.startswith("openai."):
        return model.model_dump(exclude_unset=True, by_alias=True, warnings=False)
    fields = dict(model.model_extra or {})
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if name in model.model_fields_set or value != field.get_default(call_default_factory=True):
            fields[name] = value
    return fields


def as_item(value: Any) -> Any:
    """A message or choice from its JSON: one with a finish reason is a choice again. Raises ValueError."""
    if is_choice(value) and not isinstance(value["message"], Mapping):
        raise ValueError(f"the message of a choice is no object: {value['message']!r:.60}")
    return revive_choices([value])[0]


def keeps_item(items: Iterable[Any]) -> list[Any]:
    """The turns as they are read back: a dict in the shape of a choice that no server of ours sampled is the
    message that it holds.
    """
    return [item["message"] if _is_unsampled_dict(item) else item for item in items]


def _is_unsampled_dict(item: Any) -> bool:
    return isinstance(item, dict) and is_choice(item) and sample_id(item) is None


def to_struct(item: Any) -> dict[str, Any]:
    """Returns a turn for the column `messages`: content that is not a string is shown as JSON."""
    trainable = is_choice(item)
    if trainable:
        item = item["message"] if isinstance(item, Mapping) else item.message
    message = item if isinstance(item, Mapping) else from_text(to_text(item))
    if not isinstance(message, Mapping):  # an object that is no message at all
        message = {"content": str(message)}
    content, calls = message.get("content"), message.get("tool_calls")
    return {
        "role": _text(message.get("role") or ("assistant" if trainable else "")),
        "content": "" if content is None else _text(content),
        "tool_calls": to_text(calls) if calls else None,
        "tool_call_id": _text(message["tool_call_id"]) if message.get("tool_call_id") else None,
        "trainable": trainable,
    }


def from_struct(struct: Mapping[str, Any]) -> Any:
    """The turn that a struct tells of. A trainable one is a choice, without its log probabilities."""
    message = {"role": struct["role"], "content": struct["content"]}
    if struct.get("tool_calls"):
        message["tool_calls"] = from_text(struct["tool_calls"])
    if struct.get("tool_call_id"):
        message["tool_call_id"] = struct["tool_call_id"]
    if not struct.get("trainable"):
        return message
    reason = "tool_calls" if struct.get("tool_calls") else "stop"
    return as_item({"finish_reason": reason, "index": 0, "logprobs": None, "message": message})


def _text(value: Any) -> str:
    return writable(value) if isinstance(value, str) else to_text(value)


EMPTY_GROUPS = "art.empty_groups"
"""Key of the file's metadata: JSON of the groups that have no row."""

TAKEN_LINES = "art.migrated_lines"
"""Key of the file's metadata: JSON of how much of the JSON lines beside it the file holds."""


def trajectory_schema() -> polars.Schema:
    """Names and types, in order."""
    import polars

    text, number = polars.String(), polars.Int64()
    message = polars.Struct(
        {
            "role": text,
            "content": text,
            "tool_calls": text,
            "tool_call_id": text,
            "trainable": polars.Boolean(),
        }
    )
    return polars.Schema(
        {
            "group_index": number,
            "group_metadata": text,
            "group_metrics": text,
            "group_logs": polars.List(text),
            "reward": polars.Float64(),
            "metrics": text,
            "metadata": text,
            "tools": text,
            "logs": polars.List(text),
            "messages": polars.List(message),
            "additional_histories": text,
            "group_exceptions": text,
            "unscored_reason": text,
            "initial_policy_version": number,
            "final_policy_version": number,
            "start_time": text,
            "rollout_id": text,
            "group_exact": text,
            "exact": text,
        }
    )


TrajectoryRow = dict[str, Any]
NO_REWARD = "the log has no reward"
"""Why a trajectory is unscored whose log says neither a reward nor a reason."""
INT64 = 2**63


class LoggedTrajectory(Trajectory):
    """A trajectory of a subclass that the reader was not told of: its further fields are attributes."""

    model_config = ConfigDict(extra="allow")


def to_row(trajectory: Trajectory) -> TrajectoryRow:
    """The row of a trajectory, without the columns of its group."""
    row = _shown_columns(_raw_fields(trajectory))
    fields = all_fields(trajectory)
    record = _record(row)
    exact = {key: value for key, value in fields.items() if key not in record or _differs(record[key], value)}
    exact.pop("messages_and_choices", None)
    items, shown = fields["messages_and_choices"], record["messages_and_choices"]
    turns = {
        str(place): item
        for place, (item, known) in enumerate(zip(items, shown, strict=True))
        if _turn_differs(known, item)
    }
    if turns:
        exact["messages_and_choices"] = turns
    return row | {"exact": to_text(exact) if exact else None}


def from_row(row: TrajectoryRow, trajectory_class: type[Trajectory] = Trajectory) -> Trajectory:
    """The trajectory of a row, also of one that lacks some or all of our own columns.

    A class that is given validates the fields; otherwise fields of a subclass make a `LoggedTrajectory`.
    """
    fields = _record(row)
    exact = from_text(row["exact"]) if row.get("exact") else {}
    turns = exact.pop("messages_and_choices", {})
    for place, item in turns.items():
        fields["messages_and_choices"][int(place)] = as_item(item)
    fields |= {name: revive_fields(name, value) for name, value in exact.items()}
    return build_record(fields, trajectory_class)


def build_record(fields: dict[str, Any], trajectory_class: type[Trajectory] = Trajectory) -> Trajectory:
    """A trajectory of revived fields. See `from_row` for the class."""
    if trajectory_class is not Trajectory:
        return trajectory_class.model_validate(fields)
    further = {name: fields[name] for name in fields.keys() - Trajectory.model_fields.keys()}
    known = {name: value for name, value in fields.items() if name not in further}
    if not further:
        return Trajectory.model_construct(**known)  # what was written was valid; keep 1 apart from 1.0
    logged = LoggedTrajectory.model_construct(**known)
    logged.__pydantic_extra__ = further  # a file sets no `__class__`
    return logged


def all_fields(trajectory: Trajectory) -> dict[str, Any]:
    """All fields by name as they are read back, also those that are left out of dumps."""
    fields = _raw_fields(trajectory)
    histories = [
        one.model_copy(update={"messages_and_choices": keeps_item(one.messages_and_choices)})
        for one in fields["additional_histories"]
    ]
    turns = keeps_item(fields["messages_and_choices"])
    return {**fields, "messages_and_choices": turns, "additional_histories": histories}


def _raw_fields(trajectory: Trajectory) -> dict[str, Any]:
    named = {name: getattr(trajectory, name) for name in type(trajectory).model_fields}
    return {**named, **(trajectory.model_extra or {})}


def _shown_columns(fields: dict[str, Any]) -> TrajectoryRow:
    reward, started = fields["reward"], fields["start_time"]
    return {
        "reward": double(reward),
        "metrics": to_text(fields["metrics"]) if fields["metrics"] else None,
        "metadata": to_text(fields["metadata"]) if fields["metadata"] else None,
        "tools": to_text(fields["tools"]) if fields["tools"] else None,
        "logs": [writable(str(line)) for line in fields["logs"]] or None,
        "messages": [to_struct(item) for item in fields["messages_and_choices"]],
        "additional_histories": to_text(fields["additional_histories"])
        if fields["additional_histories"]
        else None,
        "unscored_reason": writable(reward.reason) if isinstance(reward, Unscored) else None,
        "initial_policy_version": _int64(fields["initial_policy_version"]),
        "final_policy_version": _int64(fields["final_policy_version"]),
        "start_time": started.isoformat() if isinstance(started, datetime) else None,
        "rollout_id": writable(fields["rollout_id"]) if fields.get("rollout_id") else None,
    }


def _record(row: TrajectoryRow) -> dict[str, Any]:
    """The fields as the columns alone tell them."""
    reward: Any = row["reward"]
    if row.get("unscored_reason") is not None:
        reward = Unscored(row["unscored_reason"])
    elif reward is None:
        reward = Unscored(NO_REWARD)
    fields = {
        "messages_and_choices": [from_struct(struct) for struct in row["messages"] or ()],
        "tools": from_text(row["tools"]) if row.get("tools") else None,
        "additional_histories": _histories(from_text(row.get("additional_histories") or "[]")),
        "exchanges": TrajectoryExchanges(),
        "reward": reward,
        "initial_policy_version": row.get("initial_policy_version"),
        "final_policy_version": row.get("final_policy_version"),
        "metrics": from_text(row.get("metrics") or "{}"),
        "metadata": from_text(row.get("metadata") or "{}"),
        "logs": list(row.get("logs") or ()),
        "rollout_id": row.get("rollout_id"),
    }
    if row.get("start_time"):
        fields["start_time"] = datetime.fromisoformat(row["start_time"])
    return fields


def _histories(values: list[dict[str, Any]]) -> list[History]:
    return [
        History.model_construct(
            **{"tools": None, **{name: revive_fields(name, field) for name, field in value.items()}}
        )
        for value in values
    ]


def revive_fields(name: str, value: Any) -> Any:
    """A field's value from its JSON."""
    if name == "messages_and_choices":
        return [as_item(item) for item in value]
    if name == "additional_histories":
        return _histories(value)
    if name == "exchanges":
        return TrajectoryExchanges.model_validate(value)
    if name == "start_time" and isinstance(value, str):
        return datetime.fromisoformat(value)
    if name == "reward" and isinstance(value, dict) and value.keys() == {"reason"}:
        return Unscored(**value)
    if name == "reward" and value is None:
        return Unscored(NO_REWARD)
    return value


def _differs(read: Any, value: Any) -> bool:
    if type(read) is type(value) and isinstance(value, str | int | datetime | None):
        return bool(read != value)
    return to_text(read) != to_text(value)


def _turn_differs(read: Any, item: Any) -> bool:
    """A choice is always kept in full; a message if the struct lost something, be it a key order."""
    return is_choice(item) or not isinstance(item, Mapping) or to_text(read) != to_text(item)


def double(value: Any) -> float | None:
    """The number as a column holds it; null for what is none, and for an integer beyond all doubles."""
    try:
        return float(value) if isinstance(value, int | float) else None
    except OverflowError:
        return None


def _int64(value: Any) -> int | None:
    return value if isinstance(value, int) and -INT64 <= value < INT64 else None


def group_to_rows(
    groups: Iterable[TrajectoryGroup], first_index: int = 0
) -> tuple[list[TrajectoryRow], list[TrajectoryRow]]:
    """The rows of all trajectories, and the records of the groups that have none."""
    rows: list[TrajectoryRow] = []
    empty: list[TrajectoryRow] = []
    for index, group in enumerate(groups, first_index):
        shown = {"group_index": index, **_group_columns(group)}
        rows += [shown | to_row(trajectory) for trajectory in group.trajectories]
        if not group.trajectories:
            empty.append(shown)
    return rows, empty


def groups_from_rows(
    rows: Iterable[TrajectoryRow],
    empty: Sequence[TrajectoryRow] = (),
    trajectory_class: type[Trajectory] = Trajectory,
) -> list[TrajectoryGroup]:
    """The groups in the order of their indexes; trajectories in the order of their rows."""
    by_index: dict[int, TrajectoryGroup] = {}
    ordered = sorted(rows, key=lambda row: row["group_index"])
    for index, found in groupby(ordered, key=lambda row: row["group_index"]):
        members = list(found)
        by_index[index] = _group_record(members[0], [from_row(row, trajectory_class) for row in members])
    by_index |= {record["group_index"]: _group_record(record, []) for record in empty}
    return [by_index[index] for index in sorted(by_index)]


def _group_columns(group: TrajectoryGroup) -> TrajectoryRow:
    shown = {
        "group_metadata": to_text(group.metadata) if group.metadata else None,
        "group_metrics": to_text(group.metrics) if group.metrics else None,
        "group_logs": [writable(str(line)) for line in group.logs] or None,
        "group_exceptions": to_text(group.exceptions) if group.exceptions else None,
    }
    # Only lone surrogates are lost on the way to UTF-8, and only lists of text are not JSON.
    exact: dict[str, Any] = {"logs": group.logs} if (shown["group_logs"] or []) != group.logs else {}
    exact |= {"weight": group.weight} if group.weight != 1 else {}
    return shown | {"group_exact": to_text(exact) if exact else None}


def _group_record(row: TrajectoryRow, trajectories: list[Trajectory]) -> TrajectoryGroup:
    fields: dict[str, Any] = {
        "metadata": from_text(row.get("group_metadata") or "{}"),
        "metrics": from_text(row.get("group_metrics") or "{}"),
        "logs": list(row.get("group_logs") or ()),
        "exceptions": [
            PydanticException.model_construct(**error)
            for error in from_text(row.get("group_exceptions") or "[]")
        ],
        **from_text(row.get("group_exact") or "{}"),
    }
    return TrajectoryGroup.model_construct(trajectories=trajectories, **fields)
