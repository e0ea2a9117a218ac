"""What the trainer takes from the queue: groups to train, and others with the reason why not."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from art.tracking.rollout_figures import scores
from art.trajectories import TrajectoryGroup
from art_extensions.pipeline.pipeline_state import ScenarioOutcome
from art_extensions.pipeline.rollout_workers import FinishedGroup
from art_extensions.pipeline.settings import HasSignal, PipelineOptions, collapse_after, most_groups

_log = logging.getLogger("art.runs.pipeline")  # below `art`, so that `show_log` shows its lines


@dataclass(kw_only=True)
class CollectedGroups:
    """The groups of one training step."""

    groups: list[FinishedGroup] = field(default_factory=list)
    """To be trained."""
    set_aside: dict[ScenarioOutcome, list[FinishedGroup]] = field(default_factory=dict)
    """The groups that are not trained, by what became of them."""
    ended: bool = False
    """No more groups come."""

    def untrained(self, outcome: ScenarioOutcome) -> list[TrajectoryGroup]:
        return [one.group for one in self.set_aside.get(outcome, [])]

    def steps_off_policy(self, step: int) -> float:
        """Mean over the groups to be trained: how many steps before `step` they were begun."""
        ages = [step - one.version for one in self.groups]
        return sum(ages) / len(ages) if ages else 0.0

    def take_oldest(self, step: int, limit: float) -> list[FinishedGroup]:
        """Sets the oldest groups aside until `steps_off_policy` is at most `limit`; returns them."""
        taken: list[FinishedGroup] = []
        while self.steps_off_policy(step) > limit:
            taken.append(min(self.groups, key=lambda one: one.version))
            self.groups.remove(taken[-1])
        self.set_aside.setdefault("stale", []).extend(taken)
        return taken


def group_fate(
    finished: FinishedGroup, *, oldest: float, has_signal: HasSignal | None
) -> ScenarioOutcome | None:
    """Returns why a group is not trained, or None. oldest: the earliest step that it may have been
    begun at.
    """
    if not finished.group.trajectories:
        return "failed"
    if finished.version < oldest:
        return "stale"
    if has_signal is not None and not has_signal(finished.group):
        return "discarded"
    return None


HIGH = 0.9
"""The share of the range of a run's rewards from which on a reward is high."""


@dataclass(kw_only=True)
class SeenRewards:
    """The rewards that tell a solved task from a collapsed model: both give groups of equal rewards, one
    after another, but those of a solved task are high.
    """

    lowest: float = math.inf
    highest: float = -math.inf
    useless: list[float] = field(default_factory=list)
    """Mean rewards of the groups in a row that taught nothing."""

    def add(self, rewards: Sequence[float], *, useless: bool) -> None:
        """The finite rewards of one group."""
        self.lowest, self.highest = min([self.lowest, *rewards]), max([self.highest, *rewards])
        if not useless:
            self.useless = []
        elif rewards:
            self.useless.append(sum(rewards) / len(rewards))

    @property
    def mean(self) -> float | None:
        """The mean of the consecutive groups without a gradient."""
        return sum(self.useless) / len(self.useless) if self.useless else None

    @property
    def is_high(self) -> bool:
        """Returns whether that mean is among the best of the run. Where the run has seen one reward alone,
        whether it is above 0.

        >>> seen = SeenRewards()
        >>> seen.add([0.0, 1.0], useless=False)
        >>> seen.add([1.0, 1.0], useless=True); seen.is_high
        True
        >>> seen.add([0.5, 0.5], useless=True); seen.is_high
        False
        """
        if self.mean is None:
            return False
        if self.highest == self.lowest:
            return self.highest > 0
        return self.mean >= self.lowest + HIGH * (self.highest - self.lowest)


class BatchCollector:
    """Takes groups from the queue until there are enough for a step."""

    def __init__(
        self,
        queue: asyncio.Queue[FinishedGroup | None],
        settings: PipelineOptions,
        *,
        has_signal: HasSignal | None,
        on_group: Callable[[FinishedGroup, ScenarioOutcome | None], None],
    ) -> None:
        """has_signal: see `check_training`. on_group: called with each group and its outcome (None: it will
        be trained).
        """
        self._queue, self._settings, self._has_signal, self._on_group = queue, settings, has_signal, on_group
        self.useless = 0
        """Groups in a row that taught nothing: equal rewards, or all rollouts failed."""
        self.last_failure: FinishedGroup | None = None
        self._seen, self._failed = SeenRewards(), 0

    @property
    def exhausted(self) -> bool:
        """Returns whether too many groups in a row taught nothing for the run to go on."""
        return self.useless > collapse_after(self._settings)

    @property
    def is_solved(self) -> bool:
        """Returns whether they did because there is nothing left to learn: none failed, and their reward is
        high.
        """
        return self.exhausted and not self._failed and self._seen.is_high

    async def collect(self, step: int) -> CollectedGroups:
        """Collects at least `min_batch_size` groups that can be trained at `step`, and all others that are
        ready.

        Fewer when no more come, or when too many in a row taught nothing.
        """
        batch, limit = CollectedGroups(), self._settings["limit_mean_steps_off_policy"]
        while len(batch.groups) < self._settings["min_batch_size"] and not (batch.ended or self.exhausted):
            self._sort(await self._queue.get(), batch, step)
            while len(batch.groups) < most_groups(self._settings) and not (
                batch.ended or self.exhausted or self._queue.empty()
            ):
                self._sort(self._queue.get_nowait(), batch, step)
            full = len(batch.groups) >= self._settings["min_batch_size"]
            if limit is not None and (full or batch.ended or self.exhausted):
                for finished in batch.take_oldest(step, limit):
                    self._on_group(finished, "stale")
        return batch

    def tell_end(self, name: str, step: int) -> None:
        """Logs why the run of a model ends at this step."""
        if self.is_solved:
            _log.warning(
                "NOTHING LEFT TO LEARN: %d groups in a row had equal rewards, %.3g on average where the run "
                "had %.3g to %.3g, more than discard_queue_multiplier x min_batch_size = %d; the run of "
                "%s ends at step %d. Give it harder scenarios to go on",
                self.useless,
                self._seen.mean,
                self._seen.lowest,
                self._seen.highest,
                collapse_after(self._settings),
                name,
                step,
            )
            return
        errors = [] if self.last_failure is None else self.last_failure.group.exceptions
        _log.error(
            "MODEL COLLAPSE DETECTED: %d groups in a row had equal rewards or failed, more than "
            "discard_queue_multiplier x min_batch_size = %d; the run of %s ends at step %d%s",
            self.useless,
            collapse_after(self._settings),
            name,
            step,
            f"; the last one failed: {errors[0].type} {errors[0].message}" if errors else "",
        )

    def drain(self) -> Sequence[FinishedGroup]:
        """Returns the groups that are still in the queue."""
        items = [self._queue.get_nowait() for _ in range(self._queue.qsize())]
        return [item for item in items if item is not None]

    def _sort(self, finished: FinishedGroup | None, batch: CollectedGroups, step: int) -> None:
        if finished is None:
            batch.ended = True
            return
        limit = self._settings["max_steps_off_policy"]
        oldest = -math.inf if limit is None else step - limit
        fate = group_fate(finished, oldest=oldest, has_signal=self._has_signal)
        self._on_group(finished, fate)
        if fate is None:
            batch.groups.append(finished)
        else:
            batch.set_aside.setdefault(fate, []).append(finished)
        if fate in ("discarded", "failed"):
            self.useless += 1
            self._failed += fate == "failed"
            self.last_failure = finished if fate == "failed" else None
        elif fate is None:
            self.useless, self.last_failure, self._failed = 0, None, 0
        if fate != "stale":
            self._seen.add(scores(finished.group), useless=fate is not None)
