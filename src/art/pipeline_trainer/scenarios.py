"""The stream of scenarios: numbered, handed out once, and again where an earlier run did not settle them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sized
from typing import Any, NamedTuple

from art.errors import ConfigurationError
from art.trajectories import TrajectoryGroup

_SCALARS = (str, int, float, bool, type(None))


class Numbered(NamedTuple):
    """A scenario and its number in the stream, from 0."""

    number: int
    scenario: Any


class ScenarioStream:
    """Hands out scenarios to several takers.

    The stream must be the same in every run of one model: a resumed run counts through it.
    """

    def __init__(self, scenarios: Iterable[Any] | AsyncIterable[Any]) -> None:
        """Raises ConfigurationError for what cannot be iterated over."""
        if not isinstance(scenarios, Iterable | AsyncIterable):
            raise ConfigurationError(
                f"PipelineTrainer(scenarios={scenarios!r}): an iterable or an async iterator of dicts"
            )
        self.length = len(scenarios) if isinstance(scenarios, Sized) else None
        """How many there are, where that is known."""
        self._source = scenarios
        self._numbered: AsyncIterator[Numbered] | None = None
        self._again: deque[Numbered] = deque()
        self._lock = asyncio.Lock()

    async def take(self, is_settled: Callable[[int], bool]) -> Numbered | None:
        """The next scenario that is not settled; None at the end."""
        async with self._lock:
            while self._again:
                if not is_settled(self._again[0].number):
                    return self._again.popleft()
                self._again.popleft()
            if self._numbered is None:
                self._numbered = _numbered(self._source)
            async for one in self._numbered:
                if not is_settled(one.number):
                    return one
            return None

    def rewind(self) -> None:
        """Begin a new run: from the first scenario, or where what was given has no other way than on."""
        if not isinstance(self._source, Iterator | AsyncIterator):
            self._numbered = None
            self._again.clear()

    def give_back(self, one: Numbered) -> None:
        """It was taken, and nothing came of it: the next taker has it."""
        self._again.append(one)


async def _numbered(source: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[Numbered]:
    number = 0
    if isinstance(source, AsyncIterable):
        async for scenario in source:
            yield Numbered(number, scenario)
            number += 1
        return
    waiting: Iterator[Any] = iter(source)
    for scenario in waiting:
        yield Numbered(number, scenario)
        number += 1


def describe(group: TrajectoryGroup, scenario: Any) -> None:
    """Copy the scalars of `scenario["metadata"]` into the group's: `scenario_id` as it is, others as
    `scenario_<key>`. What the rollout wrote itself stays.
    """
    metadata = scenario.get("metadata") if isinstance(scenario, Mapping) else None
    for key, value in metadata.items() if isinstance(metadata, Mapping) else ():
        if isinstance(value, _SCALARS):
            group.metadata.setdefault(key if key == "scenario_id" else f"scenario_{key}", value)
