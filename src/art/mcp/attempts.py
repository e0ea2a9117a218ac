"""Rollouts of a run: all with the same limits, a few at a time, each with the seed of its place."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from art.gather import gather_trajectory_groups
from art.mcp.planned import PlannedScenario
from art.mcp.rollout import rollout
from art.mcp.settings import TrainSettings
from art.trajectories import Trajectory, TrajectoryGroup

if TYPE_CHECKING:
    from art.gather import AfterEach
    from art.model import TrainableModel

SEEDS = 2**31


@dataclass(frozen=True, kw_only=True)
class Attempts:
    """Makes the rollouts of one model with one server."""

    model: TrainableModel[Any, Any]
    server: Any
    settings: TrainSettings
    slots: asyncio.Semaphore = field(repr=False)

    async def one(self, scenario: PlannedScenario, *, seed: int | None = None) -> Trajectory:
        """One rollout, as soon as there is a slot."""
        chosen = self.settings
        async with self.slots:
            return await rollout(
                self.model,
                scenario,
                self.server,
                max_turns=chosen.max_turns,
                deadline=chosen.deadline,
                call_timeout=chosen.call_timeout,
                result_limit=chosen.result_limit,
                allow_writes=chosen.allow_writes,
                system_prompt=chosen.system_prompt,
                temperature=chosen.temperature,
                max_tokens=chosen.max_tokens,
                seed=seed,
            )

    async def groups(
        self,
        scenarios: Sequence[PlannedScenario],
        size: int,
        *,
        what: str,
        seeded: bool,
        after_each: AfterEach | None = None,
    ) -> list[TrajectoryGroup]:
        """`size` attempts at each scenario, in their order.

        seeded: the same call asks for the same sampling. Raises the error of the rollout that goes beyond
        `max_failed` of them.
        """
        share = self.settings.max_failed
        allowed = round(share * len(scenarios) * size)
        return await gather_trajectory_groups(
            [
                TrajectoryGroup(
                    [
                        self.one(scenario, seed=self.seed(scenario, number) if seeded else None)
                        for number in range(size)
                    ],
                    metadata={"scenario": scenario.task, "difficulty": scenario.difficulty},
                )
                for scenario in scenarios
            ],
            pbar_desc=what,
            max_exceptions=allowed,
            after_each=after_each,
        )

    def seed(self, scenario: PlannedScenario, number: int) -> int:
        """Depends on the run's seed, the task and the attempt's number, and on nothing else."""
        place = f"{self.settings.seed}/{number}/{scenario.task}"
        return int.from_bytes(hashlib.sha256(place.encode()).digest()[:8]) % SEEDS
