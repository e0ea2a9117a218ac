"""Where the chat model's calls go, decided at each call: a graph compiled once serves every rollout."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from art.errors import ConfigurationError
from art.remote.rollout_scope import current_rollout_scope

if TYPE_CHECKING:
    from art.backend import AnyModel

CURRENT_CONFIG: ContextVar[dict[str, Any]] = ContextVar("art_langgraph_config")
"""Of the wrapped rollout that runs here: `base_url`, `api_key`, `model`, and a `logger` or None."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    """An address, its key, and what to send as `model`."""

    base_url: str
    api_key: str = field(repr=False)
    model: str


def current_endpoint(given: AnyModel | None) -> Endpoint:
    """The rollout's; with a model of another name, that model's own. A trainable model's newest step answers.

    Raises ConfigurationError outside of a rollout when no model was given.
    """
    scope = current_rollout_scope()
    if given is not None and (scope is None or not _same(given, scope.model)):
        if given.inference_base_url is None or given.inference_api_key is None:
            raise ConfigurationError(
                f"model {given.name!r} has no endpoint yet: call `await model.register(backend)` first, or "
                "give it inference_base_url and inference_api_key"
            )
        return Endpoint(
            base_url=given.inference_base_url,
            api_key=given.inference_api_key,
            model=given.get_inference_name(),
        )
    if scope is not None:
        return Endpoint(base_url=scope.base_url, api_key=scope.api_key, model=scope.model_name)
    config = CURRENT_CONFIG.get(None)
    if config is not None:
        return Endpoint(base_url=config["base_url"], api_key=config["api_key"], model=config["model"])
    raise ConfigurationError(
        "the chat model of art.langgraph.init_chat_model was called outside of a rollout, so nobody knows "
        "which model is meant: call it inside art.langgraph.wrap_rollout(model, fn) or "
        "`async with art.rollout(model)`, or make it with init_chat_model(model) and an art.TrainableModel"
    )


def _same(one: AnyModel, other: AnyModel) -> bool:
    return one is other or (one.trainable and (one.project, one.name) == (other.project, other.name))
