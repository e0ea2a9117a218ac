"""The state of a run: what became of every scenario, kept so that a killed run goes on exactly.

A scenario is known by its number in the stream, from 0. It is *settled* when its group was trained, discarded
(equal rewards), stale, or failed as a whole. What is not settled is taken again by the next run.

Before a training job is asked for, its scenarios and its id are written down; when its step is made and
logged, that they were trained. Between the two only the server knows what happened, and a resumed run asks it
by the job's id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Outcome = Literal["trained", "discarded", "stale", "failed"]
OUTCOMES: tuple[Outcome, ...] = ("trained", "discarded", "stale", "failed")

STATE = "_pipeline_trainer"
"""The entry of the model's state."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Intent:
    """A training job that may have been asked for."""

    job_id: str
    step: int
    """The step it starts from."""
    scenarios: Sequence[int]


@dataclass(kw_only=True)
class Books:
    """What became of the scenarios."""

    first_step: int = 0
    """Where the run began."""
    training_step: int = 0
    """The newest step that the run knows of."""
    offset: int = 0
    """All scenarios before this one are settled."""
    beyond: set[int] = field(default_factory=set)
    """Settled ones after it."""
    outcomes: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    intent: Intent | None = None
    last_eval_step: int | None = None
    completed_evals: set[int] = field(default_factory=set)
    waiting_evals: set[int] = field(default_factory=set)
    failed_evals: set[int] = field(default_factory=set)
    """Given up."""

    def is_settled(self, number: int) -> bool:
        return number < self.offset or number in self.beyond

    @property
    def settled(self) -> int:
        """How many scenarios are settled."""
        return self.offset + len(self.beyond)

    def record_outcome(self, number: int, outcome: Outcome) -> None:
        """Note the end of a scenario. Raises ValueError when it had one already."""
        if self.is_settled(number):
            raise ValueError(f"scenario {number} has met an end before; now it is {outcome!r}")
        self.outcomes[outcome] += 1
        self.beyond.add(number)
        while self.offset in self.beyond:
            self.beyond.remove(self.offset)
            self.offset += 1

    def begin_job(self, job_id: str, scenarios: Sequence[int]) -> None:
        """A training job is about to be asked for."""
        self.intent = Intent(job_id=job_id, step=self.training_step, scenarios=tuple(scenarios))

    def job_made_step(self, step: int) -> None:
        """The job made this step; it is not logged yet."""
        self.training_step = step

    def end_job(self, step: int | None) -> None:
        """The job made this step; None: it made none, and its scenarios are taken again."""
        if self.intent is not None and step is not None:
            for number in self.intent.scenarios:
                self.record_outcome(number, "trained")
            self.training_step = step
        self.intent = None

    def eval_done(self, step: int) -> None:
        self.waiting_evals.discard(step)
        self.completed_evals.add(step)
        self.last_eval_step = step

    def eval_failed(self, step: int) -> None:
        self.waiting_evals.discard(step)
        self.failed_evals.add(step)

    def to_dict(self) -> dict[str, Any]:
        """As JSON for the model's state."""
        intent = self.intent
        return {
            "scenario_offset": self.offset,
            "settled_beyond_offset": sorted(self.beyond),
            "total_scenarios_consumed": self.settled,
            "outcomes": dict(self.outcomes),
            "first_step": self.first_step,
            "training_step": self.training_step,
            "training_job": intent
            and {"job_id": intent.job_id, "step": intent.step, "scenarios": list(intent.scenarios)},
            "last_eval_step": self.last_eval_step,
            "completed_eval_steps": sorted(self.completed_evals),
            "waiting_eval_steps": sorted(self.waiting_evals),
            "failed_eval_steps": sorted(self.failed_evals),
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Books:
        """What `to_dict` wrote; entries that an older program did not write have their defaults."""
        job, step = state.get("training_job"), int(state.get("training_step", 0))
        return cls(
            first_step=int(state.get("first_step", 0)),
            training_step=step,
            offset=int(state.get("scenario_offset", 0)),
            beyond=set(state.get("settled_beyond_offset", ())),
            outcomes={name: int(state.get("outcomes", {}).get(name, 0)) for name in OUTCOMES},
            intent=Intent(**job) if job else None,
            last_eval_step=state.get("last_eval_step"),
            completed_evals=set(state.get("completed_eval_steps", ())),
            waiting_evals=set(state.get("waiting_eval_steps", ())),
            failed_evals=set(state.get("failed_eval_steps", ())),
        )
