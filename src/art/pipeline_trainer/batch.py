"""What the trainer takes from the queue: groups to train, and others with the reason why not."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from art.pipeline_trainer.books import Outcome
from art.pipeline_trainer.rollouts import Finished
from art.pipeline_trainer.settings import PipelineSettings
from art.trajectories import TrajectoryGroup
from art.types import Unscored

_log = logging.getLogger(__name__)

SAME = 1e-9
"""Rewards that differ by less than this share of the largest are the same."""


@dataclass(kw_only=True)
class StepBatch:
    """The groups of one training step."""

    groups: list[Finished] = field(default_factory=list)
    """To be trained."""
    aside: dict[Outcome, list[Finished]] = field(default_factory=dict)
    """Not to be trained, by what became of them."""
    ended: bool = False
    """No more groups come."""

    def of(self, outcome: Outcome) -> list[TrajectoryGroup]:
        return [one.group for one in self.aside.get(outcome, [])]

    def steps_off_policy(self, step: int) -> float:
        """Mean over the groups to be trained: how many steps before `step` they were begun."""
        ages = [step - one.version for one in self.groups]
        return sum(ages) / len(ages) if ages else 0.0


def fate_of(finished: Finished, *, oldest: int, needs_spread: bool) -> Outcome | None:
    """Why a group is not trained, or None. oldest: the earliest step that it may have been begun at."""
    if not finished.group.trajectories:
        return "failed"
    if finished.version < oldest:
        return "stale"
    if needs_spread and not has_spread(finished.group):
        return "discarded"
    return None


def has_spread(group: TrajectoryGroup) -> bool:
    """Whether its rewards differ, by more than rounding. Unscored rollouts say nothing."""
    rewards = [float(one.reward) for one in group if not isinstance(one.reward, Unscored)]
    if not all(map(math.isfinite, rewards)):
        return True  # the backend names the rollout
    return len(rewards) > 1 and max(rewards) - min(rewards) > SAME * max(map(abs, rewards))


class Collector:
    """Takes groups from the queue until there are enough for a step."""

    def __init__(
        self,
        queue: asyncio.Queue[Finished | None],
        settings: PipelineSettings,
        *,
        needs_spread: bool,
        taken: Callable[[Finished, Outcome | None], None],
    ) -> None:
        """taken: told of each group, and what became of it (None: it will be trained)."""
        self._queue, self._settings, self._needs_spread, self._taken = queue, settings, needs_spread, taken
        self.useless = 0
        """Groups in a row that taught nothing: equal rewards, or all rollouts failed."""
        self.last_failure: Finished | None = None

    @property
    def collapsed(self) -> bool:
        return self.useless > self._settings.collapse_after

    async def collect(self, step: int) -> StepBatch:
        """At least `min_batch_size` groups that can be trained at `step`, and what else is ready.

        Fewer when no more come, or when too many in a row taught nothing.
        """
        batch = StepBatch()
        while len(batch.groups) < self._settings.min_batch_size and not (batch.ended or self.collapsed):
            self._sort(await self._queue.get(), batch, step)
        while len(batch.groups) < self._settings.most_groups and not (
            batch.ended or self.collapsed or self._queue.empty()
        ):
            self._sort(self._queue.get_nowait(), batch, step)
        return batch

    def tell_collapse(self, name: str, step: int) -> None:
        """Say why the run of a model ends at this step."""
        errors = [] if self.last_failure is None else self.last_failure.group.exceptions
        _log.error(
            "MODEL COLLAPSE DETECTED: %d groups in a row had equal rewards or failed, more than "
            "discard_queue_multiplier x min_batch_size = %d; the run of %s ends at step %d%s",
            self.useless,
            self._settings.collapse_after,
            name,
            step,
            f"; the last one failed: {errors[0].type} {errors[0].message}" if errors else "",
        )

    def left(self) -> Sequence[Finished]:
        """What is still in the queue."""
        items = [self._queue.get_nowait() for _ in range(self._queue.qsize())]
        return [item for item in items if item is not None]

    def _sort(self, finished: Finished | None, batch: StepBatch, step: int) -> None:
        if finished is None:
            batch.ended = True
            return
        oldest = step - self._settings.max_steps_off_policy
        fate = fate_of(finished, oldest=oldest, needs_spread=self._needs_spread)
        self._taken(finished, fate)
        if fate is None:
            batch.groups.append(finished)
        else:
            batch.aside.setdefault(fate, []).append(finished)
        if fate in ("discarded", "failed"):
            self.useless += 1
            self.last_failure = finished if fate == "failed" else None
        elif fate is None:
            self.useless, self.last_failure = 0, None
