"""Rewards from a judge: RULER ranks the trajectories of a group against each other."""

from __future__ import annotations

# The function must win over the module of the same name, whichever is imported first.
from art.rewards.ruler import ruler, ruler_score_group

__all__ = ["ruler", "ruler_score_group"]
