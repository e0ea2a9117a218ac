"""One server a folder in this program: a notebook's cell that is run again meets the server it began."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from art.errors import ARTError, ConfigurationError, ServerUnreachableError
from art.local.supervisor import ServerProcess, SupervisorLimits
from art.remote.connection import ServerConnection
from art.remote.registration import REGISTER_S
from art.wire.models import ModelInfo, RegisterRequest

_log = logging.getLogger(__name__)


@dataclass(kw_only=True, slots=True)
class LocalServer:
    """A server process, and the models that are registered again when it is started again. Thread-safe."""

    process: ServerProcess
    registered: dict[tuple[str, str], RegisterRequest] = field(default_factory=dict)
    _ready: int | None = None
    """The process that knows the models."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_ready(self) -> bool:
        """Whether it runs and knows the models."""
        return self._ready is not None and self._ready == self.process.pid

    def bring_up(self) -> None:
        """Have it run, with the models. One that dies on the way is started again, while its limits allow.
        Blocks.

        Raises what `ServerProcess.ensure_running` raises; what a model's registration raises, once: the
        others are served nevertheless.
        """
        with self._lock:
            while not self.is_ready:
                self.process.ensure_running()
                pid = self.process.pid
                if pid is None:
                    continue  # its death is counted there
                try:
                    failures = asyncio.run(self._register_again(pid))
                except ServerUnreachableError as error:
                    if not self.process.has_died:  # closed meanwhile
                        raise
                    _log.warning("the server died while its models were registered again: %s", error)
                    continue
                self._ready = pid
                if failures:
                    raise failures[0]

    async def _register_again(self, pid: int) -> list[ARTError]:
        """Raises ServerUnreachableError when the process has died."""
        address, failures = (self.process.url, self.process.key), list[ARTError]()

        async def known() -> tuple[str, str]:
            return address

        async def look() -> None:
            if self.process.pid != pid:
                raise ServerUnreachableError(self.process.state())

        connection = ServerConnection(known, look, self.process.state)
        try:
            for request in list(self.registered.values()):
                try:
                    await connection.call("POST", "/art/models", ModelInfo, request, deadline_s=REGISTER_S)
                except ServerUnreachableError:
                    raise
                except ARTError as error:
                    _log.error("%s/%s cannot be registered again: %s", request.project, request.name, error)
                    failures.append(error)
        finally:
            await connection.close()
        return failures


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
