"""Try again: the import path that users know."""

from __future__ import annotations

from art.retrying import retry

__all__ = ["retry"]
