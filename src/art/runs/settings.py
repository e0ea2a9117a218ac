"""How a run goes: saved with the run, and held against it when it is resumed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Self

from art.errors import ConfigurationError
from art.schedule import Leg, share_at
from art.spelling import did_you_mean


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What can be chosen about every run. A kind of run adds its own, and may have other defaults."""

    ENTRY: ClassVar[str]
    """The function that takes them, for error messages."""
    AT_LEAST: ClassVar[Mapping[str, int]] = {
        **dict.fromkeys(("num_train", "num_test", "groups_per_step", "epochs"), 1),
        **{"test_attempts": 1, "concurrency": 1, "max_tokens": 1},
        **{"group_size": 2, "warmup_steps": 0, "steps": 0},
    }
    SHARES: ClassVar[tuple[str, ...]] = ("max_failed", "final_share", "similarity")
    POSITIVE: ClassVar[tuple[str, ...]] = ("learning_rate",)
    MAY_CHANGE: ClassVar[frozenset[str]] = frozenset({"steps", "epochs", "concurrency", "max_failed"})
    """On resuming; whatever else differs would make another run of it."""

    num_train: int
    """Tasks to train on."""
    num_test: int
    """Tasks held out, for the comparison of before and after."""
    similarity: float
    """From which likeness (0 to 1) two tasks are one."""
    group_size: int = 4
    """Attempts at each task of a step."""
    groups_per_step: int = 2
    """Tasks of a step."""
    steps: int | None = None
    """Training steps; None: as many as `epochs` take."""
    epochs: int = 1
    """Passes over the training tasks."""
    learning_rate: float = 1e-5
    """At its height."""
    warmup_steps: int = 0
    final_share: float = 1.0
    """Share of the learning rate that is left at the last step; it falls linearly."""
    max_tokens: int | None = None
    """Of one completion."""
    temperature: float = 1.0
    test_attempts: int = 2
    """Attempts at each test task, before and after, with the same seeds."""
    concurrency: int = 16
    """Rollouts at once."""
    max_failed: float = 0.5
    """Share of a step's rollouts that may fail before the run stops."""
    seed: int = 0
    """Of the split, the order and the test attempts."""

    def __post_init__(self) -> None:
        for name, least in self.AT_LEAST.items():
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not value >= least):
                raise ConfigurationError(f"{name}={value!r} must be at least {least}")
        for name in self.SHARES:
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigurationError(f"{name}={getattr(self, name)!r} is a share, 0 to 1")
        for name in self.POSITIVE:
            if not 0.0 < getattr(self, name) < math.inf:
                raise ConfigurationError(f"{name}={getattr(self, name)!r} must be above 0")

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Of keywords. Raises ConfigurationError for an unknown one, with the known."""
        known = [field.name for field in fields(cls)]
        for name in options:
            if name not in known:
                hint = did_you_mean(name, known)
                raise ConfigurationError(
                    f"{name}={options[name]!r} is no option of art.{cls.ENTRY}{hint and f', {hint}'}; "
                    f"known: {', '.join(known)}"
                )
        return cls(**options)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    def total_steps(self, num_train: int) -> int:
        """Steps of the run with so many training tasks."""
        if self.steps is not None:
            return self.steps
        return math.ceil(self.epochs * num_train / self.groups_per_step)

    def rate_at(self, step: int, legs: Sequence[Leg]) -> float:
        """The learning rate of `step` (from 0): a linear rise in a linear fall, by the schedule's legs."""
        share = share_at(step, legs, warmup_steps=self.warmup_steps, final_share=self.final_share)
        return self.learning_rate * share

    def check_resumes(self, saved: RunSettings) -> None:
        """Raises ConfigurationError where these settings are not those that the run began with."""
        for name, was in saved.to_dict().items():
            mine = getattr(self, name)
            if mine != was and name not in self.MAY_CHANGE:
                raise ConfigurationError(
                    f"{name}={mine!r}, but the run was started with {was!r}: leave it as it was, or give the "
                    "run another name"
                )
