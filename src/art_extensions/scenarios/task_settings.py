"""The settings that runs of generated tasks have in common."""

from __future__ import annotations

import math
from dataclasses import dataclass

from art.runs.folder import Count, RunSettings, Share


@dataclass(frozen=True, kw_only=True)
class TaskSettings(RunSettings):
    """The settings of a run whose tasks are generated or given, and split by it."""

    num_train: Count
    """Tasks to train on."""
    num_test: Count
    """Tasks held out, for the comparison of before and after."""
    similarity: Share
    """Similarity (0 to 1) from which two tasks count as the same."""
    epochs: Count = 1
    """Passes over the training tasks."""

    def total_steps(self, num_train: int) -> int:
        """Returns the given steps, or those of the epochs."""
        if self.steps is not None:
            return self.steps
        return math.ceil(self.epochs * num_train / self.groups_per_step)
