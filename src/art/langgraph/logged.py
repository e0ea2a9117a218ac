"""Calls of a LangChain chat model, written down as they end: whole or streamed, with their tools."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import BaseMessage
from langchain_core.outputs import LLMResult
from langchain_core.runnables import Runnable, RunnableBinding

from art.langgraph.endpoint import CURRENT_CONFIG
from art.langgraph.logging import FileLogger
from art.langgraph.message_utils import as_choice, langchain_msg_to_openai


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
        """As in LangChain (tool_choice, strict, ...), logged."""
        return LoggingLLM(bound=self._chat().bind_tools(tools, **kwargs), kwargs={}, config=self.config)

    def with_structured_output(self, schema: Any, **kwargs: Any) -> Runnable[Any, Any]:
        """As in LangChain (method, include_raw, strict, ...), logged."""
        structured: Runnable[Any, Any] = self._chat().with_structured_output(schema, **kwargs)
        return structured.with_config(self.config)

    def _chat(self) -> Any:
        return self.bound
