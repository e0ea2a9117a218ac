"""The conversations of a trajectory, each in the dialect that it was spoken in.

    trajectory.history()                    the only one; an error where there are several
    trajectory.histories()                  all, in the order in which they began
    trajectory.chat_completions_history()   the only one that was spoken in that dialect
    history.as_chat_completions_history()   as a chat, whatever the dialect

A trajectory whose messages were written by hand has histories of chat completions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from art.errors import ConfigurationError
from art.exchanges import Dialect, RecordedExchange
from art.history import History
from art.recording.recorder import Recorder
from art.trajectories import Trajectory
from art.types import get_messages, is_choice
from art.wire.message_identity import as_dict


class DialectHistory(BaseModel):
    """A conversation in the dialect that it was spoken in."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    dialect: ClassVar[Dialect]
    model: str = ""
    exchanges: list[RecordedExchange] = Field(default_factory=list, repr=False)
    """Its calls; each extends the one before. None where messages were written by hand."""
    _chat: History = PrivateAttr()
    _answered: dict[int, RecordedExchange] = PrivateAttr(default_factory=dict)

    def as_chat_completions_history(self) -> ChatCompletionsHistory:
        """Returns the conversation as a chat."""
        chat = ChatCompletionsHistory(
            model=self.model,
            exchanges=self.exchanges,
            messages=[dict(message) for message in get_messages(self._chat.messages_and_choices)],
            tools=self._chat.tools,
            sources=[self._answered.get(place) for place in range(len(self._chat.messages_and_choices))],
        )
        chat._chat, chat._answered = self._chat, self._answered
        return chat


class ChatCompletionsHistory(DialectHistory):
    """Messages of chat completions. sources: for each message the call that it answered, or None."""

    dialect = "chat_completions"
    messages: list[dict[str, Any]] = []
    tools: list[Any] | None = None
    sources: list[RecordedExchange | None] = Field(default=[], repr=False)


class AnthropicMessagesHistory(DialectHistory):
    """Messages of Anthropic's API, the last reply among them."""

    dialect = "messages"
    system: Any = None
    messages: list[dict[str, Any]] = []
    tools: list[Any] | None = None


class ResponsesHistory(DialectHistory):
    """Items of the responses API, those of the replies among them."""

    dialect = "responses"
    instructions: str | None = None
    items: list[dict[str, Any]] = []
    tools: list[Any] | None = None


class CompletionsStringHistory(DialectHistory):
    """A text that was continued, and its continuation."""

    dialect = "completions"
    prompt: str = ""
    completion: str = ""


class CompletionsTokenHistory(DialectHistory):
    """Ids that were continued, and their continuation (of `return_token_ids`)."""

    dialect = "completions"
    prompt: list[int] = []
    completion: list[int] = []


HistoryT = TypeVar("HistoryT", bound=DialectHistory)


def histories(
    trajectory: Trajectory, *, model: str | None = None, reconcile_text_equivalent_tokenizations: bool = False
) -> list[DialectHistory]:
    """Returns all conversations, in the order in which they began. model: those with it alone.

    reconcile_text_equivalent_tokenizations: has nothing to do here, as ids come from the ledger.
    """
    if not trajectory.exchanges:
        written = [History(messages_and_choices=trajectory.messages_and_choices, tools=trajectory.tools)]
        chats = [_of_chat(one, []) for one in (*written, *trajectory.additional_histories)]
        return [chat for chat in chats if chat._chat.messages_and_choices]
    heard = Trajectory()
    recorder = Recorder(heard, with_exchanges=True)
    for exchange in trajectory.exchanges.in_order():
        if model is None or exchange.model == model:
            recorder.add_conversations(exchange)
    main = History(messages_and_choices=heard.messages_and_choices, tools=heard.tools)
    return [
        _of_dialect(one, [(at, call) for items, at, call in recorder.calls if items is items_of])
        for one, items_of in (
            (main, heard.messages_and_choices),
            *((other, other.messages_and_choices) for other in heard.additional_histories),
        )
        if items_of
    ]


def history(trajectory: Trajectory, **options: Any) -> DialectHistory:
    """Returns the only conversation. Raises: ConfigurationError where there is none, or where there are
    several.
    """
    return _only(histories(trajectory, **options), "history", "histories")


def chat_completions_histories(trajectory: Trajectory, **options: Any) -> list[ChatCompletionsHistory]:
    """Returns the conversations of chat completions."""
    return _of_kind(histories(trajectory, **options), ChatCompletionsHistory)


def chat_completions_history(trajectory: Trajectory, **options: Any) -> ChatCompletionsHistory:
    """Returns the only conversation of chat completions. Raises: ConfigurationError."""
    found = chat_completions_histories(trajectory, **options)
    return _only(found, "chat_completions_history", "chat_completions_histories")


def anthropic_messages_histories(trajectory: Trajectory, **options: Any) -> list[AnthropicMessagesHistory]:
    """Returns the conversations of Anthropic's messages."""
    return _of_kind(histories(trajectory, **options), AnthropicMessagesHistory)


def anthropic_messages_history(trajectory: Trajectory, **options: Any) -> AnthropicMessagesHistory:
    """Returns the only conversation of Anthropic's messages. Raises: ConfigurationError."""
    found = anthropic_messages_histories(trajectory, **options)
    return _only(found, "anthropic_messages_history", "anthropic_messages_histories")


def responses_histories(trajectory: Trajectory, **options: Any) -> list[ResponsesHistory]:
    """Returns the conversations of the responses API."""
    return _of_kind(histories(trajectory, **options), ResponsesHistory)


def responses_history(trajectory: Trajectory, **options: Any) -> ResponsesHistory:
    """Returns the only conversation of the responses API. Raises: ConfigurationError."""
    found = responses_histories(trajectory, **options)
    return _only(found, "responses_history", "responses_histories")


def completions_string_histories(trajectory: Trajectory, **options: Any) -> list[CompletionsStringHistory]:
    """Returns the texts that were continued."""
    return _of_kind(histories(trajectory, **options), CompletionsStringHistory)


def completions_string_history(trajectory: Trajectory, **options: Any) -> CompletionsStringHistory:
    """Returns the only text that was continued. Raises: ConfigurationError."""
    found = completions_string_histories(trajectory, **options)
    return _only(found, "completions_string_history", "completions_string_histories")


def completions_token_histories(trajectory: Trajectory, **options: Any) -> list[CompletionsTokenHistory]:
    """Returns the prompts of ids that were continued."""
    return _of_kind(histories(trajectory, **options), CompletionsTokenHistory)


def completions_token_history(trajectory: Trajectory, **options: Any) -> CompletionsTokenHistory:
    """Returns the only prompt of ids that was continued. Raises: ConfigurationError."""
    found = completions_token_histories(trajectory, **options)
    return _only(found, "completions_token_history", "completions_token_histories")


def _of_kind(found: Iterable[DialectHistory], kind: type[HistoryT]) -> list[HistoryT]:
    return [one for one in found if isinstance(one, kind)]


def _only(found: Sequence[HistoryT], name: str, names: str) -> HistoryT:
    if len(found) == 1:
        return found[0]
    if not found:
        raise ConfigurationError(f"{name}(): the trajectory has no such history")
    kinds = ", ".join(type(one).__name__ for one in found)
    raise ConfigurationError(
        f"the trajectory has {len(found)} such histories ({kinds}), and {name}() gives the only one: "
        f"use {names}(), or choose by `model=`"
    )


def _of_dialect(chat: History, calls: Sequence[tuple[int, RecordedExchange]]) -> DialectHistory:
    """chat: the conversation as a chat. calls: the places of replies in it, and the calls they answered."""
    exchanges = [exchange for _, exchange in calls]
    last = exchanges[-1]
    if any(exchange.dialect != last.dialect for exchange in exchanges) or last.dialect == "chat_completions":
        return _of_chat(chat, calls)
    request, reply = last.request, as_dict(last.response)
    found: DialectHistory
    if last.dialect == "messages":
        said = {"role": "assistant", "content": reply["content"]}
        messages = [as_dict(message) for message in request.get("messages") or ()]
        found = AnthropicMessagesHistory(
            system=request.get("system"), messages=[*messages, said], tools=request.get("tools")
        )
    elif last.dialect == "responses":
        found = ResponsesHistory(
            instructions=request.get("instructions"), items=_items(exchanges), tools=request.get("tools")
        )
    else:
        found = _of_completion(request, _choice_at_the_end(reply, chat))
    found.model, found.exchanges = last.model, exchanges
    found._chat, found._answered = chat, dict(calls)
    return found


def _choice_at_the_end(reply: Mapping[str, Any], chat: History) -> Mapping[str, Any]:
    """The choice of a completion that this conversation ends with."""
    end: Any = chat.messages_and_choices[-1]
    index = end.index if is_choice(end) else 0
    return next((one for one in reply["choices"] if one.get("index") == index), reply["choices"][0])


def _of_completion(request: Mapping[str, Any], said: Mapping[str, Any]) -> DialectHistory:
    prompt = request.get("prompt") or ""
    if isinstance(prompt, list) and all(isinstance(one, int) for one in prompt):
        return CompletionsTokenHistory(prompt=prompt, completion=said.get("token_ids") or [])
    text = prompt if isinstance(prompt, str) else str(prompt[0])
    return CompletionsStringHistory(prompt=text, completion=said.get("text") or "")


def _of_chat(chat: History, calls: Sequence[tuple[int, RecordedExchange]]) -> ChatCompletionsHistory:
    found = ChatCompletionsHistory()
    found._chat, found._answered = chat, dict(calls)
    found.exchanges = [exchange for _, exchange in calls]
    found.model = found.exchanges[-1].model if calls else ""
    return found.as_chat_completions_history()


def _items(exchanges: Sequence[RecordedExchange]) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    for exchange in exchanges:
        given = exchange.request.get("input")
        asked = (
            [{"type": "message", "role": "user", "content": given}]
            if isinstance(given, str)
            else [as_dict(item) for item in given or ()]
        )
        before = items if exchange.request.get("previous_response_id") else []
        items = [*before, *asked, *as_dict(exchange.response)["output"]]
    return items
