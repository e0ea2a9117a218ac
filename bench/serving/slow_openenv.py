"""A slow environment of OpenEnv behind its own server, run where the package is: prints its port.

python slow_openenv.py SECONDS SESSIONS STEPS
"""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app


class SlowMove(Action):
    text: str


class SlowBoard(Observation):
    board: str


def main(seconds: float, sessions: int, steps: int) -> None:
    class SlowWorld(Environment[Any, Any, State]):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            super().__init__()
            self.steps = 0

        def reset(self, seed: int | None = None, episode_id: str | None = None, **more: Any) -> Any:
            self.steps = 0
            return SlowBoard(board="board " * 200)

        def step(self, action: Any, timeout_s: float | None = None, **more: Any) -> Any:
            raise NotImplementedError

        async def step_async(self, action: Any, timeout_s: float | None = None, **more: Any) -> Any:
            await asyncio.sleep(seconds)
            self.steps += 1
            return SlowBoard(board="board " * 200, done=self.steps == steps, reward=1.0)

        @property
        def state(self) -> State:
            return State(step_count=self.steps)

    app = create_fastapi_app(SlowWorld, SlowMove, SlowBoard, max_concurrent_envs=sessions)
    listening = socket.create_server(("127.0.0.1", 0), backlog=4096)
    sys.stdout.write(f"{listening.getsockname()[1]}\n")
    sys.stdout.flush()
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
