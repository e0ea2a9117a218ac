"""What the program that merges a checkpoint reads and writes."""

from __future__ import annotations

from typing import Literal

from art.wire.records import Strict


class MergeRequest(Strict):
    """The one line on the standard input of `python -m art_extensions.publish.merging.merge`."""

    checkpoint: str
    """The folder of a step: an adapter, or all weights."""
    base_model: str
    to: str
    """The folder to write, which must not exist."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """The dtype of the written weights."""
    chat_template: str | None = None
    """Takes the place of the base model's."""


class MergeReply(Strict):
    """The one line on its standard output."""

    dtype: str | None = None
    parameters: int | None = None
    difference: float | None = None
    """Largest relative difference of the logits before and after merging; None: there was no adapter."""
    error: str | None = None
    """Why nothing was written."""
