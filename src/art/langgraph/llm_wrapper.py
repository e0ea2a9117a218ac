"""The chat model that LangGraph integrations replace: names without code behind them yet."""

from __future__ import annotations

from typing import Any

from art.langgraph import INSTEAD
from art.unbuilt import unbuilt_names

NAMES = dict.fromkeys(
    (
        "CURRENT_CONFIG",
        "LoggingLLM",
        "add_thread",
        "create_messages_from_logs",
        "init_chat_model",
        "wrap_rollout",
    ),
    INSTEAD,
)


def __getattr__(name: str) -> Any:
    return unbuilt_names(__name__, NAMES, name)
