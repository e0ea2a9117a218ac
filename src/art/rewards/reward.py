"""What every reward is: scores for the trajectories of a group, by a name; sums of them with weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from art.trajectories import TrajectoryGroup
from art.types import Unscored


@dataclass(frozen=True, kw_only=True)
class Score:
    """What one trajectory got from one source, and why."""

    value: float | Unscored
    explanation: str = ""
    metrics: dict[str, float] = field(default_factory=dict)
    """What else is known: criteria by name, for instance."""


class Reward(ABC):
    """A source of rewards. Sources add up: `0.7 * Ruler() + 0.3 * form`, with weights."""

    name: str

    @abstractmethod
    async def scores(self, group: TrajectoryGroup) -> Sequence[Score]:
        """One score for each of `group.trajectories`, in their order; the group is left as it is."""
