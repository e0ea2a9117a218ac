"""What is said to the process that converts a GGUF file, and what it answers."""

from __future__ import annotations

from typing import Literal

from art.wire.records import Strict


class ConversionRequest(Strict):
    """The one line on the standard input of `python -m art_extensions.gguf.conversion`."""

    source: str
    """A path, `hf://...`, or the name of a file that a package ships."""
    cache: str
    """The folder in which the model's folder is made."""
    patience_s: float
    """How long to wait for another program that converts the same file, and for a download."""


class ConversionReply(Strict):
    """A line on its standard output: a phase that begins, or the end."""

    phase: str | None = None
    folder: str | None = None
    error: str | None = None
    """Why nothing was written."""
    kind: Literal["configuration", "extra", "disk", "deadline"] = "configuration"
