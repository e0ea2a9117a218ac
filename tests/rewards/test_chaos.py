"""Chaos changes throughput, never the mean reward: RULER over real HTTP against a judge that misbehaves."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

import art
from art.errors import (
    LlmBusyError,
    LlmRefusedError,
    LlmTimeoutError,
    LlmUnavailableError,
)
from art.llm import Reply, Request
from art.llm.channel import Channel
from art.llm.names import resolve_llm
from art.llm.pace import Pace
from art.rewards.judging.ruler_scorer import RulerScorer
from art.rewards.judging.views import views_of
from art.testing import LlmServer, Mischief, TruthfulJudge
from art.testing.mischief import KINDS

GROUPS, SIZE = 150, 4
EXPECTED = {
    "hang": LlmTimeoutError,
    "busy": LlmBusyError,
    "fault": LlmUnavailableError,
    "cut": LlmUnavailableError,
    "refusal": LlmRefusedError,
}
"""What the client is told of each trouble on the wire."""


class Witness:
    """A model to ask that writes down how each attempt failed."""

    def __init__(self, llm: Any) -> None:
        self.name, self._llm = llm.name, llm
        self.failures: list[Exception] = []

    async def complete(self, request: Request) -> Reply:
        try:
            reply: Reply = await self._llm.complete(request)
        except Exception as error:
            self.failures.append(error)
            raise
        return reply


def worth(messages: list[dict[str, Any]]) -> float:
    return float(messages[-1]["content"].removeprefix("worth "))


def groups() -> list[art.TrajectoryGroup]:
    dice = random.Random(5)
    opening: list[Any] = [{"role": "system", "content": "Be worth something."}]
    return [
        art.TrajectoryGroup(
            art.Trajectory(
                messages_and_choices=[
                    *opening,
                    {"role": "user", "content": f"task {number}"},
                    {"role": "assistant", "content": f"worth {dice.random():.4f}"},
                ],
                reward=0.0,
            )
            for _ in range(SIZE)
        )
        for number in range(GROUPS)
    ]


async def judged(mischief: Mischief, *, timeout: float) -> tuple[list[Any], Witness, LlmServer]:
    """The score of every trajectory, how attempts failed, and what the server saw."""
    async with LlmServer(TruthfulJudge(worth), mischief=mischief) as server:
        address = {"api_base": server.base_url, "api_key": server.key, "timeout": timeout}
        witness = Witness(resolve_llm("openai/truth", params=address))
        channel = Channel(witness, pace=Pace(start=32), attempts=6)
        scorer = RulerScorer(channel)
        rows = await asyncio.gather(*(scorer.score(views_of(group)) for group in groups()))
    return [score.value for row in rows for score in row], witness, server


async def test_trouble_with_half_of_the_questions_leaves_the_mean_reward_as_it_is() -> None:
    calm, _, still = await judged(Mischief(), timeout=60)
    chaos, witness, storm = await judged(
        Mischief.everything(0.5, seed=1, slow_seconds=0.05, retry_after=0.01), timeout=0.4
    )

    assert {one.trouble for one in still.served} == {None} and len(still.served) == GROUPS
    met = Counter(one.trouble for one in storm.served)
    assert set(met) == {None, *KINDS}, f"this seed leaves a kind out: {met}"

    scored = [value for value in chaos if not isinstance(value, art.Unscored)]
    assert sum(scored) / len(scored) == pytest.approx(sum(calm) / len(calm), rel=0.01)
    assert len(scored) >= 0.99 * len(chaos)
    for value, truth in zip(chaos, calm, strict=True):
        assert isinstance(value, art.Unscored) or value == truth

    told = Counter(type(error) for error in witness.failures)
    assert set(told) == set(EXPECTED.values())
    assert told.total() >= sum(met[kind] for kind in EXPECTED)  # more where this machine itself is slow
