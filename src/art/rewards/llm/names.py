"""From what a user writes to a model that can be asked.

The first part of a name says who answers: "openai/o3" is `o3` at OpenAI.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from art.errors import ConfigurationError, did_you_mean
from art.extensions import PROVIDER, extension_points, load_extension
from art.process import environment
from art.process.environment import variable
from art.rewards.llm.endpoint import EndpointLlm
from art.rewards.llm.function import FunctionLlm
from art.rewards.llm.own_model import OwnModelLlm
from art.rewards.llm.params import FREE, Params, read_params
from art.rewards.llm.request import Llm


@dataclass(frozen=True, kw_only=True)
class Provider:
    """An endpoint that speaks OpenAI's chat completions."""

    base_url: str | None
    """None: only `base_url=` or the variable says it."""
    key_variable: str | None = None
    """None: a key is optional."""
    base_url_variable: str | None = None
    free: bool = False
    """A server of one's own: its tokens cost nothing that we could count."""
    token_limit: str = "max_tokens"
    """What it calls the limit of a completion."""


PROVIDERS = MappingProxyType(
    {
        "openai": Provider(
            base_url="https://api.openai.com/v1",
            key_variable=environment.OPENAI_API_KEY,
            base_url_variable=environment.OPENAI_BASE_URL,
            token_limit="max_completion_tokens",
        ),
        "openrouter": Provider(
            base_url="https://openrouter.ai/api/v1", key_variable=environment.OPENROUTER_API_KEY
        ),
        "anthropic": Provider(
            base_url="https://api.anthropic.com/v1", key_variable=environment.ANTHROPIC_API_KEY
        ),
        "gemini": Provider(
            base_url="https://generativelanguage.googleapis.com/v1beta/openai",
            key_variable=environment.GEMINI_API_KEY,
        ),
        "deepseek": Provider(
            base_url="https://api.deepseek.com/v1", key_variable=environment.DEEPSEEK_API_KEY
        ),
        "groq": Provider(base_url="https://api.groq.com/openai/v1", key_variable=environment.GROQ_API_KEY),
        "together_ai": Provider(
            base_url="https://api.together.xyz/v1",
            key_variable=environment.TOGETHER_API_KEY,
            base_url_variable=environment.TOGETHER_BASE_URL,
        ),
        "mistral": Provider(base_url="https://api.mistral.ai/v1", key_variable=environment.MISTRAL_API_KEY),
        "fireworks_ai": Provider(
            base_url="https://api.fireworks.ai/inference/v1", key_variable=environment.FIREWORKS_API_KEY
        ),
        "xai": Provider(base_url="https://api.x.ai/v1", key_variable=environment.XAI_API_KEY),
        "ollama": Provider(
            base_url="http://localhost:11434/v1",
            base_url_variable=environment.OLLAMA_BASE_URL,
            free=True,
        ),
        "lm_studio": Provider(
            base_url="http://localhost:1234/v1",
            base_url_variable=environment.LM_STUDIO_BASE_URL,
            free=True,
        ),
        "hosted_vllm": Provider(base_url=None, base_url_variable=environment.HOSTED_VLLM_BASE_URL, free=True),
    }
)
"""The providers by the names that litellm's users write."""


if TYPE_CHECKING:
    from art.model import Model, TrainableModel

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
    "litellm/<name>": through litellm, as other extensions of the kind `provider`; an `art.Model` or
    `art.TrainableModel`: that model at its newest step; a function: see `FunctionLlm`; something with `name`
    and `complete` as it is.
    params: litellm's names (temperature, max_tokens, timeout, extra_body, ...).

    Raises ConfigurationError for an unknown provider or option, and where a key is missing.
    """
    from art.model import Model

    if isinstance(model, str):
        return _create_llm(model, base_url, api_key, params)
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


def _create_llm(
    name: str, base_url: str | None, api_key: str | None, params: Mapping[str, Any] | None
) -> Llm:
    if not name.strip():
        raise ConfigurationError(f"model={name!r}: give a name such as 'openai/o3'")
    first, slash, rest = name.partition("/")
    if slash and first not in PROVIDERS and first in extension_points(PROVIDER):
        given = {"api_base": base_url, "api_key": api_key, **(params or {})}
        added: Llm = load_extension(PROVIDER, first)(
            rest, {key: value for key, value in given.items() if value is not None}
        )
        return added
    chosen = read_params(params, base_url=base_url, api_key=api_key)
    provider = PROVIDERS.get(first) if slash else None
    if provider is None:
        return _create_endpoint(name, chosen)
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


def _create_endpoint(name: str, chosen: Params) -> EndpointLlm:
    if chosen.base_url is None:
        first, slash, _ = name.partition("/")
        known = [*PROVIDERS, *extension_points(PROVIDER)]
        hint = did_you_mean(first, known)
        why = f"no provider {first!r}{hint and f', {hint}'}" if slash else "no provider before a slash"
        raise ConfigurationError(
            f"model={name!r}: {why}; known: {', '.join(known)}. With base_url= any name will do."
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
