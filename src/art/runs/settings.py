"""How a run goes: saved with the run, and held against it when it is resumed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any, ClassVar, Self

from art.backend import Keyword
from art.client.declared_options import DeclaredOption, declared_options
from art.client.learning_rates import Leg, share_at
from art.errors import ConfigurationError, did_you_mean

Count = Annotated[int, Keyword(least=1)]
Share = Annotated[float, Keyword(least=0, most=1)]
AboveZero = Annotated[float, Keyword(above=0)]


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """The settings of every run. A kind of run adds its own, and may have other defaults.

    This is the only declaration of a setting: its check and its option on the command line are made of its
    type, its default and the text below it.
    """

    ENTRY: ClassVar[str]
    """The function that takes them, for error messages."""
    MAY_CHANGE: ClassVar[frozenset[str]] = frozenset({"steps", "epochs", "concurrency", "max_failed"})
    """On resuming; whatever else differs would make another run of it."""

    num_train: Count
    """Tasks to train on."""
    num_test: Count
    """Tasks held out, for the comparison of before and after."""
    similarity: Share
    """Similarity (0 to 1) from which two tasks count as the same."""
    group_size: Annotated[int, Keyword(least=2)] = 4
    """Rollouts per task of a step."""
    groups_per_step: Count = 2
    """Tasks per step."""
    steps: Annotated[int | None, Keyword(least=0)] = None
    """Training steps. Default: as many as the epochs take."""
    epochs: Count = 1
    """Passes over the training tasks."""
    learning_rate: AboveZero = 1e-5
    """Learning rate of the adapter after warm-up."""
    warmup_steps: Annotated[int, Keyword(least=0)] = 0
    """Steps of learning-rate warm-up."""
    final_share: Share = 1.0
    """Fraction of the learning rate that is left at the last step, after linear decay."""
    max_tokens: Annotated[int | None, Keyword(least=1)] = None
    """The most tokens of one completion."""
    temperature: Annotated[float, Keyword(least=0)] = 1.0
    """Sampling temperature of rollouts."""
    test_attempts: Count = 2
    """Rollouts of each test task, before and after, with the same seeds."""
    concurrency: Count = 16
    """Concurrent rollouts."""
    max_failed: Share = 0.5
    """Share of a step's rollouts that may fail before the run stops."""
    seed: int = 0
    """Seed of the split, the order and the test rollouts."""

    def __post_init__(self) -> None:
        for name, declared in declared_options(type(self)).items():
            value = getattr(self, name)
            if not declared.fits(value):
                raise ConfigurationError(f"{name}={value!r} {_demand(declared, value)}")

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """Builds the settings from keywords. Raises ConfigurationError for an unknown one, with the known
        ones.
        """
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


def _demand(declared: DeclaredOption, value: Any) -> str:
    """Returns the requirement that a value does not meet."""
    bounds, whole = declared.keyword, "whole number" in declared.takes
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        return f"must be {declared.takes}"
    if bounds.most is not None:
        return "is a share, 0 to 1"
    return "must be above 0" if bounds.above is not None else f"must be at least {bounds.least}"
