"""Where a model is found on a server."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from art.backend import AnyModel


def model_path(model: AnyModel) -> str:
    """The route of a model; others lie below it."""
    return f"/art/models/{quote(model.project, safe='')}/{quote(model.name, safe='')}"
