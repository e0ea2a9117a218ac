"""Calls become a trajectory: each continues the history that its request repeats, or begins one.

Two messages are the same turn whatever a client did to it on its way back to the server. Clients drop nulls
and reasoning, write `content` null or empty, strip replies, parse arguments and write them again. None of
that makes it another conversation. Other text does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from openai.types.chat import ChatCompletion
from openai.types.chat.chat_completion import Choice

from art.exchanges import RecordedExchange, TrajectoryExchanges
from art.history import History
from art.recording.conversations import CallConversation, chat_conversation, conversations_of
from art.types import get_messages, sample_id
from art.wire.message_identity import as_dict, message_key, sorted_json
from art.wire.rollouts import SAMPLE_FIELD


def tools_key(tools: Any) -> str:
    """Equal for two spellings of one list of tools; empty without tools."""
    return sorted_json([as_dict(tool) for tool in tools]) if tools else ""


class RecordedTrajectory(Protocol):
    """Has the fields that a recorder writes into: an `art.Trajectory`."""

    messages_and_choices: Any
    tools: Any
    additional_histories: list[History]
    exchanges: TrajectoryExchanges


class Recorder:
    """Writes what it hears into one trajectory, until it is closed.

    with_exchanges: calls of every dialect, which the trajectory keeps, too; False: chat completions alone.
    """

    def __init__(self, trajectory: RecordedTrajectory, *, with_exchanges: bool = False) -> None:
        self.trajectory = trajectory
        self._with_exchanges = with_exchanges
        self.calls: list[tuple[Any, int, RecordedExchange]] = []
        """The items of a history, the place of a reply among them, and the call that it answered."""
        self._responses: dict[str, CallConversation] = {}
        self._open = True
        self.on_close: list[Callable[[], None]] = []
        """Take in the streams that nobody reads to their end or closes."""

    def close(self) -> None:
        """Stops recording: the trajectory may already be in training."""
        for settle in self.on_close:
            settle()
        self.on_close.clear()
        self._open = False

    def on_exchange(self, exchange: RecordedExchange) -> None:
        """Adds a call. With exchanges, one whose reply was cut off is left out."""
        if not self._with_exchanges:
            if exchange.dialect == "chat_completions":
                self.on_completion(exchange.request, exchange.response)
        elif self._open and _is_complete(exchange):
            self.add_conversations(exchange)  # first: what cannot be read is no exchange either
            self.trajectory.exchanges.add(exchange)

    def add_conversations(self, exchange: RecordedExchange) -> None:
        """Adds a call to the histories. A reply that no sample is known of (another server's) is context."""
        for found in conversations_of(exchange, self._responses):
            said = [choice if sample_id(choice) else get_messages([choice])[0] for choice in found.choices]
            for items in self._add(found.messages, found.tools, said, None):
                self.calls.append((items, len(items) - 1, exchange))
            if exchange.dialect == "responses":
                self._responses[exchange.response.id] = found

    def on_completion(
        self, request: dict[str, Any], completion: ChatCompletion, *, parent_id: str | None = None
    ) -> None:
        """Add a completion. Of several choices the first continues the conversation, each other is a history.

        A reply that was cut off before its end is context: no sample of it exists. `parent_id`: the sample
        whose ids the prompt extends, which tells conversations of the same words apart.
        """
        if not self._open or not completion.choices:
            return
        found = chat_conversation(request, completion)
        self._add(found.messages, found.tools, [_turn(choice) for choice in found.choices], parent_id)

    def _add(
        self, messages: list[Any], tools: list[Any] | None, turns: Sequence[Any], parent_id: str | None
    ) -> list[list[Any]]:
        """Returns the items of each history that one of the turns now ends."""
        first, *further = turns
        history = self._matching(messages, tools, parent_id)
        if history is None:
            history = self._begin([], tools)
        known = history.messages_and_choices
        before = [*known, *messages[len(known) :]]
        known[:] = [*before, first]
        history.tools = tools
        # Earlier choices stay where they are: each is trained once.
        others = [self._begin([*_as_context(before), turn], tools) for turn in further]
        return [known, *(other.messages_and_choices for other in others)]

    def _begin(self, items: list[Any], tools: list[Any] | None) -> History:
        history = History(messages_and_choices=items, tools=tools)
        self.trajectory.additional_histories.append(history)
        return history

    def _matching(
        self, messages: list[Any], tools: list[Any] | None, parent_id: str | None
    ) -> RecordedTrajectory | History | None:
        """The longest history that the request repeats from its first message on; an empty one fits any.

        Of several with the same words, the one whose last turn the request names.
        """
        asked, offered = [message_key(message) for message in messages], tools_key(tools)
        histories: list[RecordedTrajectory | History] = [
            self.trajectory,
            *self.trajectory.additional_histories,
        ]
        fitting = [history for history in histories if _repeats(history, asked, offered)]

        def likeness(history: RecordedTrajectory | History) -> tuple[int, bool]:
            items = history.messages_and_choices
            return len(items), bool(items) and _is_named(items[-1], messages[len(items) - 1], parent_id)

        return max(fitting, key=likeness, default=None)


def _repeats(history: RecordedTrajectory | History, asked: Sequence[bytes], offered: str) -> bool:
    items = history.messages_and_choices
    if len(items) > len(asked) or (items and tools_key(history.tools) != offered):
        return False
    return all(_item_key(item) == key for item, key in zip(items, asked, strict=False))


def _is_named(item: Any, repeated: dict[str, Any], parent_id: str | None) -> bool:
    """Returns whether a message is sent back as this very turn: by its sample, or by the ids of its calls."""
    if not isinstance(item, Choice):
        return False
    if parent_id is not None:
        return (item.model_extra or {}).get(SAMPLE_FIELD) == parent_id
    called = [call.id for call in item.message.tool_calls or ()]
    return bool(called) and called == [as_dict(call).get("id") for call in repeated.get("tool_calls") or ()]


def _item_key(item: Any) -> bytes:
    return message_key(item.message.model_dump(mode="json") if isinstance(item, Choice) else item)


def _is_complete(exchange: RecordedExchange) -> bool:
    if exchange.dialect != "chat_completions":
        return True
    choices = exchange.response.choices
    return bool(choices) and all(choice.finish_reason for choice in choices)


def _turn(choice: Choice) -> Any:
    return choice if choice.finish_reason else get_messages([choice])[0]


def _as_context(items: list[Any]) -> list[Any]:
    return [get_messages([item])[0] if isinstance(item, Choice) else item for item in items]
