"""The ways to do better at a task, which cells of `bench.learning.cells` compare: one runner for all of them.

base        nothing: the model as it is
prompt      the best of three ways to ask, chosen on training scenarios
grpo        rewards: ART's own algorithm by default
rejection   fine-tuning on the best of the rollouts of each scenario, where it is a success, again and again
sft         fine-tuning on demonstrations of a script
trl         TRL's GRPOTrainer, in its own environment (`bench/trl/cell_worker.py`)

All of them have the same base, held-out scenarios and seconds. The clock starts before the server does, and
stops while an evaluation runs. A program without an environment of its own is run as it is
(`bench.learning.program_cells`), by the methods base, sft, grpo and rejection.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Any

import art
from art.environments.adapters.environment import NamedEnvironment, Scenario
from art.environments.adapters.scenario_sampler import ScenarioSampler
from bench.learning.cells import Cell, Measured, Point, estimate_of
from bench.learning.example_tasks import PROMPTS, ExampleTask, row_of, row_of_rollout, tokens_of

EVALUATIONS = 3
"""On the way and at the end."""
PROMPT_SCENARIOS = 48
"""Training scenarios on which the prompt is chosen."""
AT_ONCE = 64


@dataclass(kw_only=True)
class Clock:
    """Seconds of wall time since it was made, without those of its pauses."""

    begin: float = field(default_factory=time.monotonic)
    paused: float = 0.0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.begin - self.paused

    @contextmanager
    def pause(self) -> Iterator[None]:
        begin = time.monotonic()
        yield
        self.paused += time.monotonic() - begin


def point_of(scores: Sequence[Sequence[float]], *, seconds: float, tokens: int, step: int) -> Point:
    """Returns the mean over scenarios with its interval, which is inside the range of the score.

    scores: of each scenario, those of its rollouts.
    """
    means = [fmean(one) for one in scores]
    estimate, mean = estimate_of(means), round(fmean(means), 4)
    return Point(
        seconds=round(seconds, 1),
        tokens=tokens,
        step=step,
        mean=mean,
        low=mean if estimate.low is None else estimate.low,
        high=mean if estimate.high is None else estimate.high,
        scores=[round(one, 4) for one in means],
    )


@dataclass(kw_only=True)
class Learner:
    """A model of a cell on its way: what is measured, and when its time is over."""

    cell: Cell
    task: ExampleTask
    environment: NamedEnvironment
    model: art.TrainableModel[Any, Any]
    clock: Clock
    points: list[Point] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    tokens: int = 0
    steps: int = 0
    _longest: float = 0.0

    async def score(
        self, scenarios: Sequence[Scenario], *, each: int, temperature: float = 1.0, prompt: int = 0
    ) -> list[list[float]]:
        """Returns the successes of each scenario's rollouts; the same seeds each time."""
        environment = self.task.environment(prompt) if prompt else self.environment
        slots = asyncio.Semaphore(AT_ONCE)

        async def one(scenario: Scenario, seed: int) -> art.Trajectory:
            async with slots:
                return await environment.rollout(self.model, scenario, seed=seed, temperature=temperature)

        groups = await art.gather_trajectory_groups(
            (
                art.TrajectoryGroup([one(scenario, each * place + index) for index in range(each)])
                for place, scenario in enumerate(scenarios)
            ),
            pbar_desc=None,
        )
        return [[float(rollout.metrics[self.task.score]) for rollout in group] for group in groups]

    @property
    def held_out(self) -> Sequence[Scenario]:
        return self.environment.scenarios("val")[: self.cell.held_out]

    async def evaluate(self, *, each: int = 1, prompt: int = 0) -> list[list[float]]:
        """Scores the held-out scenarios and notes the point."""
        with self.clock.pause():
            scores = await self.score(self.held_out, each=each, prompt=prompt)
        self.points.append(point_of(scores, seconds=self.clock.seconds, tokens=self.tokens, step=self.steps))
        return scores

    async def gather(self, scenarios: Sequence[Scenario], group_size: int) -> list[art.TrajectoryGroup]:
        """Rolls out the scenarios of a step."""
        groups = await art.gather_trajectory_groups(
            (
                art.TrajectoryGroup(self.environment.rollout(self.model, scenario) for _ in range(group_size))
                for scenario in scenarios
            ),
            pbar_desc=None,
        )
        played = [one for group in groups for one in group]
        self.tokens += sum(tokens_of(one) for one in played)
        self.rewards.append(round(fmean(float(one.reward) for one in played), 4))
        return groups

    async def repeat(self, step: Callable[[int], Awaitable[None]], *, most: float = math.inf) -> None:
        """Makes steps, at most so many, until the next would end after the cell's seconds.

        Evaluates on the way, at equal parts of the seconds.
        """
        due = [self.cell.seconds * part / EVALUATIONS for part in range(1, EVALUATIONS)]
        while self.steps < most and self.clock.seconds + self._longest <= self.cell.seconds:
            begin = self.clock.seconds
            await step(self.steps)
            self.steps += 1
            self._longest = max(self._longest, self.clock.seconds - begin)
            if due and self.clock.seconds >= due[0]:
                due = [one for one in due if one > self.clock.seconds]
                await self.evaluate()

    async def show_demonstrations(self, count: int, learning_rate: float) -> None:
        """Fine-tunes on so many conversations of the script: what a program begins with."""
        rows = self.task.demonstrations(self.cell.seed, count)
        await self.model.train_sft(rows, art.TrainSFTConfig(learning_rate=learning_rate, batch_size=4))

    async def measured(self, *, prompt: int = 0, note: str = "") -> Measured:
        """Scores the held-out scenarios for the last time, and returns all that was found."""
        each, skill = self.cell.each, {}
        scores = await self.evaluate(each=each, prompt=prompt)
        if each >= 8:
            from art_extensions.evaluation.checkpoint_scores import pass_at_k

            greedy = await self.score(self.held_out, each=1, temperature=0.0, prompt=prompt)
            skill["greedy"] = round(fmean(one[0] for one in greedy), 4)
            skill["pass_at_8"] = round(fmean(pass_at_k(int(sum(one)), each, 8) for one in scores), 4)
        return Measured(points=self.points, rewards=self.rewards, note=note, **skill)


async def measure_base(learner: Learner) -> Measured:
    """The held-out scenarios by the untrained model."""
    return await learner.measured()


async def choose_prompt(learner: Learner) -> Measured:
    """Three ways to ask, by their training scenarios; the best one on the held-out ones."""
    asked = learner.environment.scenarios("train")[:PROMPT_SCENARIOS]
    tried = []
    for prompt in range(PROMPTS):
        scores = await learner.score(asked, each=1, prompt=prompt)
        tried.append(fmean(one[0] for one in scores))
    best = max(range(PROMPTS), key=lambda prompt: tried[prompt])
    shares = ", ".join(f"{one:.2f}" for one in tried)
    return await learner.measured(prompt=best, note=f"prompt {best}; on training scenarios {shares}")


async def learn_by_rewards(learner: Learner) -> Measured:
    """GRPO. settings: groups, group_size, steps (at most), demonstrations (to begin with), sft_rate, and the
    keywords of `train`.
    """
    settings = dict(learner.cell.settings)
    steps = settings.pop("steps", math.inf)
    shown, rate = settings.pop("demonstrations", 0), settings.pop("sft_rate", 3e-4)
    groups, group_size = settings.pop("groups", 8), settings.pop("group_size", 8)
    sampler = ScenarioSampler(
        learner.environment.scenarios("train"), key=lambda one: one.id, seed=learner.cell.seed
    )

    async def step(number: int) -> None:
        if number == 0 and shown:
            await learner.show_demonstrations(shown, rate)
        else:
            rolled_out = await learner.gather(sampler.draw(number, groups), group_size)
            await learner.model.train(rolled_out, **settings)

    await learner.repeat(step, most=steps)
    return await learner.measured()


async def learn_by_rejection(learner: Learner) -> Measured:
    """Best of so many, then fine-tuning on it. settings: groups, group_size, steps (at most), demonstrations
    (to begin with), sft_rate, learning_rate, batch_size.
    """
    settings = dict(learner.cell.settings)
    steps = settings.pop("steps", math.inf)
    shown, rate = settings.pop("demonstrations", 0), settings.pop("sft_rate", 3e-4)
    groups, group_size = settings.pop("groups", 16), settings.pop("group_size", 8)
    sampler = ScenarioSampler(
        learner.environment.scenarios("train"), key=lambda one: one.id, seed=learner.cell.seed, thin=1.0
    )
    world: Any = learner.environment

    async def step(number: int) -> None:
        if number == 0 and shown:
            await learner.show_demonstrations(shown, rate)
            return
        scenarios = sampler.draw(number, groups)
        rolled_out = await learner.gather(scenarios, group_size)
        winners = [max(group, key=lambda one: float(one.reward)) for group in rolled_out]
        rows = [
            row_of(world.world(scenario), winner.messages())
            if hasattr(world, "world")
            else row_of_rollout(winner)
            for scenario, winner in zip(scenarios, winners, strict=True)
            if winner.metrics[learner.task.score]
        ]
        if rows:
            await learner.model.train_sft(rows, art.TrainSFTConfig(**settings))

    await learner.repeat(step, most=steps)
    return await learner.measured()


async def learn_by_demonstrations(learner: Learner) -> Measured:
    """Fine-tuning on a script's conversations. settings: rows (of a step), steps, learning_rate,
    batch_size.
    """
    settings = dict(learner.cell.settings)
    count, steps = settings.pop("rows", 32), settings.pop("steps", 6)
    rows = learner.task.demonstrations(learner.cell.seed, count * steps)

    async def step(number: int) -> None:
        await learner.model.train_sft(
            rows[number * count : (number + 1) * count], art.TrainSFTConfig(**settings)
        )

    await learner.repeat(step, most=steps)
    return await learner.measured()


METHODS: Mapping[str, Callable[[Learner], Awaitable[Measured]]] = MappingProxyType(
    {
        "base": measure_base,
        "prompt": choose_prompt,
        "grpo": learn_by_rewards,
        "rejection": learn_by_rejection,
        "sft": learn_by_demonstrations,
    }
)
"""Those that run on ART; "trl" is a program of its own."""


async def run_on_art(cell: Cell, model: str, folder: Path) -> Measured:
    """Runs a method in a server of its own."""
    clock = Clock()
    task = ExampleTask.find(cell.task)
    environment = task.environment()
    learner = art.TrainableModel(
        name="learner",
        project="bench",
        base_model=model,
        _internal_config=art.dev.InternalModelConfig(peft_args=art.dev.PeftArgs(random_state=cell.seed)),
    )
    async with art.LocalBackend(path=str(folder)) as backend:
        await learner.register(backend)
        found = await METHODS[cell.method](
            Learner(cell=cell, task=task, environment=environment, model=learner, clock=clock)
        )
    await environment.close()
    return found
