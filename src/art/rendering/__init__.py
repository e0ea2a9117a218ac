"""Messages to token ids and back, one renderer a model family. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

GREETING: tuple[Mapping[str, str], ...] = (
    MappingProxyType({"role": "user", "content": "Hello. Say yes, no or maybe."}),
)
"""Fixed text, no prompt of a user: engine and trainer must agree on its ids before a model is served."""
