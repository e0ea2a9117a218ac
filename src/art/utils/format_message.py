"""Messages as text: the import path that users know."""

from __future__ import annotations

from art.message_text import format_message

__all__ = ["format_message"]
