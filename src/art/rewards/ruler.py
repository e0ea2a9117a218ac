"""RULER: a judge scores the trajectories of a group, each seen beside the others."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from art.errors import ConfigurationError, LlmAnswerError, LlmError
from art.rewards.judging.judge_channel import DEFAULT_JUDGE
from art.rewards.judging.ruler_prompt import DEFAULT_RUBRIC
from art.rewards.judging.views import view_of
from art.rewards.ruler_reward import shared_ruler
from art.trajectories import Trajectory, TrajectoryGroup
from art.types import Unscored

if TYPE_CHECKING:
    from art.messages import Messages, Tools
    from art.rewards.judging.judge_channel import JudgeModel

__all__ = ["DEFAULT_RUBRIC", "Response", "TrajectoryScore", "ruler", "ruler_score_group"]

log = logging.getLogger(__name__)


class TrajectoryScore(BaseModel):
    """The judge's verdict on one trajectory; `score` is between 0 and 1."""

    trajectory_id: str
    explanation: str
    score: float


class Response(BaseModel):
    """The whole answer of the judge."""

    scores: list[TrajectoryScore]


async def ruler(
    message_lists: Sequence[Messages],
    judge_model: JudgeModel = DEFAULT_JUDGE,
    extra_litellm_params: Mapping[str, Any] | None = None,
    rubric: str = DEFAULT_RUBRIC,
    tools: Tools | None = None,
    *,
    debug: bool = False,
) -> list[TrajectoryScore]:
    """Score conversations that had one goal; `scores[i]` is of `message_lists[i]`, with the id `str(i + 1)`.

    judge_model, extra_litellm_params: see `art.rewards.Ruler` (its `params`). debug: show the scores on the
    terminal. Answers are kept, so that the same question is asked once.

    Raises ConfigurationError, and LlmError where a conversation got no score; those that the judge did score
    are not asked for again by the next call.
    """
    if not message_lists:
        return []
    views = [view_of([messages], tools=tools or ()) for messages in message_lists]
    scores = await shared_ruler(judge_model, extra_litellm_params, rubric).scorer.score(views)
    known = [
        TrajectoryScore(trajectory_id=str(i), explanation=score.explanation, score=score.value)
        for i, score in enumerate(scores, 1)
        if not isinstance(score.value, Unscored)
    ]
    if debug:
        _show([score.model_dump() for score in known])
    if len(known) < len(scores):
        reasons = {
            i: score.value.reason for i, score in enumerate(scores, 1) if isinstance(score.value, Unscored)
        }
        told = "; ".join(f"{i}: {reason}" for i, reason in reasons.items())
        raise LlmAnswerError(f"no score for {len(reasons)} of {len(scores)} trajectories ({told})")
    return known


async def ruler_score_group(
    group: TrajectoryGroup,
    judge_model: JudgeModel = DEFAULT_JUDGE,
    extra_litellm_params: Mapping[str, Any] | None = None,
    rubric: str = DEFAULT_RUBRIC,
    *,
    swallow_exceptions: bool = False,
    debug: bool = False,
) -> TrajectoryGroup | None:
    """A copy of the group with the judge's scores as rewards; all else of it is kept.

    Metrics: `independent_reward` (the reward it came with), `ruler_score`. Where the judge scored some of the
    trajectories, the others have `Unscored(reason)`, which leaves statistics and loss.

    Where nothing could be scored: raises LlmAnswerError (a ValueError) or ConfigurationError, or with
    `swallow_exceptions` says so in the log and returns None, and a gather's `after_each` drops the group.
    """
    try:
        judged = await shared_ruler(judge_model, extra_litellm_params, rubric).score_group(group)
        reasons = [t.reward.reason for t in judged if isinstance(t.reward, Unscored)]
        if reasons and len(reasons) == len(judged):
            raise LlmAnswerError(f"RULER scored none of {len(judged)} trajectories: {reasons[0]}")
    except (LlmError, ConfigurationError) as error:
        if not swallow_exceptions:
            raise
        log.warning("RULER: a group is dropped: %s: %s", type(error).__name__, error)
        return None
    if debug:
        _show([_row(i, trajectory) for i, trajectory in enumerate(judged, 1)])
    return judged


def _row(i: int, trajectory: Trajectory) -> dict[str, Any]:
    score = None if isinstance(trajectory.reward, Unscored) else trajectory.reward
    told = next((line for line in reversed(trajectory.logs) if line.startswith("RULER ")), "")
    return {"trajectory_id": str(i), "explanation": told.removeprefix("RULER explanation: "), "score": score}


def _show(scores: list[dict[str, Any]]) -> None:
    """For a person at a terminal or in a notebook, as `debug=True` asks for."""
    from rich.console import Console

    Console().print_json(data={"scores": scores})
