"""Where a model is found on a server."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from art.backend import AnyModel


def model_path(model: AnyModel) -> str:
    """The route of a model; others lie below it."""
    return named_path(model.project, model.name)


def named_path(project: str, name: str) -> str:
    """The same of a model that is known by its names alone."""
    return f"/art/models/{quote(project, safe='')}/{quote(name, safe='')}"
