"""Who scores: resolved before anything is asked or paid, given the rubric once there is one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from art.errors import ConfigurationError

if TYPE_CHECKING:
    from art.rewards.judge_checks import JudgeChecks
    from art.rewards.llm.budget import Budget
    from art.rewards.llm.cache import AnswerCache
    from art.rewards.llm.channel import Channel
    from art.rewards.llm.request import Llm
    from art.rewards.reward import Reward


JUDGE = "openai/o4-mini"


@dataclass(frozen=True, kw_only=True)
class Judge:
    """A source of scores for the two occasions."""

    training: Reward
    """The reward of the training, with its checks."""
    comparing: Reward
    """The reward of before and after, without checks, since nothing is learned there."""
    channel: Channel | None
    """None where the user gave a reward, which asks in ways of its own."""


@dataclass(frozen=True, kw_only=True)
class Judges:
    """The one that trains, and the referee of before and after: the same unless another is named."""

    judge: Judge
    referee: Judge | None

    @property
    def has_one_judge(self) -> bool:
        return self.referee is None

    @property
    def training(self) -> Reward:
        return self.judge.training

    @property
    def comparing(self) -> Reward:
        return (self.referee or self.judge).comparing

    def channels(self) -> dict[str, Channel]:
        """The channels by role."""
        roles = {"judge": self.judge, "referee": self.referee}
        return {
            role: one.channel for role, one in roles.items() if one is not None and one.channel is not None
        }


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A judge that has no rubric yet, or a reward of the user's own."""

    judge: Llm | Reward
    cache: AnswerCache
    budget: Budget | None
    checks: JudgeChecks | None = None

    @classmethod
    def from_judge(
        cls,
        judge: Any,
        params: Mapping[str, Any] | None,
        *,
        cache: AnswerCache,
        budget: Budget | None,
        checks: JudgeChecks | None = None,
    ) -> Candidate:
        """Raises ConfigurationError where it cannot be asked, or its price is needed and not known."""
        from art.rewards.judged import judge_llm
        from art.rewards.reward import Reward

        if isinstance(judge, Reward):
            if params or checks is not None:
                raise ConfigurationError(
                    f"params and checks are for judges by name; give them to {judge.name!r} itself"
                )
            return cls(judge=judge, cache=cache, budget=budget)
        llm = judge_llm(judge, params=params)
        if budget is not None:
            budget.accepts(getattr(llm, "pricing", None), llm.name)
        return cls(judge=llm, cache=cache, budget=budget, checks=checks)

    def with_rubric(self, rubric: str | None) -> Judge:
        """RULER that goes by the rubric, None for its own; the user's own reward as it is."""
        from art.rewards.judged import JudgedReward
        from art.rewards.reward import Reward
        from art.rewards.ruler import Ruler
        from art.rewards.ruler_scorer import DEFAULT_RUBRIC

        if isinstance(self.judge, Reward):
            return Judge(training=self.judge, comparing=self.judge, channel=None)
        ruler = Ruler(
            self.judge,
            rubric=DEFAULT_RUBRIC if rubric is None else rubric,
            cache=self.cache,
            budget=self.budget,
            checks=self.checks,
        )
        return Judge(training=ruler, comparing=JudgedReward(ruler.scorer), channel=ruler.channel)


def judges_of(judge: Candidate, referee: Candidate | None, rubric: str | None) -> Judges:
    """Returns judge and referee with one rubric."""
    return Judges(
        judge=judge.with_rubric(rubric), referee=None if referee is None else referee.with_rubric(rubric)
    )
