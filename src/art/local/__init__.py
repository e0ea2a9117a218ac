"""`LocalBackend`: a server on this machine. Its name is loaded on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from art.local.backend import LocalBackend as LocalBackend

__all__ = ["LocalBackend"]


def __getattr__(name: str) -> Any:
    if name != "LocalBackend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from art.local.backend import LocalBackend

    return LocalBackend
