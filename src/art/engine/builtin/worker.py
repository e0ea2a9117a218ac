"""The builtin engine as a process: `python -m art.engine.builtin.worker`, spoken to as `art.wire.engine`
says."""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import logging
import os
import signal
import socket
import sys
import threading
import time

import orjson
import uvicorn
from pydantic import ValidationError

from art.engine.builtin.engine import BuiltinEngine
from art.engine.builtin.face import make_app
from art.errors import ARTError
from art.wire.engine import WorkerReady, WorkerStart

GRACE_SECONDS = 5.0
"""After the parent is gone, this long to stop in order."""


def main() -> int:
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    _keep_freed_memory()
    # The supervisor asks a stuck worker for its stacks with this signal.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    try:
        start = WorkerStart.model_validate_json(sys.stdin.readline())
    except ValidationError as error:
        # Without the input: it may hold the key.
        _say(WorkerReady(ready=False, error=f"the start line is unfit: {error.errors(include_input=False)}"))
        return 2
    try:
        return asyncio.run(_serve(start))
    except ARTError as error:
        _say(WorkerReady(ready=False, error=str(error)))
        return 1


def _keep_freed_memory() -> None:
    """Tell glibc to reuse freed blocks: a forward pass frees and asks for the same megabytes again and again.

    Giving them back to the system in between made a pass over 3,000 tokens half as slow again (page faults).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if sys.platform == "linux" and mallopt is not None:
        trim_threshold, mmap_threshold = -1, -3
        mallopt(mmap_threshold, 1 << 30)
        mallopt(trim_threshold, (1 << 31) - 1)


async def _serve(start: WorkerStart) -> int:
    engine = await BuiltinEngine.start(start.base_model, start.options)
    listener = _listen(start.host, start.port)
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


def _listen(host: str, port: int) -> socket.socket:
    """A socket that says it is TCP: asyncio turns Nagle's delay (40 ms a reply) off only for those."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    listener.listen(256)
    return listener


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


if __name__ == "__main__":
    sys.exit(main())
