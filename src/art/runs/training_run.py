"""A training run: rollouts before, training, rollouts after, and both compared.

Its rollouts have the same limits, a few run at a time, each with the seed of its place. With it, where a run
lies and which backend serves the model that learns.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from art.environments.adapters.scenario_sampler import ScenarioSampler, outcomes_of
from art.environments.measure import Measure, mean_figures
from art.errors import BudgetExceededError, ConfigurationError
from art.gather import gather_trajectory_groups
from art.runs.comparison import Comparison, compare
from art.runs.folder import (
    JudgedRunFolder,
    RunSettings,
    StepRow,
    failures_of,
    judge_figures,
    mean_reward,
)
from art.runs.loop import EvaluationLog, ScoredGroups, TrainingLoop
from art.tracking.folders import model_folder, stored_name
from art.trajectories import Trajectory, TrajectoryGroup

if TYPE_CHECKING:
    from art.backend import Backend
    from art.gather import AfterEach
    from art.model import TrainableModel
    from art.rewards.reward import Reward

Task = TypeVar("Task")
TASK_METADATA = "task"
"""The key of a group's metadata with the text of its task."""
REPLACED = "scenarios/replaced"
"""The name of a step's count of the groups without a signal in whose place further tasks were rolled out."""
LEFT_OUT = "scenarios/left_out"
"""The name of a step's count of the scenarios that were not drawn because they are settled."""


class TaskRollouts(ABC, Generic[Task]):
    """Makes the rollouts of one model. A kind of run says what a task, a rollout and its figures are."""

    def __init__(self, model: TrainableModel[Any, Any], settings: RunSettings) -> None:
        self.model, self.limits = model, settings
        self._slots = asyncio.Semaphore(settings.concurrency)

    @abstractmethod
    async def rollout(self, task: Task, *, seed: int | None) -> Trajectory:
        """One rollout. Raises what makes it a failed one, which says nothing about the model."""

    @abstractmethod
    def text_of(self, task: Task) -> str:
        """Returns the text that identifies the task."""

    @abstractmethod
    def figures_of(self, trajectory: Trajectory) -> Mapping[str, float]:
        """Returns the figures of a rollout that need no judge; always the same names."""

    def metadata_of(self, task: Task) -> dict[str, float | int | str | bool | None]:
        """Returns the metadata of a task's groups, beside its text."""
        return {}

    def weight_of(self, task: Task) -> float:
        """Returns how often the task's groups count in the loss."""
        return 1.0

    async def rollout_in_slot(self, task: Task, *, seed: int | None) -> Trajectory:
        """One rollout, as soon as there is a slot."""
        async with self._slots:
            return await self.rollout(task, seed=seed)

    async def groups(
        self,
        tasks: Sequence[Task],
        size: int,
        *,
        what: str,
        seeded: bool,
        after_each: AfterEach | None = None,
        further: Sequence[Task] = (),
    ) -> list[TrajectoryGroup]:
        """`size` rollouts of each task, in their order.

        what: for the progress bar. seeded: the same call asks for the same sampling. further: tasks that
        replace those without a signal, in this order. Raises the error of the rollout that goes beyond
        `max_failed` of them, and what `after_each` raises.
        """

        def group(task: Task) -> Any:
            return TrajectoryGroup(
                [
                    self.rollout_in_slot(task, seed=self.seed(task, number) if seeded else None)
                    for number in range(size)
                ],
                metadata={TASK_METADATA: self.text_of(task), **self.metadata_of(task)},
                weight=self.weight_of(task),
            )

        share, total = self.limits.max_failed, len(tasks) + len(further)
        return await gather_trajectory_groups(
            [group(task) for task in tasks],
            pbar_desc=what,
            max_exceptions=share if further and 0 < share < 1 else round(share * total * size),
            after_each=after_each,
            refill=map(group, further) if further else None,
        )

    def seed(self, task: Task, number: int) -> int:
        """Depends on the run's seed, the task and the rollout's number, and on nothing else."""
        place = f"{self.limits.seed}/{number}/{self.text_of(task)}"
        return int.from_bytes(hashlib.sha256(place.encode()).digest()[:4]) >> 1


def runs_root(path: str | Path | None) -> Path:
    """Returns the folder of all runs and answers: None is ./.art."""
    return Path(path) if path is not None else Path.cwd() / ".art"


def model_to_train(root: Path, name: str, project: str, base_model: str) -> TrainableModel[Any, Any]:
    """The model that a run trains. Raises ConfigurationError for names that are none."""
    from art.model import TrainableModel

    model_folder(root, project, name)
    return TrainableModel(name=name, project=project, base_model=base_model, base_path=str(root))


@asynccontextmanager
async def serve_model(
    model: TrainableModel[Any, Any], backend: Backend | None, root: Path
) -> AsyncIterator[None]:
    """The model is registered; a backend of our own, under `root`, lives as long as the block.

    backend: None for the one the model is registered with already, or else one of our own.
    """
    async with AsyncExitStack() as stack:
        if backend is not None:
            await model.register(backend)
        elif model._backend is None:
            from art.client.backends.local_backend import LocalBackend

            await model.register(await stack.enter_async_context(LocalBackend(path=str(root))))
        yield


OnProgress = Callable[[str], None]
"""Is given lines about the progress."""


@dataclass(frozen=True, kw_only=True)
class TrainingRunResult:
    """The result of a run."""

    step: int
    """The newest step, which the comparison is of."""
    steps: tuple[StepRow, ...]
    comparison: Comparison
    stopped: str | None
    """Why training ended before its last step; None: it did not."""


@dataclass(frozen=True, kw_only=True)
class TrainingRun(Generic[Task]):
    """A run that reads finished parts from the folder and does the rest."""

    folder: JudgedRunFolder
    rollouts: TaskRollouts[Task]
    train: Sequence[Task]
    test: Sequence[Task]
    judge: Reward | None
    """The judge of training rollouts; None: they come with rewards, and evaluations are logged, too."""
    referee: Reward | None
    """The judge that compares before and after; None: the rewards themselves are compared."""
    measure: Measure | None
    tell: OnProgress
    sampler: ScenarioSampler[Task] | None = None
    """Draws the tasks of a step; None: each once in an epoch."""
    eval_every: int = 0
    """Steps between evaluations on the way; 0: none."""

    async def run(self) -> TrainingRunResult:
        """All of it. A spent budget ends the training, and leaves before and after without a judge.

        Raises ConfigurationError where the model has been trained by somebody else, and what rollouts, judges
        and the backend raise.
        """
        await self._evaluate(0)
        stopped = None
        try:
            await self._train()
        except BudgetExceededError as error:
            stopped = str(error)
            self.tell(f"training ends here: {error}")
        step = await self.rollouts.model.get_step()
        await self._evaluate(step)
        return TrainingRunResult(
            step=step,
            steps=tuple(self.folder.steps()),
            comparison=await self._compare(step),
            stopped=stopped,
        )

    async def _evaluate(self, step: int) -> None:
        """Rollouts of the test tasks by the adapter of `step`, the newest; once."""
        if self.folder.evaluation(step) is not None:
            return
        model = self.rollouts.model
        if await model.get_step() != step:
            raise ConfigurationError(
                f"{model.project}/{stored_name(model)} has been trained already, but "
                f"{str(self.folder.path)!r} has no rollouts of before: give this run another name"
            )
        size = self.rollouts.limits.eval_group_size
        groups = await self.rollouts.groups(self.test, size, what=f"evaluating step {step}", seeded=True)
        if self.judge is None:
            await EvaluationLog(model).add(step, groups)
        made = {group.metadata[TASK_METADATA]: group.trajectories for group in groups}
        self.folder.save_evaluation(step, [made.get(self.rollouts.text_of(task), []) for task in self.test])

    async def _train(self) -> None:
        limits, total = self.rollouts.limits, self.rollouts.limits.total_steps(len(self.train))
        loop = TrainingLoop(self.rollouts.model, self.folder)
        if (row := await loop.recover()) is not None:
            self.tell(f"step {row.step} was committed when the run was interrupted: {step_summary(row)}")
        done = await self.rollouts.model.get_step()
        self._tell_plan(total - done)
        for known in self.folder.steps():
            self._note(known)
        legs = self.folder.schedule(total, done=done)

        def on_step(row: StepRow) -> None:
            self._note(row)
            self.tell(f"step {row.step}/{total}: {step_summary(row)}")

        for end in [*self._evaluated_between(done, total), total]:
            await loop.run(end, lambda step: self._roll_out(step, total, limits.rate_at(step, legs)), on_step)
            if end < total:
                await self._evaluate(end)

    def _tell_plan(self, steps: int) -> None:
        limits = self.rollouts.limits
        if steps <= 0:
            return
        plan = f"{steps} steps of {limits.groups_per_step} x {limits.group_size} rollouts"
        if self.judge is not None:
            groups = steps * limits.groups_per_step
            plan += f"; the judge is asked about {groups} groups, then {len(self.test)} to compare"
        self.tell(plan)

    def _evaluated_between(self, done: int, total: int) -> list[int]:
        """The steps on the way that are evaluated, from `done` on."""
        every = self.eval_every
        return [step for step in range(every, total, every) if step >= done] if every else []

    def _note(self, row: StepRow) -> None:
        """Tells the sampler of a step: what is drawn next follows from the rows alone."""
        if self.sampler is not None:
            self.sampler.note_outcomes(row.outcomes)

    def _tasks_of(self, step: int) -> tuple[Sequence[Task], Sequence[Task], dict[str, float]]:
        """Returns the tasks of `step` (from 0), those that may replace them, and figures of how they were
        drawn. All follow from the seed and the rows of the steps before.
        """
        limits, sampler, count = self.rollouts.limits, self.sampler, self.rollouts.limits.groups_per_step
        if sampler is None:
            tasks = tasks_of_step(self.train, step, count, limits.seed)
            order = random.Random(f"refill/{limits.seed}/{step}").sample(self.train, len(self.train))
            return tasks, [task for task in order if task not in tasks][: limits.max_refills], {}
        left_out = sampler.left_out(step, count)
        counts = {**sampler.figures(), LEFT_OUT: float(len(left_out))}
        drawn = sampler.draw(step, count + limits.max_refills)
        return drawn[:count], drawn[count:], counts

    async def _roll_out(self, step: int, total: int, rate: float) -> ScoredGroups[StepRow]:
        """Rollouts and their scores."""
        limits, begin = self.rollouts.limits, time.monotonic()
        tasks, further, counts = self._tasks_of(step)
        groups = await self.rollouts.groups(
            tasks,
            limits.group_size,
            what=f"step {step + 1}/{total}",
            seeded=False,
            after_each=None if self.judge is None else self.judge.score_group,
            further=further,
        )
        replaced = [one for group in groups for one in group._replaced]
        counts |= {REPLACED: float(len(replaced))} if further else {}
        seconds = time.monotonic() - begin
        flat = [one for group in groups for one in group]
        reward, unscored = mean_reward(groups)
        row = StepRow(
            step=step + 1,
            reward=reward,
            rollouts=len(flat),
            failed=sum(len(group.exceptions) for group in groups),
            unscored=unscored,
            trained=None,
            learning_rate=rate,
            seconds_rollouts=round(seconds, 3),
            seconds_training=None,
            figures=await mean_figures(flat, self.rollouts.figures_of, self.measure),
            judge=judge_figures(groups),
            failures=failures_of(groups),
            counts=counts,
            outcomes=[] if self.sampler is None else outcomes_of([*replaced, *groups]),
        )
        return ScoredGroups(groups=groups, row=row, learning_rate=rate)

    async def _compare(self, step: int) -> Comparison:
        async def judged_by(referee: Reward | None, *, rewarded: bool) -> Comparison:
            return await compare(
                [self.rollouts.text_of(task) for task in self.test],
                self.folder.evaluation(0) or [],
                self.folder.evaluation(step) or [],
                per_task=self.rollouts.limits.eval_group_size,
                judge=referee,
                rewarded=rewarded,
                figures=self.rollouts.figures_of,
                measure=self.measure,
            )

        try:
            return await judged_by(self.referee, rewarded=self.referee is None)
        except BudgetExceededError as error:
            self.tell(f"before and after are not judged: {error}")
            return await judged_by(None, rewarded=False)


def step_summary(row: StepRow) -> str:
    """One step, in a line."""
    reward = "no scores" if row.reward is None else f"reward {row.reward:.3f}"
    figures = ", ".join([reward, *(f"{name} {value:.2f}" for name, value in row.figures.items())])
    trained = "not known how many" if row.trained is None else row.trained
    left_out = row.counts.get(LEFT_OUT)
    skipped = f"; {left_out:.0f} scenarios without reward variance skipped" if left_out else ""
    replaced = row.counts.get(REPLACED)
    others = f"; {replaced:.0f} groups without reward variance replaced" if replaced else ""
    return f"{figures}; {trained} of {row.rollouts} trained{skipped}{others}"


def tasks_of_step(train: Sequence[Task], step: int, count: int, seed: int) -> list[Task]:
    """Returns the tasks of `step` (from 0): every epoch is its own permutation, and depends only on
    the seed.
    """
    chosen = []
    for place in range(step * count, (step + 1) * count):
        epoch, index = divmod(place, len(train))
        order = list(range(len(train)))
        random.Random(f"order/{seed}/{epoch}").shuffle(order)
        chosen.append(train[order[index]])
    return chosen
