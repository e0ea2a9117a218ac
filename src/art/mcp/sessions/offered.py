"""The tools that a model sees in a rollout."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from art.mcp.default_tools import complete_task_tool
from art.mcp.types import MCPTool

NAME_LIMIT = 64
"""Characters of a tool's name that OpenAI-compatible endpoints take."""
_FORBIDDEN = re.compile(r"[^a-zA-Z0-9_-]")


class Offered:
    """A server's tools and `complete_task`, under names that every endpoint takes.

    The protocol allows names such as `files/read.text`; the model sees `files_read_text`.
    """

    def __init__(self, tools: Sequence[MCPTool]) -> None:
        self._names: dict[str, str] = {}
        self.schemas: list[dict[str, Any]] = []
        for tool in tools:
            shown = self._free(_FORBIDDEN.sub("_", tool.name)[:NAME_LIMIT])
            self._names[shown] = tool.name
            self.schemas.append(replace(tool, name=shown).to_tool_schema())
        self.schemas.append(complete_task_tool.to_tool_schema())

    @property
    def has_tools(self) -> bool:
        """Whether the server has any tool to offer."""
        return bool(self._names)

    @property
    def names(self) -> list[str]:
        """What the model may call."""
        return [*self._names, complete_task_tool.name]

    def find(self, shown: str) -> str | None:
        """The server's name of the tool that the model calls so."""
        return self._names.get(shown)

    def _free(self, name: str) -> str:
        taken = {complete_task_tool.name, *self._names}
        free, number = name, 2
        while free in taken:
            ending = f"_{number}"
            free = name[: NAME_LIMIT - len(ending)] + ending
            number += 1
        return free
