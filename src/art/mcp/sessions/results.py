"""What tools and resources of an MCP server answer, as text for a model."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class ToolResult:
    """The answer of a tool."""

    text: str
    """What a model reads: the text parts, with placeholders for images and sounds."""
    is_error: bool = False
    """The tool says that it failed."""
    truncated: bool = False
    """The text was longer than the limit."""

    def limited(self, limit: int | None) -> ToolResult:
        """With about `limit` characters at most: the head, how much is missing, and the tail."""
        if limit is None or len(self.text) <= limit:
            return self
        tail = limit // 5
        head = limit - tail
        missing = len(self.text) - limit
        end = self.text[-tail:] if tail else ""
        text = f"{self.text[:head]}\n[... {missing} characters are left out ...]\n{end}"
        return ToolResult(text=text, is_error=self.is_error, truncated=True)


def tool_result(answer: Any) -> ToolResult:
    """Of the SDK's `CallToolResult`. Structured content counts where there is no text."""
    text = content_text(answer.content)
    if not answer.content and answer.structured_content is not None:
        text = json.dumps(answer.structured_content, ensure_ascii=False)
    return ToolResult(text=text, is_error=bool(answer.is_error))


def content_text(blocks: Iterable[Any]) -> str:
    """The blocks of an answer, one below the other."""
    return "\n".join(_block_text(block) for block in blocks)


def _block_text(block: Any) -> str:
    if block.type == "text":
        return str(block.text)
    if block.type in ("image", "audio"):
        return f"[{block.type}: {block.mime_type}, {_bytes(block.data)} bytes]"
    if block.type == "resource":
        return resource_text(block.resource)
    return f"[{block.type}: {getattr(block, 'uri', '')}]"


def resource_text(contents: Any) -> str:
    """One part of a resource: its text, or what kind of bytes it has."""
    if (text := getattr(contents, "text", None)) is not None:
        return str(text)
    return f"[{contents.mime_type or 'application/octet-stream'}: {_bytes(contents.blob)} bytes]"


def _bytes(base64: str) -> int:
    return len(base64.rstrip("=")) * 3 // 4
