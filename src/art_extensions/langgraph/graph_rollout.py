"""A rollout around a function that runs a graph, where its chat model's calls go, and what they say:
LangChain's messages in the shape of OpenAI's, and a log of the calls as JSON lines.

The endpoint is decided at each call: a graph compiled once serves every rollout.
"""

from __future__ import annotations

import functools
import json
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from art.client.rollout import current_rollout_scope, rollout
from art.errors import ConfigurationError
from art.process.files import make_private_folder, private_opener
from art.process.imports import import_lock
from art.trajectories import Trajectory
from art.wire.rollouts import SAMPLE_FIELD, STEP_FIELD, TOKENS_FIELD

if TYPE_CHECKING:
    from openai.types.chat.chat_completion import Choice

    from art.backend import AnyModel
    from art.model import TrainableModel


CURRENT_CONFIG: ContextVar[dict[str, Any]] = ContextVar("art_langgraph_config")
"""`base_url`, `api_key`, `model`, and a `logger` or None, of the wrapped rollout that runs here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatEndpoint:
    """An address, its key, and what to send as `model`."""

    base_url: str
    api_key: str = field(repr=False)
    model: str


def current_endpoint(model: AnyModel | None) -> ChatEndpoint:
    """The rollout's; with a model of another name, that model's own. A trainable model's newest step answers.

    Raises ConfigurationError outside of a rollout when no model was given.
    """
    scope = current_rollout_scope()
    if model is not None and (scope is None or not _same_model(model, scope.model)):
        if model.inference_base_url is None or model.inference_api_key is None:
            raise ConfigurationError(
                f"model {model.name!r} has no endpoint yet: call `await model.register(backend)` first, or "
                "give it inference_base_url and inference_api_key"
            )
        return ChatEndpoint(
            base_url=model.inference_base_url,
            api_key=model.inference_api_key,
            model=model.get_inference_name(),
        )
    if scope is not None:
        return ChatEndpoint(base_url=scope.base_url, api_key=scope.api_key, model=scope.model_name)
    config = CURRENT_CONFIG.get(None)
    if config is not None:
        return ChatEndpoint(base_url=config["base_url"], api_key=config["api_key"], model=config["model"])
    raise ConfigurationError(
        "the chat model of art.langgraph.init_chat_model was called outside of a rollout, so nobody knows "
        "which model is meant: call it inside art.langgraph.wrap_rollout(model, fn) or "
        "`async with art.rollout(model)`, or make it with init_chat_model(model) and an art.TrainableModel"
    )


def _same_model(one: AnyModel, other: AnyModel) -> bool:
    return one is other or (one.trainable and (one.project, one.name) == (other.project, other.name))


T = TypeVar("T", bound=Trajectory)
_log = logging.getLogger(__name__)


def wrap_rollout(
    model: TrainableModel[Any, Any], fn: Callable[..., Awaitable[T]], **options: Any
) -> Callable[..., Awaitable[T]]:
    """`fn`, whose calls of `init_chat_model`'s model become the conversations of the trajectory it returns.

    `fn` sets reward, metrics and metadata; its messages, tools and further histories are replaced by what was
    said, whichever nodes, subgraphs or threads said it. options: those of `art.rollout` (aliases, step, ...).
    The newest step answers each call. A trajectory of which nothing was heard is left as it is, with a
    warning. Raises what `fn` raises, and TypeError when it returns no Trajectory.
    """

    @functools.wraps(fn)
    async def wrapped(*args: Any, **kwargs: Any) -> T:
        async with rollout(model, **options) as r:
            config = {"logger": None, "base_url": r.base_url, "api_key": r.api_key, "model": r.model_name}
            token = CURRENT_CONFIG.set(config)
            try:
                returned = await fn(*args, **kwargs)
            finally:
                CURRENT_CONFIG.reset(token)
        if not isinstance(returned, Trajectory):
            raise TypeError(f"{fn!r} returned {returned!r}; a rollout returns an art.Trajectory")
        return _with_conversations(returned, r.trajectory)

    return wrapped


def _with_conversations(returned: T, heard: Trajectory) -> T:
    returned.rollout_id = heard.rollout_id
    if not heard.messages_and_choices:
        _log.warning(
            "rollout %s: no completion was heard; use the chat model of art.langgraph.init_chat_model in "
            "the graph. The trajectory is left as it was returned",
            heard.rollout_id,
        )
        return returned
    for name in (
        "messages_and_choices",
        "tools",
        "additional_histories",
        "initial_policy_version",
        "final_policy_version",
    ):
        setattr(returned, name, getattr(heard, name))
    returned.metrics = {**heard.metrics, **returned.metrics}
    return returned


def langchain_msg_to_openai(message: Any) -> dict[str, Any]:
    """One message as a dict, its tool calls with `function.arguments` as JSON text."""
    with import_lock:
        from langchain_core.messages import convert_to_openai_messages

    converted = convert_to_openai_messages(message)
    assert isinstance(converted, dict)
    return converted


def convert_langgraph_messages(messages: Iterable[Any]) -> list[Any]:
    """The messages of a graph's state as `messages_and_choices`.

    A reply that names its sample (as those of `init_chat_model`'s model do), or has logprobs, becomes a
    `Choice`, which is trained; any other message becomes a dict, which is context.
    """
    return [_turn(message) for message in messages]


def as_choice(message: Any, index: int = 0) -> Choice:
    """A reply as a choice, with the identity of its sample if it tells any."""
    with import_lock:
        from openai.types.chat.chat_completion import Choice

    known = getattr(message, "response_metadata", None) or {}
    identity = {name: known[name] for name in (SAMPLE_FIELD, STEP_FIELD, TOKENS_FIELD) if name in known}
    return Choice.model_validate(
        {
            "index": index,
            "message": {"content": None, **langchain_msg_to_openai(message)},
            "finish_reason": known.get("finish_reason") or "stop",
            "logprobs": known.get("logprobs"),
            **identity,
        }
    )


def _turn(message: Any) -> Any:
    known = getattr(message, "response_metadata", None) or {}
    trained = message.type in ("ai", "AIMessageChunk") and (known.get(SAMPLE_FIELD) or known.get("logprobs"))
    return as_choice(message) if trained else langchain_msg_to_openai(message)


class FileLogger:
    """Appends calls to a file. Several threads may log."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()

    def log(self, name: str, entry: dict[str, Any]) -> None:
        """Write one line: `{"name": name, **entry}`. Raises TypeError for what JSON cannot hold."""
        line = json.dumps({"name": name, **entry}, ensure_ascii=False)
        with self._lock:
            make_private_folder(self.path.parent)
            with open(self.path, "a", encoding="utf-8", opener=private_opener) as file:
                file.write(line + "\n")

    def load_logs(self) -> list[dict[str, Any]]:
        """All lines, in the order in which they were written; none without a file."""
        if not self.path.exists():
            return []
        with self.path.open(encoding="utf-8") as file:
            return [json.loads(line) for line in file]
