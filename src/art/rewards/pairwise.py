"""The reward of a tournament: which of two is better, asked until all have a place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from art.rewards.judged import JudgedReward
from art.rewards.judging.judge_channel import DEFAULT_JUDGE, JudgeOptions, judge_channel
from art.rewards.judging.pairwise_scorer import PairwiseScorer
from art.rewards.judging.ruler_prompt import DEFAULT_RUBRIC
from art.rewards.judging.ruler_scorer import PROMPT_TOKENS
from art.rewards.judging.views import DIGEST_CHARS

if TYPE_CHECKING:
    from art.rewards.checks import JudgeChecks
    from art.rewards.judging.judge_channel import JudgeModel


class Pairwise(JudgedReward):
    """The share of its group that a trajectory beats: `after_each=Pairwise("openai/o3").score_group`.

    Metrics of a trajectory: `reward/pairwise`, `pairwise/games`, `pairwise/flipped` (share of its games with
    both orders whose answers contradict each other), `independent_reward`. docs/judges.md has the costs.
    """

    def __init__(
        self,
        judge_model: JudgeModel = DEFAULT_JUDGE,
        *,
        rubric: str = DEFAULT_RUBRIC,
        both_orders: float = 0.25,
        name: str = "pairwise",
        max_prompt_tokens: int = PROMPT_TOKENS,
        digest_chars: int = DIGEST_CHARS,
        checks: JudgeChecks | None = None,
        **asking: Unpack[JudgeOptions],
    ) -> None:
        """rubric: what good means. both_orders: share of the games that are asked in both orders.

        judge_model: see `judge_channel`. max_prompt_tokens: of one question, estimated. checks: what the
        judge undergoes while it trains. asking: base_url, api_key, params, cache, budget, pace, attempts,
        deadline, as `JudgeOptions` has them. Raises ConfigurationError.
        """
        self.channel = judge_channel(judge_model, name=name, **asking)
        scorer = PairwiseScorer(
            self.channel,
            rubric=rubric,
            both_orders=both_orders,
            name=name,
            max_prompt_tokens=max_prompt_tokens,
        )
        super().__init__(scorer, checks=checks, digest_chars=digest_chars)
