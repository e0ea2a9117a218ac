"""The state of a pipeline run: the outcome of every scenario, and how far rollouts may run ahead.

A scenario is known by its number in the stream, from 0. It is *settled* when its group was trained,
discarded (equal rewards), stale, or failed as a whole. What is not settled is taken again by the next run.

Before a training job is asked for, its scenarios and its id are written down; when its step is made and
logged, that they were trained. Between the two only the server knows what happened, and a resumed run asks
it by the job's id.

`RolloutPace`: a group that starts now is trained when the groups before it are. The `groups_ahead`,
started and not taken by the trainer, make `groups_ahead // batch` steps, and one more if the trainer is
at work. Groups that would come too late are not started yet: they would be sampled only to become stale.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from art.runs.folder import StepUnderWay

ScenarioOutcome = Literal["trained", "discarded", "stale", "failed"]
SCENARIO_OUTCOMES: tuple[ScenarioOutcome, ...] = ("trained", "discarded", "stale", "failed")

STATE_KEY = "_pipeline_trainer"
"""The entry of the model's state."""


@dataclass(kw_only=True)
class PipelineState:
    """The outcomes of the scenarios."""

    first_step: int = 0
    """Where the run began."""
    training_step: int = 0
    """The newest step that the run knows of."""
    offset: int = 0
    """All scenarios before this one are settled."""
    beyond: set[int] = field(default_factory=set)
    """Settled ones after it."""
    outcomes: dict[ScenarioOutcome, int] = field(default_factory=lambda: dict.fromkeys(SCENARIO_OUTCOMES, 0))
    under_way: StepUnderWay | None = None
    """The training job that is under way; its `known` has the numbers of the `scenarios`."""
    last_eval_step: int | None = None
    completed_evals: set[int] = field(default_factory=set)
    waiting_evals: set[int] = field(default_factory=set)
    failed_evals: set[int] = field(default_factory=set)
    """Given up."""

    def is_settled(self, number: int) -> bool:
        return number < self.offset or number in self.beyond

    @property
    def settled_scenarios(self) -> int:
        """Returns how many scenarios are settled."""
        return self.offset + len(self.beyond)

    def record_outcome(self, number: int, outcome: ScenarioOutcome) -> None:
        """Records the outcome of a scenario. Raises ValueError if it had one already."""
        if self.is_settled(number):
            raise ValueError(f"scenario {number} has met an end before; now it is {outcome!r}")
        self.outcomes[outcome] += 1
        self.beyond.add(number)
        while self.offset in self.beyond:
            self.beyond.remove(self.offset)
            self.offset += 1

    def end_job(self, step: int | None) -> None:
        """The job made this step; None: it made none, and its scenarios are taken again."""
        if self.under_way is not None and step is not None:
            for number in self.under_way.known["scenarios"]:
                self.record_outcome(number, "trained")
            self.training_step = step
        self.under_way = None

    def eval_done(self, step: int) -> None:
        self.waiting_evals.discard(step)
        self.completed_evals.add(step)
        self.last_eval_step = step

    def eval_failed(self, step: int) -> None:
        self.waiting_evals.discard(step)
        self.failed_evals.add(step)

    def to_dict(self) -> dict[str, Any]:
        """Returns the state as JSON for the model's state."""
        return {
            "scenario_offset": self.offset,
            "settled_beyond_offset": sorted(self.beyond),
            "total_scenarios_consumed": self.settled_scenarios,
            "outcomes": dict(self.outcomes),
            "first_step": self.first_step,
            "training_step": self.training_step,
            "training_job": self.under_way and self.under_way.to_dict(),
            "last_eval_step": self.last_eval_step,
            "completed_eval_steps": sorted(self.completed_evals),
            "waiting_eval_steps": sorted(self.waiting_evals),
            "failed_eval_steps": sorted(self.failed_evals),
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> PipelineState:
        """Reads the output of `to_dict`; entries that an older program did not write have their defaults."""
        job, step = state.get("training_job"), int(state.get("training_step", 0))
        return cls(
            first_step=int(state.get("first_step", 0)),
            training_step=step,
            offset=int(state.get("scenario_offset", 0)),
            beyond=set(state.get("settled_beyond_offset", ())),
            outcomes={name: int(state.get("outcomes", {}).get(name, 0)) for name in SCENARIO_OUTCOMES},
            under_way=StepUnderWay.from_dict(job) if job else None,
            last_eval_step=state.get("last_eval_step"),
            completed_evals=set(state.get("completed_eval_steps", ())),
            waiting_evals=set(state.get("waiting_eval_steps", ())),
            failed_evals=set(state.get("failed_eval_steps", ())),
        )


class RolloutPace:
    """Counts groups between the stream and the trainer. One event loop owns it."""

    def __init__(self, most_under_way: Callable[[], float], *, batch: Callable[[], int]) -> None:
        """most_under_way, batch: the groups that may be begun and not trained, and those of a step, now."""
        self._most_under_way, self._batch = most_under_way, batch
        self._groups_ahead = 0
        self._busy = self._stopped = False
        self._changed = asyncio.Event()

    @property
    def groups_ahead(self) -> int:
        """Groups that were started and not taken."""
        return self._groups_ahead

    def has_room(self) -> bool:
        """Returns whether a group that starts now can be trained in time."""
        return self._groups_ahead < self._most_under_way() - self._batch() * self._busy

    async def start(self) -> bool:
        """Wait until a group may start. False: none starts any more."""
        await self.wait_until(lambda: self._stopped or self.has_room())
        self._groups_ahead += not self._stopped
        return not self._stopped

    async def wait_until(self, ready: Callable[[], bool]) -> None:
        """Waits until it is so; asks again after each change, and after `wake_workers`."""
        while not ready():
            await self._changed.wait()

    def take_groups(self, groups: int = 1) -> None:
        """The trainer has so many groups more, or they came to nothing."""
        self._groups_ahead -= groups
        self.wake_workers()

    def train(self, busy: bool) -> None:
        """The trainer is at work, or no longer."""
        self._busy = busy
        self.wake_workers()

    def stop(self) -> None:
        """No group starts any more."""
        self._stopped = True
        self.wake_workers()

    @property
    def stopped(self) -> bool:
        return self._stopped

    def wake_workers(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
