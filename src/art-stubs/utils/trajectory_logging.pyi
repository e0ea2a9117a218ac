# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art.tracking.trajectory_lines import deserialize_trajectory_groups as deserialize_trajectory_groups
from art.tracking.trajectory_lines import serialize_trajectory_groups as serialize_trajectory_groups
from art.tracking.trajectory_log import append_groups as append_groups
from art.tracking.trajectory_log import read_trajectory_groups as read_trajectory_groups
from art.tracking.trajectory_log import read_trajectory_groups_parquet as read_trajectory_groups_parquet
from art.tracking.trajectory_log import write_trajectory_groups_parquet as write_trajectory_groups_parquet

__all__ = ["append_groups", "deserialize_trajectory_groups", "read_trajectory_groups", "read_trajectory_groups_parquet", "serialize_trajectory_groups", "write_trajectory_groups_parquet"]

