"""Draws scenarios by weight, fewer of those that teach nothing now.

    sampler = ScenarioSampler(scenarios, key=lambda one: one.id, seed=0)
    for step in range(first, steps):
        groups = await gather(rollouts of sampler.draw(step, 16))
        sampler.note(groups)                  by `metadata["scenario_id"]` of group or trajectory
        await model.train(groups)
        await model.log(metrics=sampler.figures(), split="train", step=step)

A group whose rewards are all equal has no gradient. A scenario whose last `settled_after` groups were so, is
settled: always right or always wrong. It is drawn with `thin` times its weight, so that it is looked at again
now and then. What is drawn is a function of seed, step and what was noted before; a run that is resumed with
the same `state()` draws what it would have drawn.

Weighted sampling without replacement: Efraimidis and Spirakis 2006.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from art.environments.adapters.environment import SCENARIO_ID
from art.errors import ConfigurationError
from art.trajectories import TrajectoryGroup
from art.types import known_reward

T = TypeVar("T")
EQUAL = 1e-9
"""Rewards that differ by no more are equal."""


class ScenarioSampler(Generic[T]):
    """Scenarios, their weights, and what was seen of each."""

    def __init__(
        self,
        scenarios: Sequence[T],
        *,
        key: Callable[[T], object],
        seed: int = 0,
        weight: Callable[[T], float] | None = None,
        settled_after: int = 2,
        thin: float = 0.1,
    ) -> None:
        """key: the id of a scenario, as the metadata of its groups has it. weight: how often it is drawn,
        beside the others; 1 each without. thin: 1 draws settled scenarios like the others, 0 never again.

        Raises ConfigurationError for no scenarios, two of one id, a weight that is no finite number above 0,
        and options out of range.
        """
        self._scenarios = {str(key(one)): one for one in scenarios}
        if not scenarios or len(self._scenarios) < len(scenarios):
            raise ConfigurationError(
                f"{len(scenarios)} scenarios with {len(self._scenarios)} ids: give at least one, each with "
                "an id of its own"
            )
        weight_of = weight or (lambda one: 1.0)
        self._weights = {name: weight_of(one) for name, one in self._scenarios.items()}
        for name, value in self._weights.items():
            if not 0 < value < math.inf:
                raise ConfigurationError(
                    f"scenario {name!r} has the weight {value!r}: give a finite number above 0"
                )
        if not 0 <= thin <= 1 or settled_after < 1:
            raise ConfigurationError(
                f"thin={thin!r}, settled_after={settled_after!r}: thin is 0 to 1, settled_after 1 or more"
            )
        self._seed, self._thin, self._settled_after = seed, thin, settled_after
        self._equal: dict[str, int] = {}
        """The number of groups in a row with equal rewards, by scenario id, up to `settled_after`."""

    def draw(self, step: int, count: int) -> list[T]:
        """Returns `count` scenarios for a step. None comes twice before all have come once that may be drawn.

        Where all are settled and `thin` is 0, they are drawn by their weights again.
        """
        drawn: list[T] = []
        passes = 0
        while len(drawn) < count:
            names = self._order(f"{self._seed}/{step}/{passes}")
            drawn += [self._scenarios[name] for name in names[: count - len(drawn)]]
            passes += 1
        return drawn

    def note(self, groups: Iterable[TrajectoryGroup]) -> None:
        """Remembers which groups had equal rewards. Groups of unknown scenarios, and those with fewer than
        two scored rollouts, say nothing.
        """
        self.note_outcomes(outcomes_of(groups))

    def note_outcomes(self, outcomes: Iterable[tuple[str, bool]]) -> None:
        """Remembers what `outcomes_of` says of groups: a run that keeps it for each step needs no `state`."""
        for name, equal in outcomes:
            if name not in self._scenarios:
                continue
            if equal:
                self._equal[name] = min(self._settled_after, self._equal.get(name, 0) + 1)
            else:
                self._equal.pop(name, None)

    def left_out(self, step: int, count: int) -> list[str]:
        """Returns the ids of the scenarios that `draw` would have returned if none were settled, and does
        not: settled ones.
        """
        first = f"{self._seed}/{step}/0"
        drawn = self._order(first)[:count]
        return sorted(set(self._by_weight(first, self._weights)[:count]).difference(drawn))

    @property
    def settled_scenarios(self) -> list[str]:
        """The ids of the scenarios whose last groups had equal rewards, in the order of the scenarios."""
        return [name for name in self._scenarios if self._equal.get(name, 0) >= self._settled_after]

    def figures(self) -> dict[str, float]:
        """Returns numbers for the log: how many scenarios there are, and how many are settled."""
        return {
            "scenarios/known": float(len(self._scenarios)),
            "scenarios/settled": float(len(self.settled_scenarios)),
        }

    def state(self) -> dict[str, int]:
        """Returns what was noted, as JSON values: small, to be kept with a run (`model.merge_state`)."""
        return dict(self._equal)

    def load_state(self, state: Mapping[str, int]) -> None:
        """Goes on from what `state` returned. Scenarios that are gone are left out."""
        self._equal = {
            name: min(self._settled_after, int(count))
            for name, count in state.items()
            if name in self._scenarios
        }

    def _order(self, salt: str) -> list[str]:
        """The ids that may be drawn, in a random order in which heavy ones come early."""
        settled = set(self.settled_scenarios)
        weights = {
            name: weight * (self._thin if name in settled else 1.0) for name, weight in self._weights.items()
        }
        return self._by_weight(salt, weights if any(weights.values()) else self._weights)

    def _by_weight(self, salt: str, weights: Mapping[str, float]) -> list[str]:
        return sorted(
            (name for name, weight in weights.items() if weight),
            key=lambda name: -math.log(_uniform(f"{salt}/{name}")) / weights[name],
        )


def outcomes_of(groups: Iterable[TrajectoryGroup]) -> list[tuple[str, bool]]:
    """Returns the scenario's id of each group with at least two scored rollouts, and whether all its rewards
    were equal.
    """
    found = []
    for group in groups:
        name = _scenario_of(group)
        rewards = [reward for one in group if (reward := known_reward(one)) is not None]
        if name is not None and len(rewards) > 1:
            found.append((name, max(rewards) - min(rewards) <= EQUAL))
    return found


def _uniform(text: str) -> float:
    """A number above 0 and below 1, the same on every machine."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return (int.from_bytes(digest[:8], "big") + 0.5) / 2**64


def _scenario_of(group: TrajectoryGroup) -> str | None:
    places = (group.metadata, *(one.metadata for one in group))
    return next((str(place[SCENARIO_ID]) for place in places if SCENARIO_ID in place), None)
