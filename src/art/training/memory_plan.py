"""How many tokens fit into memory at once, known before the first step: `Footprint` says what they cost."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import torch

from art.process.memory import give_back_freed_memory, keep_freed_memory
from art.training.footprint import HOARDING, KEEP, MOMENTS, TWICE, Footprint, Way, weigh
from art.training.free_memory import free_memory, used_memory
from art.training.policy import Policy

LOG = logging.getLogger(__name__)

Checkpointing = Literal["auto", "on", "off"]

LARGEST = {"cpu": 8192, "cuda": 32768}
"""The token budget where memory is no concern: larger ones were not faster."""
SMALLEST = 1024
SHARE = 0.85
"""Of the free memory is planned with: allocators do not fill theirs to the last byte."""
MEGABYTE = 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryPlan:
    """How a step is to be computed."""

    token_budget: int
    way: Way
    needed: int
    """Bytes at the peak beside those in use."""
    free: int
    used: int

    @property
    def fits(self) -> bool:
        return self.needed <= SHARE * self.free

    @property
    def metrics(self) -> dict[str, float]:
        return {"memory/planned_mb": (self.used + self.needed) / MEGABYTE}

    def __str__(self) -> str:
        layers = "computed twice (checkpointing)" if self.way.checkpointing else "kept"
        return (
            f"{self.token_budget:,} tokens at once, activations {layers}: about "
            f"{self.needed / MEGABYTE:,.0f} MB of {self.free / MEGABYTE:,.0f} MB free, beside "
            f"{self.used / MEGABYTE:,.0f} MB in use"
        )


class MemoryPlanner:
    """Plans each step of one policy; says so in the log when the plan is another one than before."""

    def __init__(
        self, policy: Policy, *, token_budget: int | None, checkpointing: Checkpointing = "auto"
    ) -> None:
        self._policy = policy
        self._token_budget = token_budget
        self._checkpointing: Checkpointing = checkpointing
        self._weighed: dict[int, Footprint] = {}
        self._said: tuple[int, Way] | None = None

    def plan(
        self, trained: Iterable[torch.nn.Parameter], *, longest: int, stepped: bool = False
    ) -> MemoryPlan:
        """For a step whose longest path has so many tokens. Sets `policy.checkpoint_activations`.

        The model with these parameters is active; `stepped`: its moments are in memory already. The RNG is
        left as it was.
        """
        parameters = list(trained)
        size = sum(parameter.numel() for parameter in parameters)
        if size not in self._weighed:
            self._weighed[size] = weigh(self._policy, size)
        cost = self._weighed[size]
        if stepped:
            cost = replace(cost, state=cost.state - MOMENTS * size)
        made = plan_memory(
            cost,
            token_budget=self._token_budget,
            cpu=self._policy.device.type == "cpu",
            checkpointing=self._checkpointing,
            longest=longest,
            free=free_memory(self._policy.device),
            used=used_memory(self._policy.device),
        )
        if (made.token_budget, made.way) != self._said:
            self._said = made.token_budget, made.way
            if self._policy.device.type == "cpu":
                (keep_freed_memory if made.way.hoarding else give_back_freed_memory)()
            if made.fits:
                LOG.info("Memory plan: %s.", made)
            else:
                LOG.warning("Memory plan: %s. This may not fit: lower token_budget.", made)
        self._policy.checkpoint_activations = made.way.checkpointing
        return made


def plan_memory(
    footprint: Footprint,
    *,
    token_budget: int | None,
    cpu: bool,
    checkpointing: Checkpointing,
    longest: int,
    free: int,
    used: int,
) -> MemoryPlan:
    """The first of the possible ways that fits; the thriftiest if none does.

    A budget that was given stays. Otherwise it is the largest useful one, halved until it fits: powers of
    two, so that a run that is resumed on a machine a little fuller cuts its batches as before. Before layers
    are computed twice, the budget shrinks to two of the longest paths.
    """
    made: list[MemoryPlan] = []
    for way in _ways(cpu, checkpointing):
        for budget in _budgets(
            token_budget, cpu, 1 if way.checkpointing or checkpointing == "off" else 2 * longest
        ):
            # A single path longer than the budget is forwarded whole.
            needed = footprint.bytes(max(budget, longest), way)
            made.append(MemoryPlan(token_budget=budget, way=way, needed=needed, free=free, used=used))
    return next((plan for plan in made if plan.fits), made[-1])


def _ways(cpu: bool, checkpointing: Checkpointing) -> list[Way]:
    """The fast ones first."""
    keep = [] if checkpointing == "on" else [HOARDING, KEEP] if cpu else [KEEP]
    return keep + ([] if checkpointing == "off" else [TWICE])


def _budgets(given: int | None, cpu: bool, at_least: int) -> list[int]:
    """From the largest down; at least one."""
    if given is not None:
        return [given]
    largest = LARGEST["cpu" if cpu else "cuda"]
    halves = [largest >> times for times in range(largest.bit_length())]
    return [half for half in halves if half >= max(SMALLEST, at_least)] or [largest]
