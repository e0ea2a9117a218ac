"""RULER: a judge scores the trajectories of a group, each seen beside the others."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from art.unbuilt import Unbuilt

DEFAULT_RUBRIC = """\
- A trajectory that reaches its goal always scores clearly higher than one that does not.
- Of two that reach it, the one that gets there more efficiently, without unproductive detours, scores higher.
- If one is only slightly better than another, their scores differ little; if much better, they differ much.
- Progress towards a goal that was not reached may earn partial credit."""
"""What the judge goes by when no rubric is given."""

_INSTEAD = (
    "score the groups with a judge of your own in `after_each=` of `art.gather_trajectory_groups`, "
    "setting `trajectory.reward`"
)


class TrajectoryScore(BaseModel):
    """The judge's verdict on one trajectory; `score` is between 0 and 1."""

    trajectory_id: str
    explanation: str
    score: float


class Response(BaseModel):
    """The whole answer of the judge."""

    scores: list[TrajectoryScore]


ruler: Any = Unbuilt("art.rewards.ruler", _INSTEAD)
ruler_score_group: Any = Unbuilt("art.rewards.ruler_score_group", _INSTEAD)

__all__ = ["DEFAULT_RUBRIC", "Response", "TrajectoryScore", "ruler", "ruler_score_group"]
