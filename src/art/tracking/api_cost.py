"""`track_api_cost`: a decorator that adds what an API call cost to the active builder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, TypeVar, cast

from art.errors import ConfigurationError
from art.tracking.builder import active_builder
from art.tracking.price_tables import TokenPricing

CallT = TypeVar("CallT", bound=Callable[..., Any])


def track_api_cost(
    *,
    source: str,
    provider: str,
    model_name: str,
    response_getter: Callable[[Any], Any] | None = None,
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
) -> Callable[[CallT], CallT]:
    """Each call of the decorated function (`def` or `async def`) adds `costs/<context>/<source>`.

    model_name: "gpt-4.1" or "openai/gpt-4.1". response_getter: finds the API's response in what the function
    returns. The prices are those of `MetricsBuilder.add_response_cost`. Without an active builder nothing is
    added.
    """
    given = TokenPricing.given_once(
        prompt_per_million=(prompt_per_million, prompt_price_per_million),
        completion_per_million=(completion_per_million, completion_price_per_million),
        cached_prompt_per_million=(cached_prompt_per_million, cached_prompt_price_per_million),
        cache_creation_per_million=(cache_creation_per_million, cache_creation_price_per_million),
        cache_read_per_million=(cache_read_per_million, cache_read_price_per_million),
    )
    for name, value in {"source": source, "provider": provider, "model_name": model_name}.items():
        if not value:
            raise ConfigurationError(f"track_api_cost({name}={value!r}): a name is needed")

    def record(result: Any) -> None:
        builder = active_builder()
        if builder is not None:
            response = result if response_getter is None else response_getter(result)
            builder.add_response_cost(
                source, response, provider=provider, model_name=model_name, **asdict(given)
            )

    def decorate(call: CallT) -> CallT:
        @wraps(call)
        async def waits(*args: Any, **options: Any) -> Any:
            result = await call(*args, **options)
            record(result)
            return result

        @wraps(call)
        def returns(*args: Any, **options: Any) -> Any:
            result = call(*args, **options)
            record(result)
            return result

        return cast(CallT, waits if iscoroutinefunction(call) else returns)

    return decorate
