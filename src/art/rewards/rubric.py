"""The reward of a rubric: absolute, by weighted criteria."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Unpack

from art.rewards.judged import JudgedReward
from art.rewards.judging.criterion import Criterion
from art.rewards.judging.judge_channel import DEFAULT_JUDGE, JudgeOptions, judge_channel
from art.rewards.judging.rubric_prompt import STANDARDS
from art.rewards.judging.rubric_scorer import RubricScorer
from art.rewards.judging.ruler_scorer import PROMPT_TOKENS
from art.rewards.judging.views import DIGEST_CHARS

if TYPE_CHECKING:
    from art.rewards.checks import JudgeChecks
    from art.rewards.judging.judge_channel import JudgeModel


class Rubric(JudgedReward):
    """Each trajectory by itself: `after_each=Rubric([Criterion("polite", "..."), ...]).score_group`.

    Metrics of a trajectory: `reward/rubric`, `rubric/<criterion>` for each, `independent_reward`. One without
    a verdict by every criterion has the reward `Unscored(reason)`. One question a trajectory; docs/judges.md.
    """

    def __init__(
        self,
        criteria: Iterable[Criterion] | Mapping[str, str],
        judge_model: JudgeModel = DEFAULT_JUDGE,
        *,
        standards: str = STANDARDS,
        name: str = "rubric",
        max_prompt_tokens: int = PROMPT_TOKENS,
        digest_chars: int = DIGEST_CHARS,
        checks: JudgeChecks | None = None,
        **asking: Unpack[JudgeOptions],
    ) -> None:
        """criteria: or {name: description}, of equal weight. standards: what holds for all of them.

        judge_model: see `judge_channel`. max_prompt_tokens: of one question, estimated. checks: what the
        judge undergoes while it trains. asking: base_url, api_key, params, cache, budget, pace, attempts,
        deadline, as `JudgeOptions` has them. Raises ConfigurationError.
        """
        self.channel = judge_channel(judge_model, name=name, **asking)
        scorer = RubricScorer(
            self.channel, criteria, standards=standards, name=name, max_prompt_tokens=max_prompt_tokens
        )
        super().__init__(scorer, checks=checks, digest_chars=digest_chars)
