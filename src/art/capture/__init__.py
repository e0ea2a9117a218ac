"""What happens in a rollout, kept without its help: its name on each request, and its conversations."""

from __future__ import annotations

from art.capture.scope import current_rollout, in_rollout, rollout_scope

__all__ = ["current_rollout", "in_rollout", "rollout_scope"]
