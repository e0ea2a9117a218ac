"""A worker's life, whatever its engine: start line, ready line, its routes until the parent is gone."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import uvicorn
from pydantic import ValidationError

from art.engine.served import ServedEngine
from art.engine.worker_face import make_app
from art.errors import ARTError
from art.process.collector import resume_collector
from art.process.listening import listen
from art.wire.engine import WorkerReady, WorkerStart
from art.wire.flaws import flaws_without_values

GRACE_SECONDS = 5.0
"""After the parent is gone, this long to stop in order."""
StartEngine = Callable[[WorkerStart], Awaitable[ServedEngine[Any]]]


def run_worker(start_engine: StartEngine) -> int:
    """Serve the engine that the start line describes until standard input ends. Returns the exit code."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    # The supervisor asks a stuck worker for its stacks with this signal.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    try:
        start = WorkerStart.model_validate_json(sys.stdin.readline())
    except ValidationError as error:
        # Without the input: it may hold the key.
        _say(WorkerReady(ready=False, error=f"the start line is unfit: {flaws_without_values(error)}"))
        return 2
    try:
        return asyncio.run(_serve(start, start_engine))
    except ARTError as error:
        _say(WorkerReady(ready=False, error=str(error)))
        return 1


async def _serve(start: WorkerStart, start_engine: StartEngine) -> int:
    engine = await start_engine(start)
    resume_collector()
    listener = listen(start.host, start.port)
    config = uvicorn.Config(
        make_app(engine, start.key),
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="websockets-sansio",
        ws_per_message_deflate=False,
        ws_max_size=1 << 28,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    threading.Thread(target=_stop_with_parent, args=(server,), daemon=True).start()
    _say(WorkerReady(ready=True, port=listener.getsockname()[1]))
    await server.serve(sockets=[listener])
    await engine.close()
    return 0


def _stop_with_parent(server: uvicorn.Server) -> None:
    """Standard input ends when the parent does, however it ended."""
    while sys.stdin.buffer.read(1 << 16):
        pass
    server.should_exit = True
    time.sleep(GRACE_SECONDS)
    os._exit(1)


def _say(ready: WorkerReady) -> None:
    sys.stdout.buffer.write(orjson.dumps(ready.model_dump()) + b"\n")
    sys.stdout.buffer.flush()
