"""`RemoteBackend`: a server reached over HTTP. Its name is loaded on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from art.remote.backend import RemoteBackend as RemoteBackend

__all__ = ["RemoteBackend"]


def __getattr__(name: str) -> Any:
    if name != "RemoteBackend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from art.remote.backend import RemoteBackend

    return RemoteBackend
