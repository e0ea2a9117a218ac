"""The hosted service's own HTTP client: a name without code behind it. An ART server has other routes."""

from __future__ import annotations

from typing import Any

from art.unbuilt import unbuilt_names

NAMES = {
    "Client": "`art.ServerlessBackend(api_key=..., base_url=...)` speaks to an ART server; docs/server.md "
    "lists the routes for programs of your own",
}


def __getattr__(name: str) -> Any:
    return unbuilt_names(__name__, NAMES, name)
