"""A pipeline whose best number of workers is known in closed form.

One worker needs R seconds for a group, the trainer T seconds for a batch of B groups, and the engine is
saturated by K rollouts at a time. With W workers, the groups of a second are min(W, K, R B / T) / R: more
workers than the smaller of K and R B / T gain nothing, fewer lose.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from art_extensions.pipeline_tuner.measurement import StepFigures


@dataclass(frozen=True, kw_only=True)
class ModelledPipeline:
    rollout_s: float = 8.0
    trainer_s: float = 1.0
    batch: int = 4
    saturated_by: float = 1e9
    stale_above: float = 1e9
    """The number of workers from which on every fifth group comes too late."""

    @property
    def best(self) -> float:
        return min(self.saturated_by, self.rollout_s * self.batch / self.trainer_s)

    def figures(self, workers: int, noise: float = 0.0, chance: random.Random | None = None) -> StepFigures:
        """One step. noise: the relative standard deviation of its time, and of the trainer's wait in it."""
        rate = min(workers, self.best) / self.rollout_s
        wall = self.batch / rate
        busy = min(workers, workers if workers > self.saturated_by else self.best)
        if self.rollout_s * self.batch / self.trainer_s <= self.saturated_by:
            busy = min(workers, self.best)
        wait = wall - self.trainer_s
        if chance is not None:
            wall *= max(0.1, chance.gauss(1, noise))
            wait = max(0.0, wall - self.trainer_s)
        return StepFigures(
            wall_s=wall,
            trainer_wait_s=wait,
            worker_busy_s=busy * wall,
            worker_idle_s=(workers - busy) * wall,
            groups=self.batch,
            stale=1 if workers > self.stale_above else 0,
        )
