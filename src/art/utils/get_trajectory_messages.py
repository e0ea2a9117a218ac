"""A trajectory's messages: the import path that users know."""

from __future__ import annotations

from art.message_text import get_trajectory_messages

__all__ = ["get_trajectory_messages"]
