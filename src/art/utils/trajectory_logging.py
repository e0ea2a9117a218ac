"""Trajectory logs. The code is in `art.tracking.trajectory_log`."""

from __future__ import annotations

from art.tracking.trajectory_log.json_lines import (
    deserialize_trajectory_groups,
    serialize_trajectory_groups,
)
from art.tracking.trajectory_log.parquet import (
    append_groups,
    write_trajectory_groups_parquet,
)
from art.tracking.trajectory_log.step_log import (
    read_trajectory_groups,
    read_trajectory_groups_parquet,
)

__all__ = [
    "append_groups",
    "deserialize_trajectory_groups",
    "read_trajectory_groups",
    "read_trajectory_groups_parquet",
    "serialize_trajectory_groups",
    "write_trajectory_groups_parquet",
]
