"""`python -m art.server`: the server as another process's child.

standard input     one JSON line of `ServerSettings`; its end ends the server and its workers
standard output    one JSON line: {"ready": true, "port": N, ...} or {"ready": false, "error": "..."}; then
                   {"note": "..."} for each line of the log that the program's user must read
standard error     the log
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from art.errors import ARTError
from art.process.program_notes import ProgramNotes
from art.process.running_server import RunningServer
from art.server.process import run
from art.server.settings import parse_settings


def main() -> int:
    """Serve until standard input ends. Returns the exit status."""
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    for chatty in ("httpx", "httpcore", "uvicorn.error"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    logging.getLogger().addHandler(ProgramNotes(_write_line))
    if hasattr(faulthandler, "register"):  # whoever watches asks where a server hangs that does not answer
        faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True)
    _leave_removed_folder()
    try:
        settings = parse_settings(sys.stdin.buffer.readline())
        run(settings, on_ready=_tell_ready, until=_stdin_end)
    except ARTError as error:
        _write_line({"ready": False, "error": str(error), "kind": type(error).__name__})
        return 1
    except Exception as error:
        logging.getLogger(__name__).exception("the server met a defect")
        _write_line({"ready": False, "error": f"internal error: {error!r}; the log has the place"})
        return 1
    return 0


def _leave_removed_folder() -> None:
    """Leave a current folder that its user has removed: libraries that are imported ask for its name."""
    try:
        os.getcwd()
    except FileNotFoundError:
        os.chdir("/")


def _tell_ready(ready: RunningServer) -> None:
    _write_line({"ready": True, "port": ready.port, "version": version("agent-reinforcement-trainer")})


def _write_line(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def _stdin_end(arm: Callable[[], None]) -> asyncio.Future[None]:
    """Done once standard input ends: the parent closed it, or died."""
    descriptor = sys.stdin.fileno()
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()

    def set_ended() -> None:
        if not ended.done():
            ended.set_result(None)

    def read() -> None:
        # Past the buffered reader: a thread that holds its lock would abort the interpreter's exit.
        while os.read(descriptor, 4096):
            continue
        arm()
        # The loop may have ended first, by a signal.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(set_ended)

    # A daemon: a blocked read must not keep the process alive.
    threading.Thread(target=read, name="stdin", daemon=True).start()
    return ended


if __name__ == "__main__":
    sys.exit(main())
