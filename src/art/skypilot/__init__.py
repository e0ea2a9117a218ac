"""Machines rented through SkyPilot: names without code behind them."""

from __future__ import annotations

from typing import Any

from art.unbuilt import unbuilt_names

INSTEAD = (
    "start `art serve` on the machine that you rented and register with `art.RemoteBackend(url, api_key)`"
)
NAMES = dict.fromkeys(("SkyPilotBackend", "stop_server"), INSTEAD)


def __getattr__(name: str) -> Any:
    return unbuilt_names(__name__, NAMES, name)
