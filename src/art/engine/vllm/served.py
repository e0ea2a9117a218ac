"""What is known of a vLLM server before it is asked for anything."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Served:
    """The server and the one model that it serves."""

    base_model: str
    model: str
    """Its name there."""
    max_context: int
    vocab_size: int
    device: str
    dtype: str
    end_of_text: int | None
    version: str
    sleep_mode: bool
