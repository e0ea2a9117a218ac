"""How a run of MCP-RL goes: saved with the run, and held against it when it is resumed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from art.errors import ConfigurationError
from art.mcp.near_duplicates import SIMILARITY
from art.spelling import did_you_mean


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """Everything that can be chosen about a run except who takes part: server, models, judge."""

    num_train: int = 16
    """Scenarios to train on."""
    num_test: int = 8
    """Scenarios held out, for the comparison of before and after."""
    instructions: str | None = None
    """More for the generator to pay attention to."""
    similarity: float = SIMILARITY
    """From which likeness (0 to 1) two tasks are one."""
    difficulty_attempts: int = 2
    """Attempts of the base model at each training scenario, which say how hard it is; 0: not measured."""
    steps: int | None = None
    """Training steps; None: as many as `epochs` take."""
    epochs: int = 1
    groups: int = 2
    """Scenarios a step."""
    group_size: int = 4
    """Attempts at each."""
    learning_rate: float = 1e-5
    """At its height."""
    warmup_steps: int = 0
    final_share: float = 1.0
    """Share of the learning rate that is left at the last step; it falls linearly."""
    rubric: str | None = None
    """What the judge goes by; None: RULER's own. Only for a judge given by name."""
    system_prompt: str | None = None
    """Of the agent; None: the rollout's own."""
    allow_writes: tuple[str, ...] | Literal[True] = ()
    """Tools that may change something and may be called all the same; True: all."""
    max_turns: int = 10
    deadline: float = 300.0
    """Seconds a rollout may take."""
    call_timeout: float = 60.0
    """Seconds a tool call may take."""
    result_limit: int = 8000
    """Characters of a tool's result that the agent sees."""
    max_tokens: int | None = None
    """Of one completion."""
    temperature: float = 1.0
    test_attempts: int = 2
    """Attempts at each test scenario, before and after, with the same seeds."""
    concurrency: int = 16
    """Rollouts at once; each has its own session with the server."""
    max_failed: float = 0.5
    """Share of a step's rollouts that may fail (server gone, no connection) before the run stops."""
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.allow_writes, str):
            raise ConfigurationError(f"allow_writes={self.allow_writes!r}: give a list of tools, or True")
        at_least = {
            **dict.fromkeys(("num_train", "num_test", "epochs", "groups", "test_attempts", "concurrency"), 1),
            **{"group_size": 2, "max_turns": 1, "result_limit": 1, "difficulty_attempts": 0, "steps": 0},
        }
        for name, least in at_least.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigurationError(f"{name}={value!r} must be at least {least}")
        if not (0.0 <= self.max_failed <= 1.0 and 0.0 <= self.final_share <= 1.0):
            raise ConfigurationError(
                f"max_failed={self.max_failed!r} and final_share={self.final_share!r} are shares, 0 to 1"
            )

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> TrainSettings:
        """Of keywords. Raises ConfigurationError for an unknown one, with the known."""
        known = [field.name for field in fields(cls)]
        for name in options:
            if name not in known:
                hint = did_you_mean(name, known)
                raise ConfigurationError(
                    f"{name}={options[name]!r} is no option of art.mcp.train{hint and f', {hint}'}; known: "
                    f"{', '.join(known)}"
                )
        writes = options.get("allow_writes") or ()
        # A list in JSON, and as most people write it.
        return cls(**{**options, "allow_writes": tuple(writes) if isinstance(writes, list) else writes})

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    def total_steps(self, num_train: int) -> int:
        """Steps of the run with so many training scenarios."""
        if self.steps is not None:
            return self.steps
        return math.ceil(self.epochs * num_train / self.groups)

    def rate_at(self, step: int, steps: int) -> float:
        """The learning rate of `step` (from 0) of `steps`: a linear rise in a linear fall."""
        rise = min(1.0, (step + 1) / (self.warmup_steps + 1))
        return self.learning_rate * rise * (1.0 - (1.0 - self.final_share) * step / max(1, steps))

    def resumed(self, saved: TrainSettings) -> TrainSettings:
        """These settings, going on with a run of `saved`.

        steps, epochs, concurrency, deadlines and max_failed may change. Raises ConfigurationError for others.
        """
        free = {"steps", "epochs", "concurrency", "max_failed", "deadline", "call_timeout"}
        same = replace(saved, **{name: getattr(self, name) for name in free})
        for field in fields(self):
            mine, was = getattr(self, field.name), getattr(same, field.name)
            if mine != was:
                raise ConfigurationError(
                    f"{field.name}={mine!r}, but the run was started with {was!r}: leave it as it was, or "
                    "give the run another name"
                )
        return self
