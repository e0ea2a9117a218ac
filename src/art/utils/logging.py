"""Coloured lines for people: the import path that users know."""

from __future__ import annotations

from art.tracking.console import _C, _ts, dim, err, info, ok, step, warn

__all__ = ["_C", "_ts", "dim", "err", "info", "ok", "step", "warn"]
