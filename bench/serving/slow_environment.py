"""A slow environment over HTTP, as a program of its own: prints its port.

python -m bench.serving.slow_environment SECONDS CAPACITY STEPS [PORT [WORDS]]

It has the paths of a resource server of NeMo-Gym. Each step takes SECONDS, an episode ends after STEPS, and
more than CAPACITY requests at a time are answered with 503. `/served` tells what it has seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

WORD, WORDS = "board ", 200
"""What an observation tells, about a kilobyte."""


class SlowEnvironment:
    """The sessions by their numbers, and what came in."""

    def __init__(self, seconds: float, capacity: int, steps: int, words: int = WORDS) -> None:
        self._seconds, self._capacity, self._steps = seconds, capacity, steps
        self._filling = WORD * words
        self._sessions: dict[str, int] = {}
        self._count = 0
        self.seen = {"refused": 0, "most_at_once": 0, "most_open": 0, "finished": 0}

    @contextlib.asynccontextmanager
    async def _taking(self) -> AsyncIterator[bool]:
        if self._count >= self._capacity:
            self.seen["refused"] += 1
            yield False
            return
        self._count += 1
        self.seen["most_at_once"] = max(self.seen["most_at_once"], self._count)
        try:
            yield True
        finally:
            self._count -= 1

    async def reset(self, request: Request) -> Response:
        async with self._taking() as taken:
            if not taken:
                return busy()
            name = f"session-{len(self._sessions) + self.seen['finished']}"
            self._sessions[name] = 0
            self.seen["most_open"] = max(self.seen["most_open"], len(self._sessions))
            response = JSONResponse({"observation": f"{self._filling}0"})
            response.set_cookie("session", name)
            return response

    async def step(self, request: Request) -> Response:
        await request.body()
        async with self._taking() as taken:
            if not taken:
                return busy()
            await asyncio.sleep(self._seconds)
            name = request.cookies["session"]
            self._sessions[name] += 1
            done = self._sessions[name] == self._steps
            if done:
                del self._sessions[name]
                self.seen["finished"] += 1
            told = None if done else f"{self._filling}{self._sessions[name]}"
            return JSONResponse({"observation": told, "reward": 1.0, "terminated": done})

    async def describe(self, request: Request) -> Response:
        return JSONResponse({"paths": {"/reset": {}, "/step": {}}})

    async def served(self, request: Request) -> Response:
        return JSONResponse(self.seen)


def busy() -> Response:
    return JSONResponse({"detail": "busy"}, status_code=503, headers={"retry-after": "0.5"})


def main(seconds: str, capacity: str, steps: str, port: str = "0", words: str = str(WORDS)) -> None:
    world = SlowEnvironment(float(seconds), int(capacity), int(steps), int(words))
    app = Starlette(
        routes=[
            Route("/openapi.json", world.describe),
            Route("/served", world.served),
            Route("/reset", world.reset, methods=["POST"]),
            Route("/step", world.step, methods=["POST"]),
        ]
    )
    listening = socket.create_server(("127.0.0.1", int(port)), backlog=4096)
    sys.stdout.write(f"{listening.getsockname()[1]}\n")
    sys.stdout.flush()
    config = uvicorn.Config(app, log_level="warning", timeout_keep_alive=120)
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main(*sys.argv[1:])
