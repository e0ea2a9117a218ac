"""The chat model of a graph, made once and followed through every rollout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from art.errors import ConfigurationError
from art.prompted_model import Model

_PROVIDERS = ("openai", "art")
_OURS = ("base_url", "openai_api_base", "api_key", "openai_api_key", "http_client", "http_async_client")
INSTALL = "pip install 'agent-reinforcement-trainer[langgraph]'"


def init_chat_model(
    model: Any = None,
    *,
    model_provider: str | None = None,
    configurable_fields: Literal["any"] | Sequence[str] | None = None,
    config_prefix: str | None = None,
    **kwargs: Any,
) -> Any:
    """A LangChain `ChatOpenAI` whose calls go to the rollout that runs, at its newest step.

    model: None: the rollout's own. A name is asked for as it is; a rollout understands its model's names and
    its aliases, and refuses others. An `art.Model` or `art.TrainableModel` also works outside of rollouts;
    inside a rollout of another model it keeps its own endpoint, untrained (a judge). model_provider: "openai"
    or nothing. configurable_fields, config_prefix: fields that `config={"configurable": {...}}` may change,
    as in LangChain; "any": the usual ones. kwargs: of `ChatOpenAI` (temperature, 1.0 unless given;
    max_tokens; max_retries; ...).

    Raises ConfigurationError for another provider, and for kwargs that would send calls elsewhere.
    """
    if refused := [name for name in _OURS if name in kwargs]:
        raise ConfigurationError(
            f"init_chat_model({refused[0]}=...): the rollout says where calls go; for another server use "
            "langchain_openai.ChatOpenAI, or give an art.Model with inference_base_url"
        )
    given = model if isinstance(model, Model) else None
    name = None if given is not None else _plain_name(model, model_provider)
    try:
        from art.langgraph.chat_model import THE_ROLLOUTS, RolloutChatModel
        from art.langgraph.configurable import configurable
    except ImportError as error:
        raise ConfigurationError(
            f"art.langgraph needs packages that are missing ({error}): {INSTALL}"
        ) from error

    options = {"temperature": 1.0, **kwargs}
    chat = RolloutChatModel(given=given, model=name or THE_ROLLOUTS, **options)
    return chat if configurable_fields is None else configurable(chat, configurable_fields, config_prefix)


def _plain_name(asked: Any, provider: str | None) -> str | None:
    if asked is not None and not isinstance(asked, str):
        raise ConfigurationError(
            f"init_chat_model({asked!r}): give a model's name, an art.TrainableModel, or nothing"
        )
    model: str = asked or ""
    head, colon, rest = model.partition(":")
    if colon and head.isidentifier():
        provider, model = provider or head, rest
    if provider not in (None, *_PROVIDERS):
        raise ConfigurationError(
            f"model_provider={provider!r}: art.langgraph's chat model speaks to the model that learns; for a "
            "model of another provider use langchain.chat_models.init_chat_model"
        )
    return model or None
