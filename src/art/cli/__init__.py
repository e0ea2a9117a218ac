"""The verbs of `art`. Each verb's module is loaded when it is used, so that `art --help` answers at once."""

from __future__ import annotations

from art.cli.main import app

__all__ = ["app"]
