"""The older logs: one group a line, as JSON. Log probabilities are left out, as they always were.

    {"trajectories": [{"reward": 1.0, "metrics": {}, "metadata": {}, "messages_and_choices": [...],
                       "tools": null, "additional_histories": [], "logs": []}]}

What older programs did not write (exceptions, metadata of the group, policy versions, further fields) is
written only where there is any; they ignore it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from art.errors import TrajectoryLogError
from art.tracking.trajectory_log.json_text import from_text, to_text
from art.tracking.trajectory_log.rows import all_fields, build, revive
from art.tracking.trajectory_log.turns import as_item
from art.trajectories import History, PydanticException, Trajectory, TrajectoryGroup

GROUP_EXTRAS = ("metadata", "metrics", "logs", "exceptions")
ALWAYS = frozenset(
    {"reward", "metrics", "metadata", "messages_and_choices", "tools", "additional_histories", "logs"}
)


def serialize_trajectory_groups(groups: Iterable[TrajectoryGroup]) -> str:
    """Groups as JSON lines."""
    return "\n".join(to_text(trajectory_group_to_dict(group)) for group in groups)


def deserialize_trajectory_groups(serialized: str) -> list[TrajectoryGroup]:
    """Groups from JSON lines. Raises TrajectoryLogError that names the line which is no group."""
    groups = []
    # Not `splitlines`: it also splits at characters that JSON allows inside of strings.
    for number, line in enumerate(serialized.split("\n"), 1):
        if not line.strip():
            continue
        try:
            groups.append(dict_to_trajectory_group(from_text(line)))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise TrajectoryLogError(f"line {number} is no group of trajectories: {error!r}") from error
    return groups


def trajectory_group_to_dict(group: TrajectoryGroup) -> dict[str, Any]:
    """A group as plain values."""
    trajectories = [trajectory_to_dict(trajectory) for trajectory in group.trajectories]
    extras = {name: getattr(group, name) for name in GROUP_EXTRAS if getattr(group, name)}
    return {"trajectories": trajectories, **_plain(extras)}


def dict_to_trajectory_group(
    data: Mapping[str, Any], trajectory_class: type[Trajectory] = Trajectory
) -> TrajectoryGroup:
    """The group of `trajectory_group_to_dict`."""
    return TrajectoryGroup(
        [dict_to_trajectory(one, trajectory_class) for one in data["trajectories"]],
        exceptions=[PydanticException.model_construct(**error) for error in data.get("exceptions") or ()],
        metadata=data.get("metadata"),
        metrics=data.get("metrics"),
        logs=data.get("logs"),
    )


def trajectory_to_dict(trajectory: Trajectory) -> dict[str, Any]:
    """A trajectory as plain values, choices without log probabilities."""
    fields = all_fields(trajectory)
    kept = {name: value for name, value in fields.items() if name in ALWAYS or value is not None}
    kept["messages_and_choices"] = [message_or_choice_to_dict(i) for i in trajectory.messages_and_choices]
    kept["additional_histories"] = [history_to_dict(one) for one in trajectory.additional_histories]
    plain: dict[str, Any] = _plain(kept)
    return plain


def dict_to_trajectory(
    data: Mapping[str, Any], trajectory_class: type[Trajectory] = Trajectory
) -> Trajectory:
    """The trajectory of `trajectory_to_dict`. Fields that `Trajectory` lacks are attributes."""
    data = {"messages_and_choices": [], **data}
    nothing = {
        name for name in ("metrics", "metadata", "logs", "additional_histories") if data.get(name) is None
    }
    fields = {name: revive(name, value) for name, value in data.items() if name not in nothing}
    return build(fields, trajectory_class)


def history_to_dict(history: History) -> dict[str, Any]:
    """A further conversation as plain values."""
    turns = [message_or_choice_to_dict(item) for item in history.messages_and_choices]
    return {"messages_and_choices": turns, "tools": _plain(history.tools)}


def dict_to_history(data: Mapping[str, Any]) -> History:
    """The history of `history_to_dict`."""
    [history] = revive("additional_histories", [data])
    return history  # type: ignore[no-any-return]


def message_or_choice_to_dict(message_or_choice: Any) -> dict[str, Any]:
    """A turn as plain values, without log probabilities."""
    plain: dict[str, Any] = _plain(message_or_choice)
    if "finish_reason" in plain:
        plain.pop("logprobs", None)
    return plain


def dict_to_message_or_choice(data: Mapping[str, Any]) -> Any:
    """The turn of `message_or_choice_to_dict`: a dict, or a choice if it was one."""
    return as_item(dict(data))


def _plain(value: Any) -> Any:
    return from_text(to_text(value))
