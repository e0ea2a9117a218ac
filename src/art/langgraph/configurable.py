"""A chat model some of whose fields a run's configuration may change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from langchain_core.runnables import ConfigurableField, Runnable, RunnableBinding, RunnableSequence
from langchain_core.runnables.configurable import RunnableConfigurableFields

from art.errors import ConfigurationError
from art.langgraph.chat_model import RolloutChatModel

ANY_FIELDS = ("model", "temperature", "max_tokens", "top_p", "seed", "stop", "n", "max_retries", "timeout")
_FIXED = frozenset({"base_url", "api_key", "http_client", "http_async_client", "given"})


class ConfigurableChat(RunnableConfigurableFields):  # type: ignore[type-arg]  # pydantic narrows parameters
    """The configuration also reaches a model with tools: LangChain's own would bind the unconfigured one."""

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[Any, Any]:
        """As in LangChain."""
        return self.bind(**_bound(self.default).bind_tools(tools, **kwargs).kwargs)

    def with_structured_output(self, schema: Any, **kwargs: Any) -> Runnable[Any, Any]:
        """As in LangChain. Raises ConfigurationError for include_raw."""
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
