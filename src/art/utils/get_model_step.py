"""A model's newest checkpoint: the import path that users know."""

from __future__ import annotations

from art.folders import get_model_step, get_step_from_dir

__all__ = ["get_model_step", "get_step_from_dir"]
