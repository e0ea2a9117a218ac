"""Replies without their logprobs: the import path that users know."""

from __future__ import annotations

from art.logprobs import strip_logprobs

__all__ = ["strip_logprobs"]
