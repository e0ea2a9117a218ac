"""Customers of tau2 that are functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


async def hurried(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> Any:
    """Looks at its phone, says what it sees and hangs up."""
    own = [one for one in messages if one["role"] == "assistant"]
    if not own:
        call = {"name": "check_status_bar", "arguments": "{}"}
        return {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "1", "type": "function", "function": call}],
        }
    return str(messages[-1]["content"]) if len(own) == 1 else f"###STOP### {len(tools)}"


def broken(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> Any:
    raise KeyError("no phone")
