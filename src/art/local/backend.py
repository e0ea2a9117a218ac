"""A server of our own on this machine, reached like any other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from art.errors import ConfigurationError
from art.local.experimental import CheckpointTransfers
from art.local.references import bring_adapter
from art.local.shared import local_server
from art.local.supervisor import SupervisorLimits, check_options
from art.remote.backend import RemoteBackend
from art.remote.connection import ServerConnection
from art.remote.jobs import JobDeadlines
from art.remote.per_loop import PerLoop
from art.remote.server_config import ServerConfig
from art.storage.location import model_folder
from art.tracking.model_file import write_model_file
from art.tracking.trajectory_log.migration import auto_migrate_on_register
from art.types import LocalTrainResult
from art.wire.jobs import TrainResultInfo

if TYPE_CHECKING:
    from art.backend import AnyModel, AnyTrainableModel

log = logging.getLogger(__name__)

SERVER_OPTIONS = frozenset({"allow_origins", "control", "engine", "limits", "teacher", "trainer"})


class LocalBackend(CheckpointTransfers, RemoteBackend):
    """Sample and train on this machine: a server in a process of its own, started when it is first needed.

    path: where models, checkpoints and logs are kept (`.art` in the current folder). gpu_cost_per_hour_usd:
    of one GPU; each logged training step then tells `costs/gpu`. server_options: `engine`, `trainer`,
    `control`, `limits`, `teacher` and `allow_origins` of the server's settings. in_process has no effect: it
    is there for older programs.

    The server ends with `close()`, with the `with` block, or with the program, whichever comes first. One
    that died is started again with its models, and unfinished training jobs go on. Backends of one program
    on one folder share its server.
    """

    def __init__(
        self,
        *,
        path: str | Path | None = None,
        in_process: bool = False,
        gpu_cost_per_hour_usd: float | None = None,
        server_options: Mapping[str, Any] | None = None,
        deadlines: JobDeadlines | None = None,
        supervisor_limits: SupervisorLimits | None = None,
    ) -> None:
        if in_process:
            log.info("in_process=True has no effect: the server always has a process of its own")
        check_options(server_options or {}, SERVER_OPTIONS)
        super().__init__("http://127.0.0.1", "", deadlines=deadlines)
        self._path = Path(path or ".art").absolute()
        self.gpu_cost_per_hour_usd = gpu_cost_per_hour_usd
        self._shared = local_server(self._path, server_options or {}, supervisor_limits)
        self._server, self._registered = self._shared.process, self._shared.registered
        self._starting = PerLoop(asyncio.Lock)
        self._connection = ServerConnection(self._address, self._revive, self._server.state)

    async def _address(self) -> tuple[str, str]:
        await self._ensure_server()
        return self._server.url, self._server.key

    async def _revive(self) -> None:
        await self._ensure_server()

    async def _ensure_server(self) -> None:
        if self._shared.is_ready:
            return
        # One thread for all who wait: they are as many as there are rollouts.
        async with self._starting.get():
            if not self._shared.is_ready:
                await asyncio.to_thread(self._shared.bring_up)

    async def register(self, model: AnyModel) -> None:
        """Make the model known; its files are kept in the backend's folder.

        Logs and checkpoints that an older program left there are brought into today's layout first.
        """
        model.base_path = str(self._path)
        await asyncio.to_thread(auto_migrate_on_register, model_folder(self._path, model.project, model.name))
        await super().register(model)
        write_model_file(model)

    def _place(self, server: ServerConfig) -> None:
        own = {"host": self._server.host, "port": self._server.port, "api_key": self._server.key}
        other = {name: value for name, value in server.place.items() if value != own[name]}
        if other and self._server.port:
            raise ConfigurationError(
                f"_openai_client_config['server_args'] gives another {' and '.join(other)}, but the server "
                f"of this backend runs already, at {self._server.url}; give it with the first register, or "
                "make another LocalBackend"
            )
        self._server.host = server.host or self._server.host
        self._server.port = server.port or self._server.port
        self._server.key = server.api_key or self._server.key

    async def _reference_folder(self, model: AnyTrainableModel, path: str) -> str:
        return str(await asyncio.to_thread(bring_adapter, self._path, model.project, Path(path)))

    def _result(self, info: TrainResultInfo, metrics: dict[str, float]) -> LocalTrainResult:
        return LocalTrainResult(info.step, metrics, sheet=info.sheet, checkpoint_path=info.checkpoint_path)

    async def close(self) -> None:
        """End the server and its workers."""
        await super().close()
        await asyncio.to_thread(self._server.stop)

    def __enter__(self) -> LocalBackend:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    async def __aenter__(self) -> LocalBackend:
        return self
