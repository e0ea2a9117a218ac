"""How a run of AutoRL goes: saved with the run, and held against it when it is resumed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from art.autorl.inputs import SIMILARITY
from art.autorl.rollout import TIMEOUT_S
from art.errors import ConfigurationError
from art.spelling import did_you_mean

MAY_CHANGE = frozenset({"epochs", "concurrency", "timeout", "max_failed"})
"""On resuming; whatever else differs would make another run of it."""


@dataclass(frozen=True, kw_only=True)
class AutoRLSettings:
    """Everything that can be chosen about a run except who takes part: models, judge, generator."""

    num_train: int = 25
    """Inputs to train on."""
    num_test: int = 5
    """Inputs held out, for the comparison of before and after."""
    group_size: int = 4
    """Attempts at each input of a step."""
    groups_per_step: int = 2
    """Inputs of a step."""
    epochs: int = 3
    """Passes over the training inputs."""
    learning_rate: float = 1e-5
    """At its height."""
    warmup_steps: int = 0
    final_share: float = 1.0
    """Share of the learning rate that is left at the last step; it falls linearly."""
    max_tokens: int | None = 1024
    """Of one answer."""
    temperature: float = 1.0
    test_attempts: int = 4
    """Attempts at each test input, before and after, with the same seeds."""
    similarity: float = SIMILARITY
    """From which likeness (0 to 1) two inputs are one."""
    concurrency: int = 16
    """Rollouts at once."""
    timeout: float = TIMEOUT_S
    """Seconds an answer may take."""
    max_failed: float = 0.5
    """Share of a step's rollouts that may fail before the run stops."""
    seed: int = 0

    def __post_init__(self) -> None:
        names = (
            "num_train",
            "num_test",
            "groups_per_step",
            "epochs",
            "test_attempts",
            "concurrency",
            "max_tokens",
        )
        for name, least in {**dict.fromkeys(names, 1), "group_size": 2, "warmup_steps": 0}.items():
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not value >= least):
                raise ConfigurationError(f"{name}={value!r} must be at least {least}")
        for name in ("max_failed", "final_share", "similarity"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigurationError(f"{name}={getattr(self, name)!r} is a share, 0 to 1")
        for name in ("learning_rate", "timeout"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise ConfigurationError(f"{name}={getattr(self, name)!r} must be above 0")

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> AutoRLSettings:
        """Of keywords. Raises ConfigurationError for an unknown one, with the known."""
        known = [field.name for field in fields(cls)]
        for name in options:
            if name not in known:
                hint = did_you_mean(name, known)
                raise ConfigurationError(
                    f"{name}={options[name]!r} is no option of art.autorl.train{hint and f', {hint}'}; "
                    f"known: {', '.join(known)}"
                )
        return cls(**options)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def total_steps(self, num_train: int) -> int:
        """Steps of the run with so many training inputs."""
        return self.epochs * math.ceil(num_train / self.groups_per_step)

    def rate_at(self, step: int, steps: int) -> float:
        """The learning rate of `step` (from 0) of `steps`: a linear rise in a linear fall."""
        rise = min(1.0, (step + 1) / (self.warmup_steps + 1))
        return self.learning_rate * rise * (1.0 - (1.0 - self.final_share) * step / max(1, steps))

    def check_resumes(self, saved: AutoRLSettings) -> None:
        """Raises ConfigurationError where these settings are not those that the run began with."""
        for name, was in saved.to_dict().items():
            mine = getattr(self, name)
            if mine != was and name not in MAY_CHANGE:
                raise ConfigurationError(
                    f"{name}={mine!r}, but the run was started with {was!r}: leave it as it was, or give the "
                    "run another name"
                )
