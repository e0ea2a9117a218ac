"""LangChain messages as OpenAI messages: names without code behind them yet."""

from __future__ import annotations

from typing import Any

from art.langgraph import INSTEAD
from art.unbuilt import unbuilt_names

NAMES = dict.fromkeys(("convert_langgraph_messages", "langchain_msg_to_openai"), INSTEAD)


def __getattr__(name: str) -> Any:
    return unbuilt_names(__name__, NAMES, name)
