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
    def trainer_takes(self) -> float:
        """The workers whose groups keep the trainer busy."""
        return self.rollout_s * self.batch / self.trainer_s

    @property
    def best(self) -> float:
        return min(self.saturated_by, self.trainer_takes)

    def figures(self, workers: int, noise: float = 0.0, chance: random.Random | None = None) -> StepFigures:
        """One step. noise: the relative standard deviation of its time."""
        wall = self.batch * self.rollout_s / min(workers, self.best)
        if chance is not None:
            wall *= max(0.1, chance.gauss(1, noise))
        # A saturated engine is slower, and keeps all workers busy.
        busy = min(workers, self.trainer_takes) if self.trainer_takes <= self.saturated_by else workers
        wait = max(0.0, wall - self.trainer_s)
        return StepFigures(
            wall_s=wall,
            trainer_wait_s=wait,
            worker_busy_s=busy * wall,
            worker_idle_s=(workers - busy) * wall,
            groups=self.batch,
            stale=1 if workers > self.stale_above else 0,
        )
