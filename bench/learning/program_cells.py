"""A program of `examples/` as a cell: it runs as a user runs it, and what it evaluates is what is measured.

    Cell(task="art_e", method="base")            its untrained model
    Cell(task="art_e", method="sft", settings={"steps": 1})      ended after its first, supervised step
    Cell(task="art_e", method="grpo")            all of it
    Cell(task="art_e", method="rejection")       each step of RL is fine-tuning on the best of its rollouts

The program makes its model, its scenarios, its rollouts and its evaluations. The cell asks for the last
evaluation again: eight rollouts of each scenario, and a greedy one. In a rejection cell the supervised step,
the scenarios and the number of rollouts are those of RL.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from types import ModuleType
from typing import Any

import art
from bench.learning.cells import Cell, Measured, Point
from bench.learning.example_programs import Example
from bench.learning.example_tasks import tokens_of
from bench.learning.methods import Clock, point_of

TRIES = 8
AT_THE_END = "greedy at the end"
Evaluate = Callable[[], Awaitable[Any]]


class EnoughError(Exception):
    """What the cell is about was measured: the program need not go on."""


class LearnerModel(art.TrainableModel[Any, Any]):
    """The model of a program in a cell."""

    _program: Any = None

    async def train(
        self, trajectory_groups: Iterable[art.TrajectoryGroup | None], *rest: Any, **options: Any
    ) -> art.TrainResult:
        groups = [one for one in trajectory_groups if one is not None]
        self._program.note_rollouts(groups)
        if self._program.cell.method != "rejection":
            return await super().train(groups, *rest, **options)
        winners, before = best_rollouts(groups), await self.get_step()
        given = options.get("config") or (rest[0] if rest else art.TrainConfig())
        tuning = {"learning_rate": given.learning_rate, "batch_size": 8, **self._program.tuning}
        result = await self.train_sft(winners, art.TrainSFTConfig(**tuning))
        self._program.skipped += await self.get_step() == before
        return result

    async def log(self, trajectories: Any = None, split: str = "val", **given: Any) -> None:
        groups = None if trajectories is None else list(trajectories)
        if groups and split == "val" and await self._program.hear(self, groups):
            return
        await super().log(groups, split, **given)


def best_rollouts(groups: Sequence[art.TrajectoryGroup]) -> list[art.Trajectory]:
    """Returns the best rollout of each group that is no worse than the mean of all; none where all are equal.

    So what every rollout of a scenario fails at is not taught.
    """
    rewards = [float(one.reward) for group in groups for one in group]
    if not rewards or min(rewards) == max(rewards):
        return []
    best = [max(group, key=lambda one: float(one.reward)) for group in groups if len(group)]
    return [one for one in best if float(one.reward) >= fmean(rewards)]


class ArtOfProgram(ModuleType):
    """The library as a program of a cell sees it: its `TrainableModel` is the cell's."""

    def __getattr__(self, name: str) -> Any:
        return getattr(art, name)


@dataclass(kw_only=True)
class ProgramRun:
    """A program under way."""

    cell: Cell
    example: Example
    until: int
    """The step whose evaluation is the result."""
    ends: bool
    """Whether the program is ended then. Else it ends by itself, and its last evaluation is the result."""
    clock: Clock = field(default_factory=Clock)
    models: list[LearnerModel] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    tokens: int = 0
    skipped: int = 0
    """Steps of rejection sampling with nothing to train on: the model made none."""
    found: dict[str, float] = field(default_factory=dict)
    caught: list[art.TrajectoryGroup] | None = None
    """What an evaluation that is not logged would log."""

    @property
    def tuning(self) -> dict[str, Any]:
        """The settings of fine-tuning in a rejection cell, where they are not RL's rate and batches of 8."""
        return {name: value for name, value in self.cell.settings.items() if name not in ("steps", "options")}

    def make_model(self, **fields: Any) -> LearnerModel:
        made = LearnerModel(**fields)
        made._program = self
        self.models.append(made)
        return made

    def note_rollouts(self, groups: Sequence[art.TrajectoryGroup]) -> None:
        rolled_out = [one for group in groups for one in group]
        self.tokens += sum(map(tokens_of, rolled_out))
        if rolled_out:
            self.rewards.append(round(fmean(float(one.reward) for one in rolled_out), 4))

    async def step(self) -> int:
        """Returns the step of the model that learns: of several, the last one that the program made."""
        return await self.models[-1].get_step() + self.skipped

    async def hear(self, model: LearnerModel, groups: Sequence[art.TrajectoryGroup]) -> bool:
        """Takes what an evaluation logs. Returns whether this shall not be in the log."""
        if self.caught is not None:
            self.caught += groups
            return True
        self.note_point(self.scores_of(groups), await model.get_step() + self.skipped)
        return False

    def note_point(self, scores: Sequence[Sequence[float]], step: int) -> None:
        """Notes the point; one of the same step gives way to it."""
        made = point_of(scores, seconds=self.clock.seconds, tokens=self.tokens, step=step)
        self.points = [*(one for one in self.points if one.step != step), made]

    def scores_of(self, groups: Sequence[art.TrajectoryGroup]) -> list[list[float]]:
        return [[self.example.score(one) for one in group] for group in groups]

    async def ask(self, evaluate: Evaluate) -> list[list[float]]:
        """Returns the scores of one evaluation, which is not logged."""
        self.caught = []
        with contextlib.redirect_stdout(sys.stderr):
            returned = await evaluate()
        groups, self.caught = self.caught or returned, None
        return self.scores_of(groups)

    async def measure(self, evaluate: Evaluate) -> None:
        """Asks for an evaluation until each scenario has its rollouts, and for a greedy one."""
        with self.clock.pause():
            scores = await self.ask(evaluate)
            while len(scores[0]) < self.cell.each and "pass@8" not in self.example.without:
                more = await self.ask(evaluate)
                scores = [[*some, *others] for some, others in zip(scores, more, strict=True)]
            if len(scores[0]) >= TRIES:
                self.found["pass_at_8"] = round(fmean(max(one[:TRIES]) for one in scores), 4)
            if "greedy" not in self.example.without:
                defaults = self.models[-1].openai_client().request_defaults
                defaults["temperature"] = 0.0
                greedy = await self.ask(evaluate)
                del defaults["temperature"]
                self.found["greedy"] = round(fmean(fmean(one) for one in greedy), 4)
        self.note_point(scores, await self.step())

    async def run(self, program: ModuleType, options: Any) -> Measured:
        """Runs the program in this process."""
        own = program.evaluate

        async def evaluate(*given: Any) -> Any:
            returned = await own(*given)
            again = self.ends or AT_THE_END not in self.example.without
            if again and await self.step() >= self.until:
                await self.measure(lambda: own(*given))
                if self.ends:
                    raise EnoughError
            return returned

        library = ArtOfProgram("art")
        vars(library)["TrainableModel"] = self.make_model
        vars(program).update(art=library, evaluate=evaluate)
        with contextlib.suppress(EnoughError):
            await program.main(options)
        if not self.points:
            raise RuntimeError(f"{self.cell.name}: the program ended without an evaluation")
        return Measured(points=self.points, rewards=self.rewards, **self.found)


def run_program(cell: Cell, model: str, folder: Path) -> Measured:
    """Runs a cell of a program in an empty folder. settings: `steps` after which it is ended; `options`, as
    on a command line; and of a rejection cell `learning_rate` and `batch_size`.
    """
    example = Example.find(cell.task, cell.variant)
    program = example.load()
    given = [*example.arguments, *cell.settings.get("options", ()), "--seed", str(cell.seed)]
    options = program.read_options([*given, "--model", model, "--path", str(folder)])
    ends = cell.method == "base" or "steps" in cell.settings
    if ends:
        options.steps = cell.settings.get("steps", 0)
    run = ProgramRun(cell=cell, example=example, until=options.steps, ends=ends)
    return asyncio.run(run.run(program, options))
