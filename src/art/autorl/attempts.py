"""Rollouts of a run: all with the same limits, a few at a time."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from art.autorl.rollout import rollout
from art.autorl.settings import AutoRLSettings
from art.gather import gather_trajectory_groups
from art.trajectories import Trajectory, TrajectoryGroup

if TYPE_CHECKING:
    from art.gather import AfterEach
    from art.model import TrainableModel


@dataclass(kw_only=True)
class Attempts:
    """Makes the rollouts of one model."""

    model: TrainableModel[Any, Any]
    settings: AutoRLSettings
    system_prompt: str

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.settings.concurrency)

    async def one(self, text: str, *, seed: int | None) -> Trajectory:
        """One rollout, as soon as there is a slot."""
        async with self._slots:
            return await rollout(
                self.model,
                text,
                system_prompt=self.system_prompt,
                max_tokens=self.settings.max_tokens,
                temperature=self.settings.temperature,
                timeout=self.settings.timeout,
                seed=seed,
            )

    async def groups(
        self,
        texts: Sequence[str],
        size: int,
        *,
        what: str,
        seeded: bool,
        after_each: AfterEach | None = None,
    ) -> list[TrajectoryGroup]:
        """`size` attempts at each input, in their order.

        seeded: the same call asks for the same sampling. Raises the error of the rollout that goes beyond
        `max_failed` of them.
        """
        return await gather_trajectory_groups(
            [
                TrajectoryGroup(
                    [
                        self.one(text, seed=self._seed(text, number) if seeded else None)
                        for number in range(size)
                    ],
                    metadata={"input": text},
                )
                for text in texts
            ],
            pbar_desc=what,
            max_exceptions=round(self.settings.max_failed * len(texts) * size),
            after_each=after_each,
        )

    def _seed(self, text: str, number: int) -> int:
        """Depends on the run's seed, the input and the attempt's number, and on nothing else."""
        digest = hashlib.sha256(f"{self.settings.seed}/{number}/{text}".encode()).digest()
        return int.from_bytes(digest[:4], "big") >> 1
