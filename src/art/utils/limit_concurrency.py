"""At most so many calls at once: the import path that users know."""

from __future__ import annotations

from art.concurrency import limit_concurrency

__all__ = ["limit_concurrency"]
