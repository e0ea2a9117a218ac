# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from typing import Any

from art_extensions.compat.trajectory_migration import migrate_checkpoints_to_new_structure as migrate_checkpoints_to_new_structure

__all__ = ["migrate_checkpoints_to_new_structure"]

def __getattr__(name: str) -> Any: ...
