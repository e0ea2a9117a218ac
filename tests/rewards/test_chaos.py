"""Chaos changes throughput, never the mean reward: every judge over real HTTP, and what misbehaves."""

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
from art.rewards.judge_view import views_of
from art.rewards.llm import Reply, Request
from art.rewards.llm.channel import Channel, Pace
from art.rewards.llm.names import resolve_llm
from art.rewards.ruler_scorer import RulerScorer
from art_extensions.testing import LlmServer, Mischief, TruthfulJudge
from art_extensions.testing.answers import KINDS

GROUPS, SIZE = 150, 4
EXPECTED = {
    "hang": LlmTimeoutError,
    "busy": LlmBusyError,
    "fault": LlmUnavailableError,
    "cut": LlmUnavailableError,
    "refusal": LlmRefusedError,
}
"""What the client is told of each trouble on the wire."""


LOST = {"ruler": 0.0, "rubric": 0.0, "pairwise": 0.02}
"""How far a score may be off, in the mean: where a game of a tournament is lost, the others decide."""


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


SCORERS = {
    "ruler": RulerScorer,
    "rubric": lambda channel: rubric(channel),
    "pairwise": lambda channel: tournament(channel),
}
OF_EXTENSIONS = {"rubric", "pairwise"}
COUNTS = {"ruler": GROUPS, "rubric": 50, "pairwise": 25}
"""Groups that each judges."""


def rubric(channel: Channel) -> Any:
    from art.rewards.rubric import RubricScorer

    return RubricScorer(channel, {"worth": "It is worth something.", "again": "It is."})


def tournament(channel: Channel) -> Any:
    from art_extensions.tournament.pairwise import PairwiseScorer

    return PairwiseScorer(channel)


async def judged(
    kind: str, count: int, mischief: Mischief, *, timeout: float
) -> tuple[list[Any], Witness, LlmServer]:
    """The score of every trajectory of `count` groups, how attempts failed, and what the server saw."""
    async with LlmServer(TruthfulJudge(worth), mischief=mischief) as server:
        address = {"api_base": server.base_url, "api_key": server.key, "timeout": timeout}
        witness = Witness(resolve_llm("openai/truth", params=address))
        channel = Channel(witness, pace=Pace(start=32), attempts=6)
        scorer = SCORERS[kind](channel)
        rows = await asyncio.gather(*(scorer.score(views_of(group)) for group in groups()[:count]))
    return [score.value for row in rows for score in row], witness, server


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "count"),
    [
        pytest.param(kind, count, marks=[pytest.mark.extension] * (kind in OF_EXTENSIONS))
        for kind, count in COUNTS.items()
    ],
)
async def test_trouble_with_half_of_the_questions_leaves_the_mean_reward_as_it_is(
    kind: str, count: int
) -> None:
    calm, _, still = await judged(kind, count, Mischief(), timeout=60)
    chaos, witness, storm = await judged(
        kind, count, Mischief.everything(0.5, seed=1, slow_seconds=0.05, retry_after=0.01), timeout=1.0
    )

    assert {one.trouble for one in still.served} == {None}
    assert len(still.served) >= count and len(calm) == SIZE * count
    met = Counter(one.trouble for one in storm.served)
    assert set(met) == {None, *KINDS}, f"this seed leaves a kind out: {met}"

    scored = [(value, truth) for value, truth in zip(chaos, calm, strict=True) if isinstance(value, float)]
    means = [sum(column) / len(scored) for column in zip(*scored, strict=True)]
    assert means[0] == pytest.approx(sum(calm) / len(calm), rel=0.01)
    assert len(scored) >= 0.99 * len(chaos)
    assert sum(abs(value - truth) for value, truth in scored) <= LOST[kind] * len(scored)

    told = Counter(type(error) for error in witness.failures)
    assert set(told) == set(EXPECTED.values())
    assert told.total() >= sum(met[kind] for kind in EXPECTED)  # more where this machine itself is slow
