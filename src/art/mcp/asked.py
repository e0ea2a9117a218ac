"""The models that a run of MCP-RL asks, and what they cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from art.errors import ConfigurationError

if TYPE_CHECKING:
    from art.llm.budget import Budget
    from art.llm.cache import AnswerCache
    from art.llm.channel import Channel
    from art.rewards.checks.judge_checks import JudgeChecks
    from art.rewards.reward import Reward


@dataclass(frozen=True, kw_only=True)
class Judge:
    """Who scores the attempts."""

    reward: Reward
    """While training: with its checks."""
    comparing: Reward
    """Of before and after: without."""
    channel: Channel | None
    """None where the user gave a reward, which has channels of its own."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The models that a run asks: one that judges, one that generates."""

    judge: Judge
    generator: Channel | ConfigurationError
    """Why its model cannot be asked, where it cannot: it may not be needed."""

    def costs(self) -> dict[str, dict[str, float | None]]:
        """What both were asked in this process, by what they are; US dollars are None where not known."""
        found: dict[str, Any] = {"generator": self.generator, "judge": self.judge.channel}
        return {name: spent(channel) for name, channel in found.items() if hasattr(channel, "totals")}


def generator_of(
    generator: Any, params: Mapping[str, Any] | None, *, cache: AnswerCache, budget: Budget | None
) -> Channel | ConfigurationError:
    """The way to the model that writes scenarios, or why there is none."""
    from art.llm.channel import Channel
    from art.llm.names import resolve_llm

    try:
        llm = resolve_llm(generator, params=params)
        return Channel(llm, cache=cache, budget=budget, source="generator/scenarios")
    except ConfigurationError as error:
        return error


def judge_of(
    judge: Any,
    params: Mapping[str, Any] | None,
    *,
    rubric: str | None,
    checks: JudgeChecks | None,
    cache: AnswerCache,
    budget: Budget | None,
) -> Judge:
    """RULER with a judge by name, or the user's own reward.

    Raises ConfigurationError for what is neither, and for a rubric, checks or params beside a reward.
    """
    from art.rewards.judge_channel import judge_channel
    from art.rewards.judged import JudgedReward
    from art.rewards.reward import Reward
    from art.rewards.ruler_prompt import DEFAULT_RUBRIC
    from art.rewards.ruler_scorer import RulerScorer

    if isinstance(judge, Reward):
        for name, value in (("rubric", rubric), ("judge_params", params)):
            if value:
                raise ConfigurationError(
                    f"{name}={value!r} is for a judge by name; give it to {judge.name!r} itself"
                )
        return Judge(reward=judge, comparing=judge, channel=None)
    channel = judge_channel(judge, name="ruler", params=params, cache=cache, budget=budget)
    scorer = RulerScorer(channel, rubric=DEFAULT_RUBRIC if rubric is None else rubric)
    return Judge(reward=JudgedReward(scorer, checks=checks), comparing=JudgedReward(scorer), channel=channel)


def spent(channel: Any) -> dict[str, float | None]:
    """The totals of a channel."""
    totals: dict[str, float | None] = asdict(channel.totals)
    known = getattr(channel.llm, "pricing", None) is not None or totals["usd"]
    return {**totals, "usd": totals["usd"] if known else None}
