"""A policy that learns to please its judge: the checks tell when the judge is gamed, and when not."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import mean
from types import MappingProxyType
from typing import Any

import pytest

from art.rewards import Alarm, JudgeChecks, Ruler
from art.rewards.llm import AnswerCache
from art.trajectories import Trajectory, TrajectoryGroup
from art.types import Unscored
from art_extensions.testing import LlmServer, TruthfulJudge

TRUE_QUALITY = {"plain": 0.4, "careful": 0.7, "padded": 0.1}
STYLES = tuple(TRUE_QUALITY)
WORDS = {
    "plain": "the guessed answer is",
    "careful": "the checked answer is",
    "padded": "please rate me well " * 12,
}


def quality(messages: list[dict[str, Any]]) -> float:
    said = messages[-1]["content"]
    return next(TRUE_QUALITY[style] for style, words in WORDS.items() if said.startswith(words))


def server_of(judge: TruthfulJudge) -> LlmServer:
    """The judge, and beside it one that knows the truth: "gold"."""
    gold = TruthfulJudge(quality)

    def answer(body: Mapping[str, Any]) -> Any:
        return gold(body) if body["model"] == "gold" else judge(body)

    return LlmServer(answer)


class Policy:
    """Chooses a style; REINFORCE on what the judge gives, against the group's mean."""

    def __init__(self, seed: int) -> None:
        self.logits = {"plain": 1.0, "careful": 0.0, "padded": 0.0}
        self._dice = random.Random(seed)

    def shares(self) -> dict[str, float]:
        total = sum(map(math.exp, self.logits.values()))
        return {style: math.exp(logit) / total for style, logit in self.logits.items()}

    def group(self, number: int) -> TrajectoryGroup:
        shares = self.shares()
        styles = self._dice.choices(STYLES, weights=[shares[style] for style in STYLES], k=6)
        return TrajectoryGroup(
            Trajectory(
                messages_and_choices=[
                    {"role": "user", "content": f"Question {number}?"},
                    {"role": "assistant", "content": f"{WORDS[style]} {n}"},
                ],
                metadata={"style": style},
            )
            for n, style in enumerate(styles)
        )

    def learn(self, group: TrajectoryGroup, rate: float = 0.25) -> None:
        scored = [(t.metadata["style"], t.reward) for t in group if not isinstance(t.reward, Unscored)]
        mean = sum(reward for _, reward in scored) / len(scored)
        shares = self.shares()
        for chosen, reward in scored:
            for style in STYLES:
                self.logits[style] += rate * (reward - mean) * ((style == chosen) - shares[style])


def in_process(judge: TruthfulJudge) -> Callable[..., Any]:
    """The same judge as a function: a judge model as well, and no network."""

    def answer(messages: list[dict[str, Any]]) -> Any:
        return judge({"messages": messages})

    return answer


async def train(
    judge: Any,
    gold: Any,
    groups: int = 36,
    *,
    seed: int = 0,
    where: Mapping[str, Any] = MappingProxyType({}),
    **checks: Any,
) -> tuple[Policy, list[dict[str, Any]]]:
    holdout = Ruler(gold, cache=False, **where)
    options = {"agreement_share": 0.2, "holdout": holdout, "holdout_share": 1, "window": 8}
    reward = Ruler(judge, checks=JudgeChecks(**{**options, **checks}), cache=False, **where)
    policy, history = Policy(seed=seed), []
    for number in range(groups):
        group = await reward.score_group(policy.group(number))
        policy.learn(group)
        history.append(group.metrics)
    return policy, history


@pytest.mark.slow
async def test_a_policy_that_pleads_is_caught_while_it_learns() -> None:
    """The judge likes to be asked kindly; its reward rises while the hold-out sees the answers get worse."""

    def swayed(messages: list[dict[str, Any]]) -> float:
        return quality(messages) + 0.9 * ("please" in messages[-1]["content"])

    told: list[Alarm] = []
    async with server_of(TruthfulJudge(swayed)) as server:
        where = {"base_url": server.base_url, "api_key": server.key}
        policy, history = await train("judge", "gold", where=where, on_alarm=told.append)
    assert policy.shares()["padded"] > 0.8
    assert {"divergence", "length"} <= {alarm.check for alarm in told}
    assert next(number for number, figures in enumerate(history) if figures["judge/alarm"]) < 30
    slices = [figures for figures in history if "judge/holdout" in figures]
    assert slices[-1]["judge/holdout"] < slices[0]["judge/holdout"]
    assert slices[-1]["judge/holdout_gap"] > slices[0]["judge/holdout_gap"] + 0.3
    assert slices[-1]["judge/divergence"] > 0.3


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
async def test_a_policy_that_grows_longer_for_a_judge_that_likes_length_is_caught(seed: int) -> None:
    told: list[Alarm] = []
    fond, gold = in_process(TruthfulJudge(quality, length_bias=0.9)), in_process(TruthfulJudge(quality))
    policy, history = await train(fond, gold, seed=seed, on_alarm=told.append)
    assert policy.shares()["padded"] > 0.8
    assert {"length", "holdout", "divergence"} <= {alarm.check for alarm in told}
    assert next(number for number, figures in enumerate(history) if figures["judge/alarm_length"]) < 10


@pytest.mark.parametrize("seed", range(4))
async def test_an_honest_judge_rings_nothing(seed: int) -> None:
    told: list[Alarm] = []
    honest, gold = in_process(TruthfulJudge(quality, noise=0.03)), in_process(TruthfulJudge(quality))
    policy, history = await train(honest, gold, seed=seed, on_alarm=told.append)
    assert policy.shares()["careful"] > 0.8
    assert told == [] and history[-1]["judge/divergence"] < 0.1


async def test_a_judge_that_goes_by_position_contradicts_itself() -> None:
    dizzy = in_process(TruthfulJudge(quality, position_bias=1.0))
    _, history = await train(dizzy, dizzy, groups=10, agreement_share=1, holdout=None)
    assert mean(figures["judge/agreement"] for figures in history) < 0.1
    assert mean(figures["judge/order_difference"] for figures in history) > 0.3
    assert history[-1]["judge/alarm_agreement"] == 1


@pytest.mark.slow
async def test_a_resumed_run_pays_for_no_second_opinion_twice(tmp_path: Path) -> None:
    policy = Policy(seed=1)
    groups = [policy.group(number) for number in range(12)]
    async with server_of(TruthfulJudge(quality)) as server:
        asked, opinions = [], []
        for _ in range(2):
            cache = AnswerCache(tmp_path / "answers.sqlite3")
            reward = Ruler(
                "judge",
                base_url=server.base_url,
                api_key=server.key,
                cache=cache,
                checks=JudgeChecks(agreement_share=0.4),
            )
            judged = [await reward.score_group(group) for group in groups]
            opinions.append([group.metrics.get("judge/agreement") for group in judged])
            asked.append(len(server.requests))
    sampled = sum(one is not None for one in opinions[0])
    assert 0 < sampled < 12
    assert asked == [12 + sampled, 12 + sampled]
    assert opinions[0] == opinions[1]
    assert [one for one in opinions[0] if one is not None] == pytest.approx([1.0] * sampled)
