"""LangChain's own `ChatOpenAI`, which asks at each call where the rollout is, and writes its calls down.

Its HTTP clients send requests where the rollout that runs says. A run's configuration may change some of
its fields. Loading this module loads LangChain.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Literal
from urllib.parse import urlsplit
from uuid import UUID

import openai
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult, LLMResult
from langchain_core.runnables import ConfigurableField, Runnable, RunnableBinding, RunnableSequence
from langchain_core.runnables.configurable import RunnableConfigurableFields
from langchain_openai import ChatOpenAI
from pydantic import Field

from art.client.http.connection import CONNECT_S
from art.client.http.openai_client import AnyLoopClient
from art.errors import ConfigurationError
from art.wire.rollouts import SAMPLE_FIELD, STEP_FIELD, TOKENS_FIELD
from art_extensions.langgraph.call_deadline import (
    awaited_within,
    called_within,
    iterated_within,
    streamed_within,
)
from art_extensions.langgraph.graph_rollout import (
    CURRENT_CONFIG,
    ChatEndpoint,
    FileLogger,
    as_choice,
    current_endpoint,
    langchain_msg_to_openai,
)

NOWHERE = "http://rollout.invalid/v1"
"""The address that requests are made for, before they are told where to go."""

TIMEOUT_S = 600.0


def routed_clients(where: Callable[[], ChatEndpoint]) -> tuple[Any, Any]:
    """A synchronous and an asynchronous client for openai's classes; `where` is asked at each request."""
    package = import_module(openai.DefaultHttpxClient.__mro__[1].__module__.split(".")[0])

    def route(request: Any) -> None:
        endpoint = where()
        rest = request.url.path.removeprefix(urlsplit(NOWHERE).path)
        request.url = package.URL(endpoint.base_url.rstrip("/") + rest)
        request.headers["host"] = request.url.netloc.decode()
        request.headers["authorization"] = f"Bearer {endpoint.api_key}"

    async def route_later(request: Any) -> None:
        route(request)

    timeout = package.Timeout(TIMEOUT_S, connect=CONNECT_S)
    waiting = openai.DefaultHttpxClient(timeout=timeout, event_hooks={"request": [route]})
    asynchronous = AnyLoopClient(
        verify=package.create_ssl_context(), timeout=timeout, event_hooks={"request": [route_later]}
    )
    return waiting, asynchronous


class CallLog(BaseCallbackHandler):
    """Writes calls into a logger; without one into that of `CURRENT_CONFIG`, if there is any."""

    raise_error = True  # a log with holes would be a trajectory with holes

    def __init__(self, logger: FileLogger | None = None) -> None:
        self._logger = logger
        self._open: dict[UUID, tuple[FileLogger, dict[str, Any]]] = {}

    def on_chat_model_start(
        self, serialized: Any, messages: list[list[BaseMessage]], *, run_id: UUID, **kwargs: Any
    ) -> None:
        """Keep what is asked until the answer is there."""
        logger = self._logger or (CURRENT_CONFIG.get(None) or {}).get("logger")
        if logger is None:
            return
        tools = (kwargs.get("invocation_params") or {}).get("tools")
        asked = [langchain_msg_to_openai(message) for message in messages[0]]
        self._open[run_id] = logger, {"messages": asked, "tools": tools}

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        """Write the call."""
        known = self._open.pop(run_id, None)
        if known is None:
            return
        logger, request = known
        said = [getattr(generation, "message", None) for generation in response.generations[0]]
        completion = {
            "id": str(run_id),
            "object": "chat.completion",
            "created": int(time.time()),
            "model": str((response.llm_output or {}).get("model_name") or "unknown"),
            "choices": [
                as_choice(message, index).model_dump(mode="json") for index, message in enumerate(said)
            ],
        }
        logger.log("completion", {"request": request, "completion": completion})

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """A call that failed said nothing."""
        self._open.pop(run_id, None)


class LoggingLLM(RunnableBinding):  # type: ignore[type-arg]  # pydantic narrows parameters
    """A chat model whose calls are logged: invoked, streamed, in batches, with tools, structured."""

    def __init__(
        self, llm: Runnable[Any, Any] | None = None, logger: FileLogger | None = None, **fields: Any
    ) -> None:
        if llm is not None and logger is not None:  # else LangChain copies one
            fields = {"bound": llm, "kwargs": {}, "config": {"callbacks": [CallLog(logger)]}}
        super().__init__(**fields)

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> LoggingLLM:
        """Binds tools as LangChain does (tool_choice, strict, ...), and logs the calls."""
        return LoggingLLM(bound=self._chat().bind_tools(tools, **kwargs), kwargs={}, config=self.config)

    def with_structured_output(self, schema: Any, **kwargs: Any) -> Runnable[Any, Any]:
        """Sets structured output as LangChain does (method, include_raw, strict, ...), and logs the calls."""
        structured: Runnable[Any, Any] = self._chat().with_structured_output(schema, **kwargs)
        return structured.with_config(self.config)

    def _chat(self) -> Any:
        return self.bound


ROLLOUT_MODEL = "(the rollout's model)"
"""The value of `model` that stands for whichever model the rollout is of."""

_IDENTITY = (SAMPLE_FIELD, STEP_FIELD, TOKENS_FIELD)


class RolloutChatModel(ChatOpenAI):
    """A `ChatOpenAI` with all its features: tools, structured output, streams, batches, retries,
    configuration.

    A reply's `response_metadata` also names its sample and step.
    """

    art_model: Any = Field(default=None, exclude=True, repr=False)
    """The model whose endpoint is used outside of its own rollouts."""
    invoke_timeout: float | None = Field(default=TIMEOUT_S, exclude=True)
    """Seconds of one call, its retries included; None: no limit but that of each request."""

    def __init__(self, **fields: Any) -> None:
        if "http_client" not in fields:  # LangChain's copies bring everything along
            given = fields.get("art_model")
            waiting, asynchronous = routed_clients(lambda: current_endpoint(given))
            fields |= {"http_client": waiting, "http_async_client": asynchronous}
            fields |= {"base_url": NOWHERE, "api_key": "told at each call"}
            fields["callbacks"] = [*(fields.get("callbacks") or ()), CallLog()]
        super().__init__(**fields)

    def _get_request_payload(
        self, input_: LanguageModelInput, *, stop: list[str] | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        # Asked before openai's retries, which take any failure for the network's.
        endpoint = current_endpoint(self.art_model)
        payload: dict[str, Any] = super()._get_request_payload(input_, stop=stop, **kwargs)
        if payload.get("model") == ROLLOUT_MODEL:
            payload["model"] = endpoint.model
        return payload

    def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
        call = partial(super()._generate, *args, **kwargs)
        return called_within(self.invoke_timeout, call)

    async def _agenerate(self, *args: Any, **kwargs: Any) -> ChatResult:
        return await awaited_within(self.invoke_timeout, super()._agenerate(*args, **kwargs))

    def _stream(self, *args: Any, **kwargs: Any) -> Iterator[ChatGenerationChunk]:
        return iterated_within(self.invoke_timeout, super()._stream(*args, **kwargs))

    async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        async for piece in streamed_within(self.invoke_timeout, super()._astream(*args, **kwargs)):
            yield piece

    def _create_chat_result(
        self, response: dict[str, Any] | openai.BaseModel, generation_info: dict[str, Any] | None = None
    ) -> ChatResult:
        result = super()._create_chat_result(response, generation_info)
        choices = response["choices"] if isinstance(response, dict) else getattr(response, "choices", [])
        for generation, choice in zip(result.generations, choices, strict=False):
            generation.message.response_metadata.update(_identity(choice))
        return result

    def _convert_chunk_to_generation_chunk(
        self, chunk: dict[str, Any], default_chunk_class: type, base_generation_info: dict[str, Any] | None
    ) -> ChatGenerationChunk | None:
        piece = super()._convert_chunk_to_generation_chunk(chunk, default_chunk_class, base_generation_info)
        choices = chunk.get("choices") or (chunk.get("chunk") or {}).get("choices") or []
        if piece is not None and choices and choices[0].get("finish_reason"):
            # Once: chunks are added up, and texts with them.
            piece.generation_info = {**(piece.generation_info or {}), **_identity(choices[0])}
        return piece


def _identity(choice: Any) -> dict[str, Any]:
    fields = choice if isinstance(choice, dict) else (getattr(choice, "model_extra", None) or {})
    return {name: fields[name] for name in _IDENTITY if fields.get(name) is not None}


ANY_FIELDS = ("model", "temperature", "max_tokens", "top_p", "seed", "stop", "n", "max_retries", "timeout")
_FIXED = frozenset({"base_url", "api_key", "http_client", "http_async_client", "art_model"})


class ConfigurableChat(RunnableConfigurableFields):  # type: ignore[type-arg]  # pydantic narrows parameters
    """The configuration also reaches a model with tools: LangChain's own would bind the unconfigured one."""

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[Any, Any]:
        """Binds tools as LangChain does."""
        return self.bind(**_bound(self.default).bind_tools(tools, **kwargs).kwargs)

    def with_structured_output(self, schema: Any, **kwargs: Any) -> Runnable[Any, Any]:
        """Sets structured output as LangChain does. Raises ConfigurationError for include_raw."""
        made = _bound(self.default).with_structured_output(schema, **kwargs)
        first, *rest = made.steps
        if not isinstance(first, RunnableBinding):
            raise ConfigurationError(
                f"with_structured_output({kwargs!r}) of a model with configurable_fields: leave include_raw "
                "out, or make the model without configurable_fields"
            )
        return RunnableSequence(self.bind(**first.kwargs), *rest)


def configurable(
    chat: RolloutChatModel, fields: Literal["any"] | Sequence[str], prefix: str | None
) -> ConfigurableChat:
    """The model with fields that `config={"configurable": {...}}` sets. Raises ConfigurationError."""
    spelled = {known.alias or name: name for name, known in type(chat).model_fields.items()}
    chosen: dict[str, Any] = {}
    for name in ANY_FIELDS if fields == "any" else fields:
        field = spelled.get(name, name)
        if field not in type(chat).model_fields or name in _FIXED:
            raise ConfigurationError(
                f"configurable_fields names {name!r}, which is no field of ChatOpenAI that can be changed "
                f"here; such as {', '.join(ANY_FIELDS)}"
            )
        chosen[field] = ConfigurableField(id=f"{prefix}_{name}" if prefix else name)
    return ConfigurableChat(default=chat, fields=chosen)


def _bound(chat: Any) -> Any:
    return chat
