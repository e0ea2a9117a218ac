"""An engine in its worker process, as the server runs it, asked from here."""

from __future__ import annotations

import asyncio
import secrets
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from art.engine.registry import worker_command
from art.engine.remote import RemoteEngine
from art.wire.engine import WorkerReady, WorkerStart

START_SECONDS = 300.0
STOP_SECONDS = 60.0


@asynccontextmanager
async def running_engine(
    base: Path, options: dict[str, Any], *, log: Path | None = None
) -> AsyncIterator[RemoteEngine]:
    """Its client. log: where its standard error goes; None: to ours."""
    start = WorkerStart(base_model=str(base), key=secrets.token_hex(16), options=options)
    stderr = None if log is None else log.open("wb")
    worker = await asyncio.create_subprocess_exec(
        *worker_command("builtin"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr
    )
    if stderr is not None:
        stderr.close()
    assert worker.stdin is not None and worker.stdout is not None
    worker.stdin.write(start.model_dump_json().encode() + b"\n")
    try:
        line = await asyncio.wait_for(worker.stdout.readline(), START_SECONDS)
        ready = WorkerReady.model_validate_json(line)
        if not ready.ready:
            raise SystemExit(f"the engine does not start: {ready.error}")
        client = RemoteEngine(f"http://127.0.0.1:{ready.port}", start.key)
        yield client
        await client.close()
    finally:
        worker.stdin.close()
        await asyncio.wait_for(worker.wait(), STOP_SECONDS)
