"""The class `Ruler`: RULER as a reward, and one of each kind that the functions of `ruler` share."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Unpack

from art.rewards.judged import JudgedReward
from art.rewards.judging.judge_channel import DEFAULT_JUDGE, JudgeOptions, judge_channel
from art.rewards.judging.ruler_prompt import DEFAULT_RUBRIC
from art.rewards.judging.ruler_scorer import PROMPT_TOKENS, RulerScorer
from art.rewards.judging.views import DIGEST_CHARS

if TYPE_CHECKING:
    from art.rewards.checks import JudgeChecks
    from art.rewards.judging.judge_channel import JudgeModel

SHARED = 16
"""Judges that are kept for the functions; more take turns."""


class Ruler(JudgedReward):
    """The reward of RULER: `after_each=Ruler("openai/o3").score_group`, or a term of a sum.

    Metrics of a trajectory: `ruler_score`, `reward/ruler`, `independent_reward` (the reward it came with). A
    trajectory without a score has the reward `Unscored(reason)`. docs/ruler.md has costs and failures.
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


class Itself:
    """Whatever it holds, compared by identity: models are not hashable."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Itself) and other.held is self.held

    def __hash__(self) -> int:
        return id(self.held)


def shared_ruler(judge_model: JudgeModel, params: Mapping[str, Any] | None, rubric: str) -> Ruler:
    """The same `Ruler` for equal arguments in one event loop: all calls share its pace and its questions."""
    try:
        told = json.dumps(dict(params or {}), sort_keys=True)
    except TypeError:
        return Ruler(judge_model, params=params, rubric=rubric)
    judge = judge_model if isinstance(judge_model, str) else Itself(judge_model)
    return _opened(asyncio.get_running_loop(), judge, told, rubric)


@lru_cache(maxsize=SHARED)
def _opened(loop: asyncio.AbstractEventLoop, judge: str | Itself, params: str, rubric: str) -> Ruler:
    return Ruler(judge.held if isinstance(judge, Itself) else judge, params=json.loads(params), rubric=rubric)
