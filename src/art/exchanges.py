"""The calls that an agent made, each with its request and its reply, in the dialect that it spoke.

    with art.Trajectory() as trajectory:
        await client.chat.completions.create(...)
    trajectory.exchanges.chat_completions[0].response.choices[0]
    trajectory.exchanges.in_order()                     of all dialects, as they were answered

Replies of chat completions, completions and responses are `openai`'s classes, which are loaded when a reply
is. Those of Anthropic's messages are a `MessagesReply`, so that `anthropic` need not be installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, PrivateAttr, field_serializer, field_validator

from art.process.imports import import_lock
from art.wire.message_identity import as_dict

Dialect = Literal["chat_completions", "completions", "responses", "messages"]


class ReplyBlock(BaseModel):
    """A part of a reply of Anthropic's API; its fields are attributes."""

    model_config = ConfigDict(extra="allow")

    type: str = ""


class MessagesReply(BaseModel):
    """A reply of Anthropic's API `/v1/messages`; further fields are attributes, too."""

    model_config = ConfigDict(extra="allow")

    id: str = ""
    type: str = "message"
    role: str = "assistant"
    model: str = ""
    content: list[ReplyBlock] = []
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: dict[str, Any] = {}


@dataclass(frozen=True)
class AnsweredBy:
    """The server that answered. It stays in this process: no dump, file or pickle has it."""

    base_url: str
    """OpenAI's base URL of it, `.../v1`."""
    api_key: str = field(repr=False)

    def __deepcopy__(self, memo: dict[int, Any]) -> AnsweredBy:
        return self

    def __reduce__(self) -> Any:
        return type(None), ()


class RecordedExchange(BaseModel):
    """One call that was answered."""

    dialect: ClassVar[Dialect]
    request: dict[str, Any]
    """The body as it was sent."""
    response: Any
    start_time: datetime
    end_time: datetime
    model: str = ""
    """The name that the reply has, or else the one that was asked for."""
    _answered_by: AnsweredBy | None = PrivateAttr(default=None)

    def completion_tokens(self) -> int | None:
        """Returns the number of sampled tokens that the reply says it has; None where it does not say."""
        usage = as_dict(getattr(self.response, "usage", None)) or {}
        counted = usage.get("completion_tokens", usage.get("output_tokens"))
        return counted if isinstance(counted, int) else None

    @field_validator("response", mode="before")
    @classmethod
    def _as_reply(cls, value: Any) -> Any:
        return read_reply_fields(cls.dialect, value) if isinstance(value, Mapping) else value

    @field_serializer("response")
    def _reply_as_json(self, value: Any) -> Any:
        return as_dict(value)

    @field_serializer("request")
    def _request_as_json(self, value: dict[str, Any]) -> dict[str, Any]:
        return {
            name: [as_dict(one) for one in field] if isinstance(field, list) else as_dict(field)
            for name, field in value.items()
        }


class ChatCompletionsExchange(RecordedExchange):
    """A call of `/v1/chat/completions`. response: `openai.types.chat.ChatCompletion`."""

    dialect = "chat_completions"


class CompletionsExchange(RecordedExchange):
    """A call of `/v1/completions`. response: `openai.types.Completion`."""

    dialect = "completions"


class ResponsesExchange(RecordedExchange):
    """A call of `/v1/responses`. response: `openai.types.responses.Response`."""

    dialect = "responses"


class MessagesExchange(RecordedExchange):
    """A call of `/v1/messages`. response: `MessagesReply`."""

    dialect = "messages"


class TrajectoryExchanges(BaseModel):
    """The calls of a trajectory by their dialect, each list in the order in which they were answered."""

    model_config = ConfigDict(extra="forbid")

    chat_completions: list[ChatCompletionsExchange] = []
    completions: list[CompletionsExchange] = []
    responses: list[ResponsesExchange] = []
    messages: list[MessagesExchange] = []

    def in_order(self) -> list[RecordedExchange]:
        """Returns the calls of all dialects in the order in which they were answered."""
        every = [*self.chat_completions, *self.completions, *self.responses, *self.messages]
        return sorted(every, key=lambda exchange: exchange.end_time)

    def add(self, exchange: RecordedExchange) -> None:
        """Adds a call to the list of its dialect."""
        getattr(self, exchange.dialect).append(exchange)

    def completion_tokens(self) -> int | None:
        """Returns the sampled tokens of all calls whose replies count them; None where none does."""
        counts = [count for one in self.in_order() if (count := one.completion_tokens()) is not None]
        return sum(counts) if counts else None

    def __len__(self) -> int:
        return sum(len(getattr(self, name)) for name in EXCHANGES)


EXCHANGES: Mapping[Dialect, type[RecordedExchange]] = {
    "chat_completions": ChatCompletionsExchange,
    "completions": CompletionsExchange,
    "responses": ResponsesExchange,
    "messages": MessagesExchange,
}


def read_reply_fields(dialect: Dialect, fields: Mapping[str, Any]) -> Any:
    """Returns a reply's JSON as the class of its dialect. Fields that a server leaves out stay missing."""
    if dialect == "messages":
        return MessagesReply.model_validate(fields)
    with import_lock:
        from openai.types import Completion
        from openai.types.chat import ChatCompletion
        from openai.types.responses import Response
    kinds: Mapping[str, Any] = {
        "chat_completions": ChatCompletion,
        "completions": Completion,
        "responses": Response,
    }
    return kinds[dialect].construct(**fields)


def exchange_of(
    dialect: Dialect, request: Mapping[str, Any], response: Any, started_at: float, ended_at: float
) -> RecordedExchange:
    """Returns a call of this moment. Times are Unix seconds. The lists of the request are copied: a program
    goes on writing to its own.
    """
    asked = {name: list(field) if isinstance(field, list) else field for name, field in request.items()}
    return EXCHANGES[dialect].model_construct(
        request=asked,
        response=response,
        start_time=datetime.fromtimestamp(started_at, UTC),
        end_time=datetime.fromtimestamp(ended_at, UTC),
        model=str(getattr(response, "model", None) or request.get("model") or ""),
    )
