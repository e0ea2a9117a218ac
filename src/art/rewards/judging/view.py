"""What a judge is shown of a trajectory: its conversations as plain messages, without what only we need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class View:
    """One trajectory as data for a judge."""

    conversations: tuple[tuple[dict[str, Any], ...], ...]
    """The main conversation, then further histories; each a list of plain messages, tool outputs digested."""
    tools: tuple[dict[str, Any], ...] = ()
    """OpenAI schemas of the tools that the agent had."""
    length: int = 0
    """Characters that the agent itself wrote: what a judge may be swayed by."""
