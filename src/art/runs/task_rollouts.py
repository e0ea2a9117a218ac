"""Rollouts of a run: all with the same limits, a few at a time, each with the seed of its place."""

from __future__ import annotations

import asyncio
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from art.gather import gather_trajectory_groups
from art.runs.settings import RunSettings
from art.trajectories import Trajectory, TrajectoryGroup

if TYPE_CHECKING:
    from art.gather import AfterEach
    from art.model import TrainableModel

Task = TypeVar("Task")
TASK_METADATA = "task"
"""In a group's metadata: the text of its task."""


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
    ) -> list[TrajectoryGroup]:
        """`size` rollouts of each task, in their order.

        what: for the progress bar. seeded: the same call asks for the same sampling. Raises the error of the
        rollout that goes beyond `max_failed` of them, and what `after_each` raises.
        """
        return await gather_trajectory_groups(
            [
                TrajectoryGroup(
                    [
                        self.rollout_in_slot(task, seed=self.seed(task, number) if seeded else None)
                        for number in range(size)
                    ],
                    metadata={TASK_METADATA: self.text_of(task), **self.metadata_of(task)},
                )
                for task in tasks
            ],
            pbar_desc=what,
            max_exceptions=round(self.limits.max_failed * len(tasks) * size),
            after_each=after_each,
        )

    def seed(self, task: Task, number: int) -> int:
        """Depends on the run's seed, the task and the rollout's number, and on nothing else."""
        place = f"{self.limits.seed}/{number}/{self.text_of(task)}"
        return int.from_bytes(hashlib.sha256(place.encode()).digest()[:4]) >> 1
