"""Renderers by model name: a name without code behind it."""

from __future__ import annotations

from typing import Any

from art.unbuilt import unbuilt_names

INSTEAD = "the server finds the renderer of a base model by itself (`art audit-model` checks it)"
NAMES = dict.fromkeys(("get_renderer_name",), INSTEAD)


def __getattr__(name: str) -> Any:
    return unbuilt_names(__name__, NAMES, name)
