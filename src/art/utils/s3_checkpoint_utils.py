"""Checkpoints here and in buckets; the code is in `art.storage`."""

from __future__ import annotations

from art.storage.copies import copy_checkpoint, local_checkpoint, newest_of
from art.storage.steps import complete_steps, local_steps

__all__ = ["complete_steps", "copy_checkpoint", "local_checkpoint", "local_steps", "newest_of"]
