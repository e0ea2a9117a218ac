"""The course of a run: attempts before, training, attempts after, both compared."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic
from uuid import uuid4

from art.errors import BudgetExceededError, ConfigurationError
from art.runs.attempts import TASK, Attempts, Task
from art.runs.comparison import Comparison, compare
from art.runs.folder import RunFolder
from art.runs.intent import Intent, trained_row
from art.runs.measure import Measure, mean_figures
from art.runs.step import StepRow, failures_of, judge_figures, mean_reward
from art.schedule import Leg

if TYPE_CHECKING:
    from art.rewards.reward import Reward

Tell = Callable[[str], None]
"""Is given lines about the progress."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a course came to."""

    step: int
    """The newest step, which the comparison is of."""
    steps: tuple[StepRow, ...]
    comparison: Comparison
    stopped: str | None
    """Why training ended before its last step; None: it did not."""


@dataclass(frozen=True, kw_only=True)
class Course(Generic[Task]):
    """What is done already is read from the folder, the rest is done."""

    folder: RunFolder
    attempts: Attempts[Task]
    train: Sequence[Task]
    test: Sequence[Task]
    judge: Reward
    """Of the attempts that train."""
    referee: Reward
    """Of before and after."""
    measure: Measure | None
    tell: Tell

    async def run(self) -> Outcome:
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
        step = await self.attempts.model.get_step()
        await self._evaluate(step)
        return Outcome(
            step=step,
            steps=tuple(self.folder.steps()),
            comparison=await self._compare(step),
            stopped=stopped,
        )

    async def _evaluate(self, step: int) -> None:
        """Attempts at the test tasks by the adapter of `step`, the newest; once."""
        if self.folder.evaluation(step) is not None:
            return
        model = self.attempts.model
        if await model.get_step() != step:
            raise ConfigurationError(
                f"{model.project}/{model.name} has been trained already, but {str(self.folder.path)!r} has "
                "no attempts of before: give this run another name"
            )
        size = self.attempts.limits.test_attempts
        groups = await self.attempts.groups(self.test, size, what=f"evaluating step {step}", seeded=True)
        made = {group.metadata[TASK]: group.trajectories for group in groups}
        self.folder.save_evaluation(step, [made.get(self.attempts.text_of(task), []) for task in self.test])

    async def _train(self) -> None:
        limits, total = self.attempts.limits, self.attempts.limits.total_steps(len(self.train))
        done = await self._settled_step()
        if done < total:
            groups = (total - done) * limits.groups_per_step
            self.tell(
                f"{total - done} steps of {limits.groups_per_step} x {limits.group_size} attempts; the judge "
                f"is asked about {groups} groups, then {len(self.test)} to compare"
            )
        legs = self.folder.schedule(total, done=done)
        for step in range(done, total):
            row = await self._step(step, total, legs)
            self.folder.add_step(row)
            self.tell(f"step {row.step}/{total}: {summary(row)}")

    async def _settled_step(self) -> int:
        """The newest step, with its row: also of one that was under way when an earlier process ended."""
        intent = self.folder.step_under_way()
        row = None if intent is None else await intent.recover(self.attempts.model)
        if row is not None:
            self.folder.add_step(row)
            self.tell(f"step {row.step} was committed when the run was interrupted: {summary(row)}")
        return await self.attempts.model.get_step()

    async def _step(self, step: int, total: int, legs: Sequence[Leg]) -> StepRow:
        """Attempts, scores, gradient, new adapter."""
        limits, begin = self.attempts.limits, time.monotonic()
        groups = await self.attempts.groups(
            tasks_of_step(self.train, step, limits.groups_per_step, limits.seed),
            limits.group_size,
            what=f"step {step + 1}/{total}",
            seeded=False,
            after_each=self.judge.score_group,
        )
        gathered, rate = time.monotonic(), limits.rate_at(step, legs)
        flat = [one for group in groups for one in group]
        reward, unscored = mean_reward(groups)
        known = StepRow(
            step=step + 1,
            reward=reward,
            rollouts=len(flat),
            failed=sum(len(group.exceptions) for group in groups),
            unscored=unscored,
            trained=None,
            learning_rate=rate,
            seconds_rollouts=round(gathered - begin, 3),
            seconds_training=None,
            figures=await mean_figures(flat, self.attempts.figures_of, self.measure),
            judge=judge_figures(groups),
            failures=failures_of(groups),
        )
        intent = Intent(job_id=uuid4().hex, row=known)
        self.folder.begin_step(intent)
        model, begin = self.attempts.model, time.monotonic()
        result = await model.train(groups, learning_rate=rate, **intent.options(model))
        return replace(trained_row(known, result), seconds_training=round(time.monotonic() - begin, 3))

    async def _compare(self, step: int) -> Comparison:
        async def judged_by(referee: Reward | None) -> Comparison:
            return await compare(
                [self.attempts.text_of(task) for task in self.test],
                self.folder.evaluation(0) or [],
                self.folder.evaluation(step) or [],
                per_task=self.attempts.limits.test_attempts,
                judge=referee,
                figures=self.attempts.figures_of,
                measure=self.measure,
            )

        try:
            return await judged_by(self.referee)
        except BudgetExceededError as error:
            self.tell(f"before and after are not judged: {error}")
            return await judged_by(None)


def summary(row: StepRow) -> str:
    """One step, in a line."""
    reward = "no scores" if row.reward is None else f"reward {row.reward:.3f}"
    told = ", ".join([reward, *(f"{name} {value:.2f}" for name, value in row.figures.items())])
    trained = "not known how many" if row.trained is None else row.trained
    return f"{told}; {trained} of {row.rollouts} trained"


def tasks_of_step(train: Sequence[Task], step: int, count: int, seed: int) -> list[Task]:
    """Those of `step` (from 0): every epoch is a permutation of its own, and depends on the seed alone."""
    chosen = []
    for place in range(step * count, (step + 1) * count):
        epoch, index = divmod(place, len(train))
        order = list(range(len(train)))
        random.Random(f"order/{seed}/{epoch}").shuffle(order)
        chosen.append(train[order[index]])
    return chosen
