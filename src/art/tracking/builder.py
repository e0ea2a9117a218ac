"""`MetricsBuilder`: collects costs, counts and times where they arise, for the next row of the log."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import Any

from art.errors import ConfigurationError
from art.tracking.price_tables import TokenPricing
from art.tracking.pricing import PriceBook
from art.tracking.totals import Totals

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
        self._totals = Totals()
        self._prices = PriceBook()

    def add_metric(self, key: str, value: float) -> None:
        """Add an amount. A name is either an amount or a group of amounts: ConfigurationError for both."""
        self._totals.add(self._buffer, {key: value})

    def add_metrics(self, metrics: Mapping[str, float], scenario_ids: Iterable[Any] = ()) -> None:
        """Add several at once: all of them, or none when one is refused."""
        self._totals.add(self._buffer, metrics, [str(scenario) for scenario in scenario_ids])

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
        else its tokens times the price given here, registered, or known (`art.tracking.pricing`), in US
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
        usd = self._prices.cost(response, provider=provider, model_name=model_name, given=given)
        if usd is not None:
            self.add_cost(f"{self.cost_context}/{source}", usd)
        return usd

    def add_data(
        self,
        step_num_scenarios: float | None = None,
        step_actor_tokens: float | None = None,
        scenario_ids: Iterable[Any] | None = None,
    ) -> None:
        """Add counts of data; `scenario_ids` count once over the run (`data/cum/num_unique_scenarios`)."""
        counts = {"step_num_scenarios": step_num_scenarios, "step_actor_tokens": step_actor_tokens}
        self.add_metrics(_under("data", counts), scenario_ids or ())

    def add_user_timing(
        self,
        step_wall_s: float | None = None,
        step_actor_s: float | None = None,
        step_eval_s: float | None = None,
    ) -> None:
        """Add seconds that the program measured itself."""
        seconds = {"step_wall_s": step_wall_s, "step_actor_s": step_actor_s, "step_eval_s": step_eval_s}
        self.add_metrics(_under("time", seconds))

    def add_idle_times(
        self, step_trainer_idle_s: float | None = None, step_actor_idle_s: float | None = None
    ) -> None:
        """Add seconds in which the trainer or the actor waited."""
        seconds = {"step_trainer_idle_s": step_trainer_idle_s, "step_actor_idle_s": step_actor_idle_s}
        self.add_metrics(_under("throughput", seconds))

    @contextmanager
    def measure(self, key: str) -> Iterator[None]:
        """Add the seconds spent inside, also when it raises."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.add_metric(key, time.monotonic() - started)

    async def flush(self) -> dict[str, float]:
        """Everything that was added since the last time, with groups of costs, sums over the run, speeds."""
        return self.take()

    def take(self, *further_buffers: str | None) -> dict[str, float]:
        """`flush` where nothing can be awaited; also empties the named buffers."""
        return self._totals.take([self._buffer, *further_buffers])

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

    def check(self, metrics: Mapping[str, float]) -> None:
        """Raises ConfigurationError when `add_metrics` would refuse one of them."""
        self._totals.check(metrics)

    def waiting(self, *further_buffers: str | None) -> set[str]:
        """Names of the amounts that the next `take` would give."""
        return self._totals.waiting([self._buffer, *further_buffers])

    def for_cost_context(self, cost_context: str, *, buffer_scope: str | None = None) -> MetricsBuilder:
        """A builder for other costs with the same sums, prices and extractors.

        buffer_scope: a name gives it amounts of its own until the next flush; all builders with that name
        share them. None: it shares this builder's.
        """
        other = MetricsBuilder(cost_context)
        other._buffer = self._buffer if buffer_scope is None else buffer_scope
        other._totals, other._prices = self._totals, self._prices
        return other

    def afresh(self) -> MetricsBuilder:
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
        return self._totals.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from the sums of `state_dict`."""
        self._totals.load_state_dict(state)


def active_builder() -> MetricsBuilder | None:
    """The active builder of this task, or None."""
    return _ACTIVE.get(None)


def _under(section: str, amounts: Mapping[str, float | None]) -> dict[str, float]:
    return {f"{section}/{name}": value for name, value in amounts.items() if value is not None}


def _checked_context(cost_context: str) -> str:
    if not cost_context or not all(cost_context.split("/")):
        raise ConfigurationError(f"cost_context {cost_context!r}: use a name such as 'train' or 'eval'")
    return cost_context
