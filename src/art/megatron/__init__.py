"""Training over many GPUs with Megatron: a name without code behind it."""

from __future__ import annotations

from typing import Any

from art.unbuilt import unbuilt_names

INSTEAD = (
    "`art.LocalBackend` trains on this machine's GPU, `art.RemoteBackend(url, api_key)` on another machine's"
)
NAMES = dict.fromkeys(("MegatronBackend",), INSTEAD)


def __getattr__(name: str) -> Any:
    return unbuilt_names(__name__, NAMES, name)
