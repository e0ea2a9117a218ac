"""The chat model of a graph, made once and followed through every rollout.

With it, what programs know from `llm_wrapper`: threads whose calls are logged without `wrap_rollout`.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from art.errors import ConfigurationError, extra_needed
from art.model import Model
from art.process.imports import import_lock
from art.recording.recorder import Recorder
from art.trajectories import Trajectory
from art_extensions.langgraph.graph_rollout import CURRENT_CONFIG as CURRENT_CONFIG
from art_extensions.langgraph.graph_rollout import FileLogger
from art_extensions.langgraph.graph_rollout import wrap_rollout as wrap_rollout

if TYPE_CHECKING:
    from art_extensions.langgraph.chat_model import LoggingLLM as LoggingLLM

__all__ = [
    "CURRENT_CONFIG",
    "LoggingLLM",
    "add_thread",
    "create_messages_from_logs",
    "init_chat_model",
    "wrap_rollout",
]

_PROVIDERS = ("openai", "art")
_OURS = ("base_url", "openai_api_base", "api_key", "openai_api_key", "http_client", "http_async_client")


def init_chat_model(
    model: Any = None,
    *,
    model_provider: str | None = None,
    configurable_fields: Literal["any"] | Sequence[str] | None = None,
    config_prefix: str | None = None,
    invoke_timeout: float | None = 600.0,
    **kwargs: Any,
) -> Any:
    """A LangChain `ChatOpenAI` whose calls go to the rollout that runs, at its newest step.

    model: None: the rollout's own. A name is asked for as it is; a rollout understands its model's names and
    its aliases, and refuses others. An `art.Model` or `art.TrainableModel` also works outside of rollouts;
    inside a rollout of another model it keeps its own endpoint, untrained (a judge). model_provider: "openai"
    or nothing. configurable_fields, config_prefix: fields that `config={"configurable": {...}}` may change,
    as in LangChain; "any": the usual ones. invoke_timeout: the seconds of one call, its retries included,
    after which it raises DeadlineError; None: no limit but `timeout`, of each request. kwargs: of
    `ChatOpenAI` (temperature, 1.0 unless given; max_tokens; max_retries, 10: a server may restart; ...).

    Raises ConfigurationError for another provider, and for kwargs that would send calls elsewhere.
    """
    if refused := [name for name in _OURS if name in kwargs]:
        raise ConfigurationError(
            f"init_chat_model({refused[0]}=...): the rollout says where calls go; for another server use "
            "langchain_openai.ChatOpenAI, or give an art.Model with inference_base_url"
        )
    if invoke_timeout is not None and not invoke_timeout > 0:
        raise ConfigurationError(f"init_chat_model({invoke_timeout=}): a number of seconds above 0, or None")
    given = model if isinstance(model, Model) else None
    name = None if given is not None else _plain_name(model, model_provider)
    with extra_needed("langgraph", "art.langgraph"):
        from art.client.http.openai_client import MAX_RETRIES
        from art_extensions.langgraph.chat_model import ROLLOUT_MODEL, RolloutChatModel, configurable

    defaults = {"temperature": 1.0, "invoke_timeout": invoke_timeout, "max_retries": MAX_RETRIES}
    options = {**defaults, **kwargs}
    chat = RolloutChatModel(art_model=given, model=name or ROLLOUT_MODEL, **options)
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


LOGS = Path(".art") / "langgraph"


def add_thread(thread: str, base_url: str, api_key: str, model: str) -> str:
    """Send this context's calls to an endpoint and log them under the thread's name; returns the log's path.

    For programs that run graphs without `wrap_rollout`: what `init_chat_model`'s model says from here on is
    written to `.art/langgraph/{thread}.jsonl`, for `create_messages_from_logs`.
    """
    logger = FileLogger(LOGS / f"{thread}.jsonl")
    CURRENT_CONFIG.set({"logger": logger, "base_url": base_url, "api_key": api_key, "model": model})
    return str(logger.path)


def create_messages_from_logs(log_path: str, trajectory: Trajectory) -> Trajectory:
    """Write the conversations of a log into the trajectory: the first is the main one, others are additional
    histories. Raises pydantic's ValidationError for a line that is no completion.
    """
    with import_lock:
        from openai.types.chat import ChatCompletion

    heard = Trajectory()
    recorder = Recorder(heard)
    for line in FileLogger(log_path).load_logs():
        recorder.on_completion(line["request"], ChatCompletion.model_validate(line["completion"]))
    for field in ("messages_and_choices", "tools", "additional_histories"):
        setattr(trajectory, field, getattr(heard, field))
    return trajectory


def __getattr__(name: str) -> Any:
    if name == "LoggingLLM":
        return import_module("art_extensions.langgraph.chat_model").LoggingLLM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
