"""Folders of steps, at an import path that users know; the code is in `art.tracking`. Loaded on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from art.unbuilt import unbuilt

if TYPE_CHECKING:
    from art.tracking.trajectory_log.migration import (
        migrate_checkpoints_to_new_structure as migrate_checkpoints_to_new_structure,
    )

INSTEAD = "`await model.delete_checkpoints()` removes steps, `await model.get_step()` knows the newest one"


def __getattr__(name: str) -> Any:
    if name != "migrate_checkpoints_to_new_structure":
        return unbuilt(__name__, INSTEAD, name)
    from art.tracking.trajectory_log.migration import migrate_checkpoints_to_new_structure

    return migrate_checkpoints_to_new_structure
