"""What a policy can do on scenarios that no step trained on, in three ways that say different things.

sampled     the mean over eight rollouts of each scenario at temperature 1: what training is about
greedy      one rollout of each at temperature 0: a noisy policy may know what it does not do at 1
pass@8      the share of scenarios with a success among the eight: what sampling can find at all
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import art
from bench.rows import Row

ROLLOUTS = 8
AT_ONCE = 256
Rollout = Callable[[art.Model, int, float], Awaitable[float]]
"""A rollout of the policy at the scenario of that number and temperature: its success, 0 or 1."""


@dataclass(frozen=True, kw_only=True)
class Skill:
    """Shares between 0 and 1."""

    sampled: float
    greedy: float
    pass_at_8: float
    error: float
    """Standard error of `sampled`: scenarios, not rollouts, are what was drawn."""

    @classmethod
    def of(cls, successes: Sequence[Sequence[float]], greedy: Sequence[float]) -> Skill:
        """successes: of each scenario, those of its sampled rollouts.

        >>> Skill.of([[1, 0], [0, 0]], greedy=[1, 1])
        Skill(sampled=0.25, greedy=1.0, pass_at_8=0.5, error=0.25)
        """
        means = [sum(one) / len(one) for one in successes]
        sampled = sum(means) / len(means)
        spread = sum((mean - sampled) ** 2 for mean in means) / max(1, len(means) - 1)
        return cls(
            sampled=sampled,
            greedy=sum(greedy) / len(greedy),
            pass_at_8=sum(max(one) >= 1 for one in successes) / len(successes),
            error=math.sqrt(spread / len(means)),
        )


def policy(model: art.TrainableModel, step: int) -> art.Model:
    """The adapter of a step, asked by its own name."""
    return art.Model(
        name=f"{model.name}-{step}",
        project=model.project,
        inference_model_name=model.get_inference_name(step),
        inference_base_url=model.inference_base_url,
        inference_api_key=model.inference_api_key,
    )


async def skill_of(one: art.Model, scenarios: int, rollout: Rollout) -> Skill:
    """Eight sampled rollouts and a greedy one of each scenario."""
    limit = asyncio.Semaphore(AT_ONCE)

    async def score(index: int, temperature: float) -> float:
        async with limit:
            return await rollout(one, index, temperature)

    async def sampled(index: int) -> list[float]:
        return await asyncio.gather(*(score(index, 1.0) for _ in range(ROLLOUTS)))

    numbers = range(scenarios)
    successes = await asyncio.gather(*(sampled(index) for index in numbers))
    return Skill.of(successes, await asyncio.gather(*(score(index, 0.0) for index in numbers)))


async def before_and_after(
    model: art.TrainableModel, data: Path, scenarios: int, rollout: Rollout
) -> tuple[Skill, Skill]:
    """Of the untrained adapter and of the newest, from the folder that a run left. Starts its server."""
    async with art.LocalBackend(path=str(data)) as backend:
        await model.register(backend)
        steps = (0, await model.get_step())
        before, after = [await skill_of(policy(model, step), scenarios, rollout) for step in steps]
    return before, after


def skill_rows(name: str, before: Skill, after: Skill) -> list[Row]:
    """Ours is after, the peer before; for what is sampled, the gain is to be above four standard errors."""
    error = math.hypot(before.error, after.error)

    def row(what: str, new: float, old: float, goal: float | None = None) -> Row:
        ratio = new / old if old else math.inf
        return Row(name=f"{name}: {what}, held out", ours=new, peer=old, unit="share", ratio=ratio, goal=goal)

    least = (before.sampled + 4 * error) / before.sampled if before.sampled else None
    return [
        row(f"sampled (standard error of the gain {error:.3f})", after.sampled, before.sampled, least),
        row("greedy", after.greedy, before.greedy),
        row("pass@8", after.pass_at_8, before.pass_at_8),
    ]
