"""From older logs to Parquet. The code is in `art.tracking.trajectory_log`."""

from __future__ import annotations

from art.tracking.trajectory_log.json_lines import (
    deserialize_trajectory_groups,
    dict_to_history,
    dict_to_message_or_choice,
    dict_to_trajectory,
    dict_to_trajectory_group,
    history_to_dict,
    message_or_choice_to_dict,
    serialize_trajectory_groups,
    trajectory_group_to_dict,
    trajectory_to_dict,
)
from art.tracking.trajectory_log.migration import (
    MigrationResult,
    auto_migrate_on_register,
    migrate_all_models,
    migrate_checkpoints_to_new_structure,
    migrate_jsonl_to_parquet,
    migrate_model_dir,
    migrate_trajectories_dir,
)

__all__ = [
    "MigrationResult",
    "auto_migrate_on_register",
    "deserialize_trajectory_groups",
    "dict_to_history",
    "dict_to_message_or_choice",
    "dict_to_trajectory",
    "dict_to_trajectory_group",
    "history_to_dict",
    "message_or_choice_to_dict",
    "migrate_all_models",
    "migrate_checkpoints_to_new_structure",
    "migrate_jsonl_to_parquet",
    "migrate_model_dir",
    "migrate_trajectories_dir",
    "serialize_trajectory_groups",
    "trajectory_group_to_dict",
    "trajectory_to_dict",
]
