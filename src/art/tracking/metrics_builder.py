"""`MetricsBuilder`: collects costs, counts and times where they arise, for the next row of the log.

`MetricTotals` holds the amounts that wait for that row, and the sums over the whole run.
"""

from __future__ import annotations

import copy
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from typing import Any

from art.errors import ConfigurationError
from art.tracking.distinct_names import DistinctNames
from art.tracking.names import ACTOR_NAMES, ROLLOUT_NAMES, cumulative_name, is_managed, number
from art.tracking.prices import PriceBook, TokenPricing

SPEEDS = {
    "throughput/avg_trainer_tok_per_s": ("data/cum/trainer_tokens", "time/cum/trainer_s"),
    "throughput/avg_actor_tok_per_s": ("data/cum/actor_tokens", "time/cum/actor_s"),
}
"""A speed is the quotient of two sums over the run."""
UNIQUE_SCENARIOS = "data/cum/num_unique_scenarios"


@dataclass
class PendingAmounts:
    """Amounts that were added since the last row."""

    amounts: dict[str, float] = field(default_factory=dict)
    scenarios: set[str] = field(default_factory=set)


class MetricTotals:
    """Amounts by buffer, and the sums over the run that all buffers share. Safe to use from several threads.

    Example: adding `costs/train/judge` 1 and `costs/gpu` 2, then taking, gives these two and `costs/train` 1,
    `costs/all` 3, with `costs/cum/...` of each. Amounts of rollouts have two spellings (`ACTOR_NAMES`): all
    rows of a run have the one that came first.
    """

    def __init__(self) -> None:
        self._pending: dict[str | None, PendingAmounts] = {}
        self._sums: dict[str, float] = {}
        self._scenarios = DistinctNames()
        self._says_rollout: bool | None = None
        """Whether names of rollouts are those of `ROLLOUT_NAMES`. None: no amount has decided it."""
        self._lock = threading.Lock()

    def check(self, amounts: Mapping[str, float]) -> dict[str, float]:
        """The amounts as numbers. Raises ConfigurationError when `add` would refuse one of them.

        A name is an amount or a group in all buffers alike: they may be taken together.
        """
        checked = {
            ACTOR_NAMES.get(name, name): _checked_amount(name, value) for name, value in amounts.items()
        }
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
            self._decide_spelling(amounts)
            pending = self._pending.setdefault(buffer, PendingAmounts())
            for name, value in checked.items():
                pending.amounts[name] = pending.amounts.get(name, 0.0) + value
            pending.scenarios.update(scenarios)

    def waiting(self, buffers: Iterable[str | None]) -> set[str]:
        """Names of the amounts in these buffers."""
        with self._lock:
            return {
                name for buffer in buffers for name in (self._pending.get(buffer) or PendingAmounts()).amounts
            }

    def empty_buffers(self, buffers: Iterable[str | None]) -> dict[str, float]:
        """Empty the buffers. Returns what was in them, with groups of costs, sums over the run and speeds."""
        with self._lock:
            return self._sum_amounts(
                [self._pending.get(buffer) or PendingAmounts() for buffer in dict.fromkeys(buffers)]
            )

    def _sum_amounts(self, found: list[PendingAmounts]) -> dict[str, float]:
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
            self._scenarios.add(scenarios)
            row[UNIQUE_SCENARIOS] = float(self._scenarios.count())
        return self._spell(row)

    def _decide_spelling(self, names: Iterable[str]) -> None:
        for name in names if self._says_rollout is None else ():
            if name in ACTOR_NAMES or name in ROLLOUT_NAMES:
                self._says_rollout = name in ACTOR_NAMES

    def _spell(self, amounts: Mapping[str, float]) -> dict[str, float]:
        names = ROLLOUT_NAMES if self._says_rollout else {}
        return {names.get(name, name): value for name, value in amounts.items()}

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
            return {"cum_state": self._spell(self._sums), "unique_scenario_ids": self._scenarios.list_names()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from the sums of `state_dict`."""
        sums = state.get("cum_state", {})
        with self._lock:
            self._sums = {ACTOR_NAMES.get(name, name): float(value) for name, value in sums.items()}
            self._decide_spelling(sums)
            self._scenarios = DistinctNames(map(str, state.get("unique_scenario_ids", ())))

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


def _checked_amount(name: str, value: float) -> float:
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


CostExtractor = Callable[[Any], float | None]
"""Gives the price of a response in US dollars, or None when it does not tell."""

_ACTIVE: ContextVar[MetricsBuilder] = ContextVar("art_metrics_builder")


class MetricsBuilder:
    """Amounts are added under names and come out, added up, with `flush`.

    cost_context: what costs of responses belong to, "train" or "eval": `costs/train/judge`. All builders made
    by `for_cost_context` share the sums over the run, the prices and the extractors.

        builder = MetricsBuilder("train")
        builder.add_cost("train/judge", 0.25)
        await builder.flush()  # costs/train/judge, costs/train, costs/all and costs/cum/... : 0.25 each
    """

    def __init__(self, cost_context: str) -> None:
        self.cost_context = _checked_context(cost_context)
        self._buffer: str | None = None
        self.totals = MetricTotals()
        self._prices = PriceBook()

    def add_metric(self, key: str, value: float) -> None:
        """Add an amount. A name is either an amount or a group of amounts: ConfigurationError for both."""
        self.totals.add(self._buffer, {key: value})

    def add_metrics(self, metrics: Mapping[str, float], scenario_ids: Iterable[Any] = ()) -> None:
        """Add several at once: all of them, or none when one is refused."""
        self.totals.add(self._buffer, metrics, [str(scenario) for scenario in scenario_ids])

    def add_cost(self, path: str, usd: float) -> None:
        """Add US dollars to `costs/<path>`."""
        self.add_metric(f"costs/{path.removeprefix('costs/')}", usd)

    def add_response_cost(
        self,
        source: str,
        response: Any,
        *,
        provider: str,
        model_name: str,
        prompt_per_million: float | None = None,
        completion_per_million: float | None = None,
        cached_prompt_per_million: float | None = None,
        cache_creation_per_million: float | None = None,
        cache_read_per_million: float | None = None,
        prompt_price_per_million: float | None = None,
        completion_price_per_million: float | None = None,
        cached_prompt_price_per_million: float | None = None,
        cache_creation_price_per_million: float | None = None,
        cache_read_price_per_million: float | None = None,
    ) -> float | None:
        """Add what a response cost to `costs/<cost_context>/<source>`; returns the US dollars.

        The price is what the response itself tells (`usage.cost`), else what the provider's extractor says,
        else its tokens times the price given here, registered, or known (`art.tracking.prices`), in US
        dollars per million tokens; each price may also be given as `..._price_per_million`. None: the
        response tells no usage. Raises ConfigurationError when no price is known.
        """
        given = TokenPricing.given_once(
            prompt_per_million=(prompt_per_million, prompt_price_per_million),
            completion_per_million=(completion_per_million, completion_price_per_million),
            cached_prompt_per_million=(cached_prompt_per_million, cached_prompt_price_per_million),
            cache_creation_per_million=(cache_creation_per_million, cache_creation_price_per_million),
            cache_read_per_million=(cache_read_per_million, cache_read_price_per_million),
        )
        usd = self._prices.cost(response, provider=provider, model_name=model_name, pricing=given)
        if usd is not None:
            self.add_cost(f"{self.cost_context}/{source}", usd)
        return usd

    def add_data(
        self,
        step_num_scenarios: float | None = None,
        step_actor_tokens: float | None = None,
        scenario_ids: Iterable[Any] | None = None,
        step_rollout_tokens: float | None = None,
    ) -> None:
        """Add counts of data; `scenario_ids` count once over the run (`data/cum/num_unique_scenarios`).
        step_rollout_tokens: another spelling of step_actor_tokens, which all rows of the run then have.
        """
        tokens = _of_two_names("step_actor_tokens", step_actor_tokens, step_rollout_tokens)
        counts = {"step_num_scenarios": step_num_scenarios, **tokens}
        self.add_metrics(_prefix_names("data", counts), scenario_ids or ())

    def add_user_timing(
        self,
        step_wall_s: float | None = None,
        step_actor_s: float | None = None,
        step_eval_s: float | None = None,
        step_rollout_s: float | None = None,
    ) -> None:
        """Add seconds that the program measured itself. step_rollout_s: another spelling of step_actor_s."""
        acting = _of_two_names("step_actor_s", step_actor_s, step_rollout_s)
        seconds = {"step_wall_s": step_wall_s, "step_eval_s": step_eval_s, **acting}
        self.add_metrics(_prefix_names("time", seconds))

    def add_idle_times(
        self,
        step_trainer_idle_s: float | None = None,
        step_actor_idle_s: float | None = None,
        step_rollout_idle_s: float | None = None,
    ) -> None:
        """Add seconds in which the trainer or the actor waited. step_rollout_idle_s: another spelling
        of step_actor_idle_s.
        """
        waiting = _of_two_names("step_actor_idle_s", step_actor_idle_s, step_rollout_idle_s)
        seconds = {"step_trainer_idle_s": step_trainer_idle_s, **waiting}
        self.add_metrics(_prefix_names("throughput", seconds))

    @contextmanager
    def measure(self, key: str) -> Iterator[None]:
        """Add the seconds spent inside, also when it raises."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.add_metric(key, time.monotonic() - started)

    async def flush(self) -> dict[str, float]:
        """Returns all values added since the last call, with groups of costs, sums over the run, speeds."""
        return self.take_metrics()

    def take_metrics(self, *further_buffers: str | None) -> dict[str, float]:
        """`flush` where nothing can be awaited; also empties the named buffers."""
        return self.totals.empty_buffers([self._buffer, *further_buffers])

    def activate(self) -> Token[MetricsBuilder]:
        """Make this the builder of `get_active`; undo it with `token.var.reset(token)`."""
        return _ACTIVE.set(self)

    @contextmanager
    def activate_context(self) -> Iterator[MetricsBuilder]:
        """`activate` for the block."""
        token = self.activate()
        try:
            yield self
        finally:
            _ACTIVE.reset(token)

    @staticmethod
    def get_active() -> MetricsBuilder:
        """The active builder of this task. Raises LookupError when there is none."""
        builder = active_builder()
        if builder is None:
            raise LookupError("no MetricsBuilder is active here: use `with builder.activate_context():`")
        return builder

    def waiting(self, *further_buffers: str | None) -> set[str]:
        """Names of the amounts that the next `take_metrics` would give."""
        return self.totals.waiting([self._buffer, *further_buffers])

    def for_cost_context(self, cost_context: str, *, buffer_scope: str | None = None) -> MetricsBuilder:
        """A builder for other costs with the same sums, prices and extractors.

        buffer_scope: a name gives it amounts of its own until the next flush; all builders with that name
        share them. None: it shares this builder's.
        """
        other = MetricsBuilder(cost_context)
        other._buffer = self._buffer if buffer_scope is None else buffer_scope
        other.totals, other._prices = self.totals, self._prices
        return other

    def copy_settings(self) -> MetricsBuilder:
        """A builder with copies of the prices and extractors and nothing added up yet."""
        other = MetricsBuilder(self.cost_context)
        other._prices = copy.deepcopy(self._prices)
        return other

    @property
    def prices(self) -> PriceBook:
        """Prices and extractors, shared with the builders of `for_cost_context`."""
        return self._prices

    def register_cost_extractor(self, provider: str, extractor: CostExtractor) -> None:
        """Ask `extractor` for the price of this provider's responses; None falls back to their tokens."""
        self._prices.extractors[provider] = extractor

    def register_model_pricing(
        self,
        model_name: str,
        *,
        prompt_per_million: float,
        completion_per_million: float,
        cached_prompt_per_million: float | None = None,
        cache_creation_per_million: float | None = None,
        cache_read_per_million: float | None = None,
    ) -> None:
        """Set a model's price, in US dollars per million tokens."""
        self._prices.registered[model_name] = TokenPricing(
            prompt_per_million=prompt_per_million,
            completion_per_million=completion_per_million,
            cached_prompt_per_million=cached_prompt_per_million,
            cache_creation_per_million=cache_creation_per_million,
            cache_read_per_million=cache_read_per_million,
        )

    def state_dict(self) -> dict[str, Any]:
        """The sums over the run: `cum_state` and `unique_scenario_ids`."""
        return self.totals.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from the sums of `state_dict`."""
        self.totals.load_state_dict(state)


def active_builder() -> MetricsBuilder | None:
    """The active builder of this task, or None."""
    return _ACTIVE.get(None)


def _prefix_names(section: str, amounts: Mapping[str, float | None]) -> dict[str, float]:
    return {f"{section}/{name}": value for name, value in amounts.items() if value is not None}


def _of_two_names(name: str, value: float | None, renamed: float | None) -> dict[str, float | None]:
    other = name.replace("actor", "rollout")
    if value is not None and renamed is not None:
        raise ConfigurationError(f"{name} and {other} are one amount: give one of them")
    return {name: value, other: renamed}


def _checked_context(cost_context: str) -> str:
    if not cost_context or not all(cost_context.split("/")):
        raise ConfigurationError(f"cost_context {cost_context!r}: use a name such as 'train' or 'eval'")
    return cost_context
