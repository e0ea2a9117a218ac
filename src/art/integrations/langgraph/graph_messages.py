"""LangChain's messages in the shape of OpenAI's, and a log of a graph's calls as JSON lines."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from art.wire.rollouts import SAMPLE_FIELD, STEP_FIELD, TOKENS_FIELD

if TYPE_CHECKING:
    from openai.types.chat.chat_completion import Choice


def langchain_msg_to_openai(message: Any) -> dict[str, Any]:
    """One message as a dict, its tool calls with `function.arguments` as JSON text."""
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
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    def load_logs(self) -> list[dict[str, Any]]:
        """All lines, in the order in which they were written; none without a file."""
        if not self.path.exists():
            return []
        with self.path.open(encoding="utf-8") as file:
            return [json.loads(line) for line in file]
