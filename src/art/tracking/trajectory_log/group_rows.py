"""A group as the rows of its trajectories, and back. A group without a trajectory is a record instead."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from art.tracking.trajectory_log.json_text import from_text, storable, to_text
from art.tracking.trajectory_log.rows import Row, from_row, to_row
from art.trajectories import PydanticException, Trajectory, TrajectoryGroup


def to_rows(groups: Iterable[TrajectoryGroup], first_index: int = 0) -> tuple[list[Row], list[Row]]:
    """The rows of all trajectories, and the records of the groups that have none."""
    rows: list[Row] = []
    empty: list[Row] = []
    for index, group in enumerate(groups, first_index):
        shown = {"group_index": index, **_shown(group)}
        rows += [shown | to_row(trajectory) for trajectory in group.trajectories]
        if not group.trajectories:
            empty.append(shown)
    return rows, empty


def from_rows(
    rows: Iterable[Row], empty: Sequence[Row] = (), trajectory_class: type[Trajectory] = Trajectory
) -> list[TrajectoryGroup]:
    """The groups in the order of their indexes; trajectories in the order of their rows."""
    by_index: dict[int, TrajectoryGroup] = {}
    ordered = sorted(rows, key=lambda row: row["group_index"])
    for index, found in groupby(ordered, key=lambda row: row["group_index"]):
        members = list(found)
        by_index[index] = _told(members[0], [from_row(row, trajectory_class) for row in members])
    by_index |= {record["group_index"]: _told(record, []) for record in empty}
    return [by_index[index] for index in sorted(by_index)]


def _shown(group: TrajectoryGroup) -> Row:
    shown = {
        "group_metadata": to_text(group.metadata) if group.metadata else None,
        "group_metrics": to_text(group.metrics) if group.metrics else None,
        "group_logs": [storable(str(line)) for line in group.logs] or None,
        "group_exceptions": to_text(group.exceptions) if group.exceptions else None,
    }
    # Only lone surrogates are lost on the way to UTF-8, and only lists of text are not JSON.
    exact = {"logs": group.logs} if (shown["group_logs"] or []) != group.logs else None
    return shown | {"group_exact": to_text(exact) if exact else None}


def _told(row: Row, trajectories: list[Trajectory]) -> TrajectoryGroup:
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
