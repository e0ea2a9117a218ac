"""Training at Tinker's service without a proxy: a name without code behind it."""

from __future__ import annotations

from typing import Any

from art.unbuilt import unbuilt_names

INSTEAD = "`art.LocalBackend` trains on this machine, `art.RemoteBackend(url, api_key)` on another"
NAMES = dict.fromkeys(("TinkerNativeBackend",), INSTEAD)


def __getattr__(name: str) -> Any:
    return unbuilt_names(__name__, NAMES, name)
