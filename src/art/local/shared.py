"""One server a folder in this program: a notebook's cell that is run again meets the server it began."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from art.errors import ConfigurationError
from art.local.supervisor import ServerProcess, SupervisorLimits
from art.wire.models import RegisterRequest


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalServer:
    """A server process, and the models that are registered again when it is started again."""

    process: ServerProcess
    registered: dict[tuple[str, str], RegisterRequest] = field(default_factory=dict)


@lru_cache(maxsize=1)
def _servers() -> dict[Path, LocalServer]:
    """By data folder."""
    return {}


def local_server(
    folder: Path, options: Mapping[str, Any], limits: SupervisorLimits | None = None
) -> LocalServer:
    """The server of a folder: the one that this program has for it already, or a new one, not yet started.

    Raises ConfigurationError where one runs with other options: two cannot share a folder.
    """
    folder = folder.resolve()
    known = _servers().get(folder)
    if known is not None:
        same = known.process.options == dict(options) and known.process.limits == (
            limits or SupervisorLimits()
        )
        if same:
            return known
        if known.process.pid is not None:
            raise ConfigurationError(
                f"this program runs a server in {str(folder)!r} with other options "
                f"({known.process.options!r}, not {dict(options)!r}): close that backend first, or give the "
                "same options"
            )
    made = LocalServer(process=ServerProcess(folder, options, limits=limits))
    _servers()[folder] = made
    return made
