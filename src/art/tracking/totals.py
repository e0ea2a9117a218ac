"""What a run has added up: amounts that wait for the next row, and sums over the whole run."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from art.errors import ConfigurationError
from art.tracking.names import cumulative_name, is_managed, number

SPEEDS = {
    "throughput/avg_trainer_tok_per_s": ("data/cum/trainer_tokens", "time/cum/trainer_s"),
    "throughput/avg_actor_tok_per_s": ("data/cum/actor_tokens", "time/cum/actor_s"),
}
"""A speed is the quotient of two sums over the run."""
UNIQUE_SCENARIOS = "data/cum/num_unique_scenarios"


@dataclass
class Pending:
    """Amounts that were added since the last row."""

    amounts: dict[str, float] = field(default_factory=dict)
    scenarios: set[str] = field(default_factory=set)


class Totals:
    """Amounts by buffer, and the sums over the run that all buffers share. Safe to use from several threads.

    Example: adding `costs/train/judge` 1 and `costs/gpu` 2, then taking, gives these two and `costs/train` 1,
    `costs/all` 3, with `costs/cum/...` of each.
    """

    def __init__(self) -> None:
        self._pending: dict[str | None, Pending] = {}
        self._sums: dict[str, float] = {}
        self._scenarios: set[str] = set()
        self._lock = threading.Lock()

    def check(self, amounts: Mapping[str, float]) -> dict[str, float]:
        """The amounts as numbers. Raises ConfigurationError when `add` would refuse one of them.

        A name is an amount or a group in all buffers alike: they may be taken together.
        """
        checked = {name: _checked(name, value) for name, value in amounts.items()}
        with self._lock:
            names = {name for pending in self._pending.values() for name in pending.amounts}
        for name in checked:
            _check_leaf(name, names)
            names.add(name)
        return checked

    def add(self, buffer: str | None, amounts: Mapping[str, float], scenarios: Iterable[str] = ()) -> None:
        """Add to a buffer: all of it, or nothing when a name is refused."""
        checked = self.check(amounts)
        with self._lock:
            pending = self._pending.setdefault(buffer, Pending())
            for name, value in checked.items():
                pending.amounts[name] = pending.amounts.get(name, 0.0) + value
            pending.scenarios.update(scenarios)

    def waiting(self, buffers: Iterable[str | None]) -> set[str]:
        """Names of the amounts in these buffers."""
        with self._lock:
            return {name for buffer in buffers for name in (self._pending.get(buffer) or Pending()).amounts}

    def take(self, buffers: Iterable[str | None]) -> dict[str, float]:
        """Empty the buffers. Returns what was in them, with groups of costs, sums over the run and speeds."""
        with self._lock:
            return self._take([self._pending.get(buffer) or Pending() for buffer in dict.fromkeys(buffers)])

    def _take(self, found: list[Pending]) -> dict[str, float]:
        amounts: dict[str, float] = {}
        for pending in found:
            for name, value in pending.amounts.items():
                amounts[name] = amounts.get(name, 0.0) + value
        scenarios = set[str]().union(*(pending.scenarios for pending in found))
        for pending in found:
            pending.amounts, pending.scenarios = {}, set()
        row = amounts | cost_parents(amounts)
        row |= self._add_up(row)
        if scenarios:
            self._scenarios |= scenarios
            row[UNIQUE_SCENARIOS] = float(len(self._scenarios))
        return row

    def _add_up(self, amounts: Mapping[str, float]) -> dict[str, float]:
        grown: dict[str, float] = {}
        for name, value in amounts.items():
            if is_managed(name):
                total = cumulative_name(name)
                grown[total] = self._sums[total] = self._sums.get(total, 0.0) + value
        for speed, (tokens, seconds) in SPEEDS.items():
            if grown.keys() & {tokens, seconds} and tokens in self._sums and self._sums.get(seconds, 0.0) > 0:
                grown[speed] = self._sums[tokens] / self._sums[seconds]
        return grown

    def state_dict(self) -> dict[str, Any]:
        """The sums over the run, for a file. What waits for the next row is not in it."""
        with self._lock:
            return {"cum_state": dict(self._sums), "unique_scenario_ids": sorted(self._scenarios)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from the sums of `state_dict`."""
        with self._lock:
            self._sums = {name: float(value) for name, value in state.get("cum_state", {}).items()}
            self._scenarios = {str(scenario) for scenario in state.get("unique_scenario_ids", ())}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())  # a copy has a lock of its own


def cost_parents(amounts: Mapping[str, float]) -> dict[str, float]:
    """The sum of each group of costs, and of all. Example: `costs/train/judge` 1 and `costs/train/user` 2
    give `costs/train` 3 and `costs/all` 3.
    """
    sums: dict[str, float] = {}
    for name, value in amounts.items():
        if name.startswith("costs/"):
            parts = name.split("/")
            for parent in ["costs/all", *("/".join(parts[:end]) for end in range(2, len(parts)))]:
                sums[parent] = sums.get(parent, 0.0) + value
    return sums


def _checked(name: str, value: float) -> float:
    parts = name.split("/")
    if len(parts) < 2 or not all(parts):
        raise ConfigurationError(
            f"metric {name!r} needs a section in front, as in 'costs/judge' or 'time/step_parse_s'"
        )
    if parts[1] == "cum":
        raise ConfigurationError(f"metric {name!r}: '{parts[0]}/cum/...' is kept for sums over the run")
    if name == "costs/all":
        raise ConfigurationError(
            "metric 'costs/all' is the sum of all costs and computed; name the cost itself"
        )
    amount = number(name, value)
    if not math.isfinite(amount):
        raise ConfigurationError(f"metric {name!r} is {amount}: only finite amounts can be added up")
    return amount


def _check_leaf(name: str, others: Iterable[str]) -> None:
    """A name is either an amount or a group of amounts."""
    for other in others:
        if other.startswith(f"{name}/"):
            raise ConfigurationError(f"Cannot log {name!r} as a leaf: it is an ancestor of {other!r}.")
        if name.startswith(f"{other}/"):
            raise ConfigurationError(f"Cannot log {name!r} as a leaf: {other!r} is already a leaf ancestor.")
