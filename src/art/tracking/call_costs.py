"""Costs of calls: `track_api_cost` for a program's own API calls, `ClientCosts` for a model's completions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import wraps
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, TypeVar, cast

from art.errors import ConfigurationError
from art.tracking.metrics_builder import MetricsBuilder, active_builder
from art.tracking.prices import CostCalculator, TokenPricing, no_costs
from art.wire.nested import deep_merge

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion


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


CHAT_TEMPLATE_KWARGS = "chat_template_kwargs"


class Overlay:
    """An object with some of its attributes replaced."""

    def __init__(self, under: Any, **over: Any) -> None:
        vars(self).update(over, _under=under)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._under, name)


class ForeignClient(Overlay):
    """A client that a program put in place of `art.model.AsyncOpenAI`: its completions are heard, too."""

    def __init__(self, client: Any) -> None:
        super().__init__(client)
        self.observers: list[Any] = []
        self.request_defaults: dict[str, Any] = {}

    def with_options(self, **options: Any) -> ForeignClient:
        """The same with other options, heard by the same observers."""
        other = ForeignClient(self._under.with_options(**options))
        other.observers, other.request_defaults = self.observers, self.request_defaults
        return other

    copy = with_options

    @property
    def chat(self) -> Any:
        """The client's own `chat`, except for `completions.create`."""
        chat = self._under.chat
        return Overlay(chat, completions=Overlay(chat.completions, create=self._create))

    async def _create(self, *args: Any, **request: Any) -> Any:
        if self.request_defaults:
            own = request.get("extra_body") or {}
            request["extra_body"] = deep_merge(self.request_defaults, own)
        reply = await self._under.chat.completions.create(*args, **request)
        if getattr(reply, "usage", None) is not None:
            for observer in list(self.observers):
                observer(request, reply)
        return reply


class ClientCosts:
    """Equips a model's client: defaults of its requests, and an observer if completions cost something."""

    def __init__(self) -> None:
        self.calculator: CostCalculator = no_costs
        self._builder: Callable[[], MetricsBuilder] | None = None

    def __copy__(self) -> ClientCosts:
        copied = ClientCosts()
        copied.calculator = self.calculator
        return copied

    def equip(
        self, client: Any, builder: Callable[[], MetricsBuilder], template: Mapping[str, Any] | None
    ) -> None:
        """Bring the client up to date. `template`: arguments of the chat template for every request."""
        observers: list[Any] | None = getattr(client, "observers", None)
        if observers is None:
            return  # a client of a backend that is not ours
        self._builder = builder
        listening = self._observe in observers
        if self.calculator is not no_costs and not listening:
            observers.append(self._observe)
        elif self.calculator is no_costs and listening:
            observers.remove(self._observe)
        client.request_defaults.pop(CHAT_TEMPLATE_KWARGS, None)
        if template:
            client.request_defaults[CHAT_TEMPLATE_KWARGS] = dict(template)

    def detached(self, client: Any) -> Any:
        """The client over the same connections, with observers and defaults of its own."""
        if not hasattr(client, "observers"):
            return client
        copied = client.copy()
        copied.observers = [observer for observer in client.observers if observer != self._observe]
        copied.request_defaults = dict(client.request_defaults)
        return copied

    def _observe(self, request: dict[str, Any], completion: ChatCompletion) -> None:
        usage, builder = completion.usage, active_builder() or (self._builder and self._builder())
        if usage is None or builder is None:
            return
        prompts = usage.prompt_tokens * max(1, len(completion.choices))
        builder.add_metrics(self.calculator(prompts, usage.completion_tokens, builder.cost_context))
