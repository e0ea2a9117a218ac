"""A judge that is watched while it trains, as an extension gives it: `art.rewards.JudgeChecks`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from art.rewards.judge_view import Scorer, View
from art.rewards.reward import Score
from art.trajectories import TrajectoryGroup


class WatchedJudge(Protocol):
    """The checks of one judge over a run. They change no score."""

    async def check_scores(
        self,
        views: Sequence[View],
        scores: Sequence[Score],
        group: TrajectoryGroup,
        *,
        second: list[Score] | None = None,
    ) -> Mapping[str, float]:
        """Returns metrics of the group, named `judge/...`. second: filled with a second opinion, if any."""
        ...


class JudgeWatchOptions(Protocol):
    """The checks that a judge undergoes."""

    def watch(self, scorer: Scorer) -> WatchedJudge:
        """Returns the watch of a judge."""
        ...


JudgeChecks = JudgeWatchOptions
"""The type of `checks=` of every judge."""
