"""The hosted service's own HTTP client: an import path of older programs. An ART server has other routes."""

from __future__ import annotations

from typing import Any

from art.unbuilt import unbuilt

INSTEAD = (
    "`art.ServerlessBackend(api_key=..., base_url=...)` speaks to an ART server; docs/server.md lists the "
    "routes for programs of your own"
)


def __getattr__(name: str) -> Any:
    return unbuilt(__name__, INSTEAD, name)
