"""`ServerlessBackend`: a tenant's share of an ART server. Its name is loaded on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from art.serverless.backend import ServerlessBackend as ServerlessBackend

__all__ = ["ServerlessBackend"]


def __getattr__(name: str) -> Any:
    if name != "ServerlessBackend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from art.serverless.backend import ServerlessBackend

    return ServerlessBackend
