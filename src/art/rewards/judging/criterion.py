"""What a rubric judges by."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from art.errors import ConfigurationError


@dataclass(frozen=True)
class Criterion:
    """One thing that a good attempt has. weight: its share of the reward, beside those of the others.

    Example: Criterion("sources", "Every claim names the document that it was taken from.", weight=2).
    """

    name: str
    description: str
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not self.name.strip() or not self.description.strip():
            raise ConfigurationError(f"Criterion({self.name!r}, {self.description!r}): give both, in words")
        object.__setattr__(self, "name", self.name.strip())  # as answers are read
        if not (math.isfinite(self.weight) and self.weight > 0):
            raise ConfigurationError(
                f"Criterion({self.name!r}, weight={self.weight!r}): must be above 0; turn what is bad "
                "around, so that 1 is good"
            )


def criteria_of(given: Iterable[Criterion] | Mapping[str, str]) -> tuple[Criterion, ...]:
    """Criteria as they are, or from {name: description}. Raises ConfigurationError for none, and for two of a
    name."""
    if isinstance(given, Mapping):
        criteria = tuple(Criterion(name, description) for name, description in given.items())
    else:
        criteria = tuple(given)
    if not criteria:
        raise ConfigurationError(
            "a rubric without criteria judges nothing: give Criterion(name, description)"
        )
    for one in criteria:
        if not isinstance(one, Criterion):
            raise ConfigurationError(
                f"criterion {one!r} is a {type(one).__name__}: use Criterion(name, text)"
            )
    names = [one.name for one in criteria]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigurationError(f"criteria {twice!r} are there more than once: give each a name of its own")
    return criteria
