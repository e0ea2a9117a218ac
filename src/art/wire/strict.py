"""The base of every record that crosses a process."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """A record whose unknown fields are refused by name."""

    model_config = ConfigDict(extra="forbid")
