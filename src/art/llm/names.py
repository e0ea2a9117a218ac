"""From what a user writes to a model that can be asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from art.environment import variable
from art.errors import ConfigurationError
from art.llm.endpoint import EndpointLlm
from art.llm.function import FunctionLlm
from art.llm.own_model import OwnModelLlm
from art.llm.params import Params, read_params
from art.llm.prices import FREE
from art.llm.providers import PROVIDERS, Provider
from art.llm.request import Llm
from art.llm.through_litellm import PREFIX, LitellmLlm
from art.spelling import did_you_mean

if TYPE_CHECKING:
    from art.model import TrainableModel
    from art.prompted_model import Model

    LlmLike = str | Model | Llm | Callable[..., Any]

NO_KEY = "none"
"""Servers of one's own want a header, but no key."""


def resolve_llm(
    model: LlmLike,
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    params: Mapping[str, Any] | None = None,
) -> Llm:
    """A model to ask.

    model: a name, "openai/o3" (provider and model), with `base_url` any name at that address;
    "litellm/<name>": through litellm; an `art.Model` or `art.TrainableModel`: that model at its newest step;
    a function: see `FunctionLlm`; something with `name` and `complete` as it is.
    params: litellm's names (temperature, max_tokens, timeout, extra_body, ...).

    Raises ConfigurationError for an unknown provider or option, and where a key is missing.
    """
    from art.prompted_model import Model

    if isinstance(model, str):
        return _named(model, base_url, api_key, params)
    if isinstance(model, Model):
        return OwnModelLlm(model, read_params(params, base_url=base_url, api_key=api_key))
    if base_url is not None or api_key is not None or params:
        raise ConfigurationError(
            f"{model!r} brings its own address and options: base_url=, api_key= and params= are for names"
        )
    if hasattr(model, "complete") and hasattr(model, "name"):
        asked: Llm = model
        return asked
    if callable(model):
        return FunctionLlm(model)
    raise ConfigurationError(
        f"{model!r} is no model that can be asked: give a name such as 'openai/o3', a function, an "
        "art.Model, or an object with `name` and `complete`"
    )


def base_of(model: TrainableModel, *, params: Mapping[str, Any] | None = None) -> Llm:
    """The base model of a model that learns, its adapter off: a judge that costs nothing more."""
    return OwnModelLlm(model, read_params(params), base=True)


def _named(
    name: str, base_url: str | None, api_key: str | None, params: Mapping[str, Any] | None
) -> EndpointLlm | LitellmLlm:
    if not name.strip():
        raise ConfigurationError(f"model={name!r}: give a name such as 'openai/o3'")
    if name.startswith(PREFIX):
        given = {"api_base": base_url, "api_key": api_key, **(params or {})}
        return LitellmLlm(
            name[len(PREFIX) :], {key: value for key, value in given.items() if value is not None}
        )
    chosen = read_params(params, base_url=base_url, api_key=api_key)
    first, slash, rest = name.partition("/")
    provider = PROVIDERS.get(first) if slash else None
    if provider is None:
        return _elsewhere(name, chosen)
    address = chosen.base_url or _variable(provider.base_url_variable) or provider.base_url
    if address is None:
        raise ConfigurationError(f"{name!r}: give base_url=, or set {provider.base_url_variable}")
    # Whoever gives an address of their own with "openai/..." means the protocol; its own key is not for them.
    ours = chosen.base_url is None
    return EndpointLlm(
        name=name,
        model=rest,
        base_url=address,
        api_key=chosen.api_key or _key(name, provider, needed=ours),
        provider=first,
        params=chosen,
        pricing=FREE if provider.free else None,
        token_limit=provider.token_limit if ours else "max_tokens",
    )


def _elsewhere(name: str, chosen: Params) -> EndpointLlm:
    if chosen.base_url is None:
        first, slash, _ = name.partition("/")
        hint = did_you_mean(first, PROVIDERS)
        why = f"no provider {first!r}{hint and f', {hint}'}" if slash else "no provider before a slash"
        raise ConfigurationError(
            f"model={name!r}: {why}; known: {', '.join(PROVIDERS)}, and litellm. With base_url= any name "
            "will do."
        )
    return EndpointLlm(
        name=name, model=name, base_url=chosen.base_url, api_key=chosen.api_key or NO_KEY, params=chosen
    )


def _key(name: str, provider: Provider, *, needed: bool) -> str:
    if not needed or provider.key_variable is None:
        return NO_KEY
    key = _variable(provider.key_variable)
    if key is None:
        raise ConfigurationError(
            f"{name!r} needs a key: set {provider.key_variable}, or give api_key=; for an endpoint of your "
            "own give base_url="
        )
    return key


def _variable(name: str | None) -> str | None:
    return None if name is None else variable(name)
