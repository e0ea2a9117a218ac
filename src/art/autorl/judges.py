"""Who scores: resolved before anything is asked or paid, given the rubric once there is one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from art.errors import ConfigurationError

if TYPE_CHECKING:
    from art.llm.budget import Budget
    from art.llm.cache import AnswerCache
    from art.llm.channel import Channel
    from art.llm.request import Llm
    from art.rewards.checks import JudgeChecks
    from art.rewards.reward import Reward


@dataclass(frozen=True, kw_only=True)
class Judges:
    """`referee` compares before and after: the one that trains, unless another was named."""

    training: Reward
    referee: Reward

    @property
    def same(self) -> bool:
        return self.training is self.referee

    def channels(self) -> dict[str, Channel]:
        """By role; rewards of the user's own ask in ways of their own."""
        rewards = {"judge": self.training} | ({} if self.same else {"referee": self.referee})
        found = {role: getattr(reward, "channel", None) for role, reward in rewards.items()}
        return {role: channel for role, channel in found.items() if channel is not None}


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A judge that has no rubric yet, or a reward of the user's own."""

    judge: Llm | Reward
    cache: AnswerCache
    budget: Budget | None
    checks: JudgeChecks | None = None

    @classmethod
    def of(
        cls,
        judge: Any,
        params: Mapping[str, Any] | None,
        *,
        cache: AnswerCache,
        budget: Budget | None,
        checks: JudgeChecks | None = None,
    ) -> Candidate:
        """Raises ConfigurationError where it cannot be asked, or its price is needed and not known."""
        from art.rewards.judge_channel import judge_llm
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

    def with_rubric(self, rubric: str) -> Reward:
        """RULER that goes by the rubric; the user's own reward as it is."""
        from art.rewards.reward import Reward
        from art.rewards.ruler_reward import Ruler

        if isinstance(self.judge, Reward):
            return self.judge
        return Ruler(self.judge, rubric=rubric, cache=self.cache, budget=self.budget, checks=self.checks)
