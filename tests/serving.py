"""An ASGI application behind a real socket, in the test's own event loop or in a thread; uvicorn itself looks
every tenth of a second whether it shall stop, and these tests stop hundreds."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import uvicorn

from art.process.resources import listen
from waiting import DEADLINE_S, eventually, until


class QuickServer(uvicorn.Server):
    """uvicorn that stops when it is told to, and leaves signals to the test."""

    _stop: asyncio.Event | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        await self.on_tick(0)  # writes the headers that each reply has
        if not self.should_exit:
            await self._stop.wait()

    async def shutdown(self, sockets: Any = None) -> None:
        """As uvicorn's: listen no more, end idle connections, wait for the others as long as allowed."""
        for one in [*self.servers, *(sockets or [])]:
            one.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        with contextlib.suppress(TimeoutError):
            await until(
                lambda: not self.server_state.connections and not self.server_state.tasks,
                timeout=self.config.timeout_graceful_shutdown or DEADLINE_S,
            )
        for task in self.server_state.tasks:
            task.cancel()
        await self.lifespan.shutdown()

    def stop(self) -> None:
        """From any thread."""
        self.should_exit = True
        if self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)


@contextlib.asynccontextmanager
async def serving(app: Any, *, address: str = "127.0.0.1", **options: Any) -> AsyncIterator[str]:
    """Serve in this event loop until the block ends: its address."""
    listener = listen(address, 0)
    server = QuickServer(uvicorn.Config(app, **{"log_config": None, "lifespan": "off"} | options))
    task = asyncio.create_task(server.serve(sockets=[listener]))
    await until(lambda: server.started or task.done())
    try:
        yield f"http://{address}:{listener.getsockname()[1]}"
    finally:
        server.stop()
        await task


@contextlib.contextmanager
def serving_in_a_thread(app: Any, **options: Any) -> Iterator[str]:
    """Serve in an event loop of its own until the block ends: its address."""
    listener = listen("127.0.0.1", 0)
    config = {"log_config": None, "lifespan": "off", "timeout_graceful_shutdown": 1} | options
    server = QuickServer(uvicorn.Config(app, **config))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
    thread.start()
    eventually(lambda: server.started)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.stop()
        thread.join(DEADLINE_S)
