"""A resource server of the real NeMo-Gym with the fault, and the `info` of its steps, that each row has.

python faulty_server.py    prints its port; run where the package is installed

A child serves, and another one follows when it ends: as where servers are watched.
"""

from __future__ import annotations

import asyncio
import os
import runpy
import socket
import sys
from pathlib import Path
from typing import Any

WORKER = Path(__file__).parents[3] / "src" / "art_extensions" / "environments" / "nemo_gym_worker.py"
HOST = "127.0.0.1"
DIED = 3


def serve(listening: socket.socket) -> None:
    runpy.run_path(str(WORKER))["stand_in_for_missing"]()
    import uvicorn
    from nemo_gym.base_resources_server import BaseResourcesServerConfig
    from nemo_gym.config_types import BaseServerConfig
    from nemo_gym.server_utils import ServerClient
    from omegaconf import DictConfig
    from resources_servers.gymnasium import GymnasiumServer

    class FaultyServer(GymnasiumServer):
        config: BaseResourcesServerConfig

        async def reset(self, metadata: dict[str, Any], session_id: str | None = None) -> Any:
            return None, metadata.get("info") or {}

        async def step(self, action: Any, metadata: dict[str, Any], session_id: str | None = None) -> Any:
            fault = metadata["fault"]
            if fault == "hangs":
                await asyncio.sleep(300)
            if fault == "dies":
                os._exit(DIED)
            if fault == "floods":
                return "flood " * (50_000_000 // 6), 1.0, False, False, {}
            reward = {"nan": float("nan"), "word": "great"}.get(fault, 1.0)
            return None, reward, True, False, metadata.get("info") or {}

    port = listening.getsockname()[1]
    fields = {"name": "faulty", "host": HOST, "port": port, "entrypoint": "app.py", "domain": "other"}
    server = FaultyServer(
        config=BaseResourcesServerConfig.model_validate(fields),
        server_client=ServerClient(
            head_server_config=BaseServerConfig(host=HOST, port=port), global_config_dict=DictConfig({})
        ),
    )
    app = server.setup_webserver()
    server.setup_exception_middleware(app)
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listening])


def main() -> None:
    listening = socket.create_server((HOST, 0))
    sys.stdout.write(f"{listening.getsockname()[1]}\n")
    sys.stdout.flush()
    os.dup2(2, 1)  # servers print
    while True:
        child = os.fork()
        if not child:
            serve(listening)
            return
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) != DIED:
            return


if __name__ == "__main__":
    main()
