# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art.tracking.trajectory_lines import deserialize_trajectory_groups as deserialize_trajectory_groups
from art.tracking.trajectory_lines import dict_to_history as dict_to_history
from art.tracking.trajectory_lines import dict_to_message_or_choice as dict_to_message_or_choice
from art.tracking.trajectory_lines import dict_to_trajectory as dict_to_trajectory
from art.tracking.trajectory_lines import dict_to_trajectory_group as dict_to_trajectory_group
from art.tracking.trajectory_lines import history_to_dict as history_to_dict
from art.tracking.trajectory_lines import message_or_choice_to_dict as message_or_choice_to_dict
from art.tracking.trajectory_lines import serialize_trajectory_groups as serialize_trajectory_groups
from art.tracking.trajectory_lines import trajectory_group_to_dict as trajectory_group_to_dict
from art.tracking.trajectory_lines import trajectory_to_dict as trajectory_to_dict
from art_extensions.compat.trajectory_migration import MigrationResult as MigrationResult
from art_extensions.compat.trajectory_migration import auto_migrate_on_register as auto_migrate_on_register
from art_extensions.compat.trajectory_migration import migrate_all_models as migrate_all_models
from art_extensions.compat.trajectory_migration import migrate_checkpoints_to_new_structure as migrate_checkpoints_to_new_structure
from art_extensions.compat.trajectory_migration import migrate_jsonl_to_parquet as migrate_jsonl_to_parquet
from art_extensions.compat.trajectory_migration import migrate_model_dir as migrate_model_dir
from art_extensions.compat.trajectory_migration import migrate_trajectories_dir as migrate_trajectories_dir

__all__ = ["MigrationResult", "auto_migrate_on_register", "deserialize_trajectory_groups", "dict_to_history", "dict_to_message_or_choice", "dict_to_trajectory", "dict_to_trajectory_group", "history_to_dict", "message_or_choice_to_dict", "migrate_all_models", "migrate_checkpoints_to_new_structure", "migrate_jsonl_to_parquet", "migrate_model_dir", "migrate_trajectories_dir", "serialize_trajectory_groups", "trajectory_group_to_dict", "trajectory_to_dict"]

