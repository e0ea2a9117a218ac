"""What happens in a rollout, kept without its help: its name on each request, and its conversations."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from art.capture.scope import current_rollout, in_rollout, rollout_scope

if TYPE_CHECKING:
    from art.capture.auto import auto_trajectory as auto_trajectory
    from art.capture.auto import capture_auto_trajectory as capture_auto_trajectory
    from art.capture.yielded import capture_yielded_trajectory as capture_yielded_trajectory
    from art.capture.yielded import yield_trajectory as yield_trajectory

_HOME = {
    "auto_trajectory": "art.capture.auto",
    "capture_auto_trajectory": "art.capture.auto",
    "capture_yielded_trajectory": "art.capture.yielded",
    "yield_trajectory": "art.capture.yielded",
}

__all__ = [
    "auto_trajectory",
    "capture_auto_trajectory",
    "capture_yielded_trajectory",
    "current_rollout",
    "in_rollout",
    "rollout_scope",
    "yield_trajectory",
]


def __getattr__(name: str) -> Any:
    """Trajectories are made in a scope, so the scope is loaded first and what makes trajectories later."""
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'art.capture' has no attribute {name!r}")
