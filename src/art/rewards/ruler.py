"""RULER as a reward: a judge scores the trajectories of a group, each seen beside the others.

The class is `Ruler`. The functions `ruler` and `ruler_score_group` share one of each kind.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Unpack

from pydantic import BaseModel

from art.errors import ConfigurationError, LlmAnswerError, LlmError
from art.rewards.judge_view import DIGEST_CHARS, view_of
from art.rewards.judged import DEFAULT_JUDGE, JudgedReward, JudgeOptions, judge_channel
from art.rewards.ruler_scorer import DEFAULT_RUBRIC, PROMPT_TOKENS, RulerScorer
from art.trajectories import Trajectory, TrajectoryGroup
from art.types import Unscored

if TYPE_CHECKING:
    from art.openai import Messages, Tools
    from art.rewards.judge_checks import JudgeChecks
    from art.rewards.judged import JudgeModel

__all__ = ["DEFAULT_RUBRIC", "Response", "TrajectoryScore", "ruler", "ruler_score_group"]

_REPLACED = "art_extensions.compat.replaced_judge"
SHARED_RULERS = 16
"""Judges that are kept for the functions; more take turns."""


class Ruler(JudgedReward):
    """The reward of RULER: `after_each=Ruler("openai/o3").score_group`, or a term of a sum.

    Metrics of a trajectory: `ruler_score`, `reward/ruler`, `independent_reward` (the reward it came with). A
    trajectory without a score has the reward `Unscored(reason)`. docs/guides/ruler.md has costs and failures.
    """

    def __init__(
        self,
        judge_model: JudgeModel = DEFAULT_JUDGE,
        *,
        rubric: str = DEFAULT_RUBRIC,
        name: str = "ruler",
        max_prompt_tokens: int = PROMPT_TOKENS,
        digest_chars: int = DIGEST_CHARS,
        checks: JudgeChecks | None = None,
        **asking: Unpack[JudgeOptions],
    ) -> None:
        """rubric: what good means. judge_model: see `judge_channel`. max_prompt_tokens: of one question,
        estimated; larger groups are split. checks: what the judge undergoes while it trains. asking:
        base_url, api_key, params, cache, budget, pace, attempts, deadline, as `JudgeOptions` has them.

        Raises ConfigurationError.
        """
        self.channel = judge_channel(judge_model, name=name, **asking)
        scorer = RulerScorer(self.channel, rubric=rubric, name=name, max_prompt_tokens=max_prompt_tokens)
        super().__init__(scorer, checks=checks, digest_chars=digest_chars)


class RulerOptions:
    """The options of RULER, compared by identity, because models are not hashable."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RulerOptions) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def shared_ruler(judge_model: JudgeModel, params: Mapping[str, Any] | None, rubric: str) -> JudgedReward:
    """The same `Ruler` for equal arguments in one event loop: all calls share its pace and its questions.

    Where a program has put a function in place of `acompletion`, that one is asked.
    """
    if (function := globals().get("acompletion")) is not None:
        replaced: JudgedReward | None = import_module(_REPLACED).replaced_ruler(
            function, judge_model, params, rubric
        )
        if replaced is not None:
            return replaced
    try:
        params_json = json.dumps(dict(params or {}), sort_keys=True)
    except TypeError:
        return Ruler(judge_model, params=params, rubric=rubric)
    judge = judge_model if isinstance(judge_model, str) else RulerOptions(judge_model)
    return _create_ruler(asyncio.get_running_loop(), judge, params_json, rubric)


@lru_cache(maxsize=SHARED_RULERS)
def _create_ruler(
    loop: asyncio.AbstractEventLoop, judge: str | RulerOptions, params: str, rubric: str
) -> Ruler:
    return Ruler(
        judge.value if isinstance(judge, RulerOptions) else judge, params=json.loads(params), rubric=rubric
    )


def __getattr__(name: str) -> Any:
    """`acompletion`, for tests that put a function of their own in its place."""
    if name == "acompletion":
        return import_module(_REPLACED).acompletion
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


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
        details = "; ".join(f"{i}: {reason}" for i, reason in reasons.items())
        raise LlmAnswerError(f"no score for {len(reasons)} of {len(scores)} trajectories ({details})")
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
    text = next((line for line in reversed(trajectory.logs) if line.startswith("RULER ")), "")
    return {"trajectory_id": str(i), "explanation": text.removeprefix("RULER explanation: "), "score": score}


def _show(scores: list[dict[str, Any]]) -> None:
    """Prints the scores at a terminal or in a notebook, as `debug=True` asks for."""
    from rich.console import Console

    Console().print_json(data={"scores": scores})
