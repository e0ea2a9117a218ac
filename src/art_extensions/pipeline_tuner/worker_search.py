"""The rule of the tuner: which number of workers is next, and why.

Two waits say what limits a pipeline. While the trainer waits for groups, more workers may help; while workers
wait for the trainer, fewer are enough. Whether more workers do help (the engine may be saturated) is tried:

    a try of more workers is kept if it gives more than half of the throughput that their number promises
    what was not worth it is a ceiling, what was is a floor; between the two the search ends

Each try raises the floor or lowers the ceiling, so the number of workers cannot swing for ever. Rollouts
change as the policy does: after 16 windows at rest, then 32, 64 ..., floor and ceiling are forgotten, and the
same tries are made again.

Example, an engine that is saturated by 8 rollouts: 16 -> 18 gains nothing (ceiling 16), 14, 12, 10 and 8 lose
nothing (ceiling 8), 6 is a quarter slower (floor 8). It stays at 8.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from art_extensions.pipeline_tuner.config import PipelineAutotuneConfig
from art_extensions.pipeline_tuner.measurement import ROUNDING, Measurement, StepFigures, is_worth_it

WAIT_SHARE = 0.05
"""The share of its time that the trainer may wait for groups before more workers are tried."""
FIRST_REST = 16
"""The windows at rest before floor and ceiling are forgotten for the first time."""


@dataclass(frozen=True, kw_only=True)
class WorkerChange:
    """A number of workers that is to be used from now on, and the reason."""

    workers: int
    reason: str


class WorkerSearch:
    """Is shown the figures of each step, and says when the number of workers changes."""

    def __init__(self, workers: int, config: PipelineAutotuneConfig) -> None:
        self.workers = workers
        """The number in use: `best`, or one that is tried."""
        self.best = workers
        self.floor, self.ceiling = 1, math.inf
        """Fewer were slower; more were no faster, or came too late."""
        self.measurements = {workers: Measurement(workers, config.window_steps)}
        self.ended_window = False
        """Whether the newest step was the last of a window."""
        self._left_stale: set[int] = set()
        """Numbers that were left because groups came too late."""
        self._config = config
        self._steps_here = self._groups_here = 0
        self._rest, self._rests, self._best_before_rest = FIRST_REST, 0, workers

    def add_step(self, figures: StepFigures, *, most: float = math.inf) -> WorkerChange | None:
        """Returns a change, if this step ends a window that asks for one. most: more workers would have
        nothing to do.

        The first steps after a change are not measured: until the warm-up is over and each worker has had
        the time for a group, their groups are those of the number before.
        """
        here, starting = self.measurements[self.workers], self._is_starting
        self._steps_here += 1
        self._groups_here += figures.groups + figures.stale
        self.ended_window = False
        if starting:
            return None
        here.add(figures)
        self.ended_window = here.ends_a_window
        if not self.ended_window:
            return None
        before = self.workers
        reason = self._decide(here, most)
        return WorkerChange(workers=self.workers, reason=reason) if self.workers != before else None

    @property
    def _is_starting(self) -> bool:
        ignored = self._config.warmup_ignore_steps
        return self._steps_here < ignored or (ignored > 0 and self._groups_here < self.workers)

    def _decide(self, here: Measurement, most: float) -> str:
        """Returns the reason for the number of workers that it chose."""
        if here.is_too_stale(self._config.target_spill_probability) and self.workers > 1:
            return self._take_fewer_because_stale(here)
        tried = ""
        if self.workers != self.best:
            verdict = self._judge_try(here)
            if verdict is None:
                return ""
            tried = verdict
        return self._choose_next(most) or tried

    def _take_fewer_because_stale(self, here: Measurement) -> str:
        left = self.workers
        self.best = self.best if left > self.best else self._one_step_below(left)
        self.floor = min(self.floor, self.best)
        if here.trainer_wait_share > WAIT_SHARE or left in self._left_stale:
            self.ceiling = self.best  # otherwise the queue is at fault, which fewer workers empty once
        self._left_stale.add(left)
        self._use(self.best)
        return (
            f"{here.stale_share:.0%} of the groups came too late, above "
            f"target_spill_probability = {self._config.target_spill_probability:g}"
        )

    def _judge_try(self, here: Measurement) -> str | None:
        """Ends a try and returns its result, or None while that is not certain."""
        fewer, more = sorted((self.workers, self.best))
        worth = is_worth_it(
            self.measurements[fewer],
            self.measurements[more],
            growth=more / fewer - 1,
            last=here.is_full,
        )
        if worth is None:
            return None
        gain = _gain(self.measurements[fewer], self.measurements[more])
        if worth:
            self.best = self.floor = more
        else:
            self.best = self.ceiling = fewer
            self.floor = 1  # what a try of more workers has shown is tried once again from above
        self._use(self.best)
        return f"{more} workers train {gain:+.0%} groups a second, compared with {fewer}"

    def _choose_next(self, most: float) -> str:
        """Uses another number, where the measurements of the best one ask for it; returns why."""
        known, step = self.measurements[self.best], self._config.worker_step
        waits = known.trainer_wait_share > WAIT_SHARE
        spare = int(known.idle_share * self.best / step + ROUNDING) * step
        if self.best > most >= 1:
            self.best, self.floor = int(most), min(self.floor, int(most))
            self._use(self.best)
            return "more groups would be stale before they are trained"
        if waits and (more := int(min(self.best + step, self.ceiling, most))) > self.best:
            self._use(more, anew=True)
            return f"the trainer waited for groups {known.trainer_wait_share:.0%} of the time"
        if not waits and spare and max(self.best - spare, self.floor) < self.best:
            idle = known.idle_share * self.best
            self.best = max(self.best - spare, self.floor)
            self._use(self.best, anew=True)
            return f"{idle:.1f} workers waited for the trainer"
        if waits and (fewer := max(self._one_step_below(self.best), self.floor)) < self.best:
            self._use(fewer, anew=True)
            return "more workers were no faster: fewer may be as fast"
        self._use(self.best)
        self._rest_here()
        return ""

    def _one_step_below(self, workers: int) -> int:
        return max(1, workers - self._config.worker_step)

    def _rest_here(self) -> None:
        """Counts a window in which floor and ceiling hold the number where it is, and forgets both in time:
        sooner if the last time has led to another number.
        """
        if self.floor == 1 and self.ceiling == math.inf:
            return
        self._rests += 1
        if self._rests >= self._rest:
            self._rest = 2 * self._rest if self.best == self._best_before_rest else FIRST_REST
            self._rests, self._best_before_rest = 0, self.best
            self.floor, self.ceiling = 1, math.inf
            self._left_stale.clear()

    def _use(self, workers: int, *, anew: bool = False) -> None:
        """Goes to a number of workers. anew: what was measured there is forgotten."""
        if workers != self.workers:
            self._steps_here = self._groups_here = 0
        self.workers = workers
        if anew or workers not in self.measurements:
            self.measurements[workers] = Measurement(workers, self._config.window_steps)


def _gain(fewer: Measurement, more: Measurement) -> float:
    return more.groups_per_second / fewer.groups_per_second - 1 if fewer.groups_per_second > 0 else 0.0
