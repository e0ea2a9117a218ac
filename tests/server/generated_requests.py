"""Requests that schemathesis makes of the OpenAPI document, in chains too, and what the server answered."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from live import listening
from tenants_world import OPERATOR

from art.server.app import App
from art.server.settings import LimitSettings

CONFIG = """
[parameters]
"path.model" = "player"
"path.job_id" = "j"
"path.step" = 3
"path.file" = "adapter_model.safetensors"
"body.model" = "player"

[[operations]]
include-path = "/art/models/{project}/{name}/checkpoints/{step}/files"
parameters = { "path.project" = "games", "path.name" = "player" }

[[operations]]
include-path = "/art/models/{project}/{name}/checkpoints/{step}/files/{file}"
parameters = { "path.project" = "games", "path.name" = "player" }

[[operations]]
include-path = "/art/rollouts"
parameters = { "body.project" = "games", "body.name" = "player" }
"""
"""What exists, so that requests reach further than a 404. Nothing that would start a worker."""

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
    "ignored_auth",
    "unsupported_method",
)
REFUSALS_OF_THE_WORLD = frozenset({503, 507})
"""What a server answers where a worker, or room on the disk, is missing."""
WITHIN_S = 900.0


@dataclass
class Told:
    """What a run of schemathesis found, and what the server counted."""

    status: int | None = None
    output: str = ""
    requests: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    """Answers from 500 on, and those that broke off, by their request."""


class _Counted:
    """An application whose requests and failures are counted."""

    def __init__(self, app: Any, told: Told) -> None:
        self._app, self._told = app, told

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def count(event: Any) -> None:
            status = event.get("status", 200)
            if status >= 500 and status not in REFUSALS_OF_THE_WORLD:
                self._told.failures[f"{scope['method']} {scope['path']}: {status}"] += 1
            await send(event)

        self._told.requests += 1
        try:
            await self._app(scope, receive, count)
        except Exception as error:
            self._told.failures[f"{scope['method']} {scope['path']}: {error!r}"] += 1
            raise


async def generated_requests(
    app: App, folder: Path, *, examples: int, seed: int, within: float = WITHIN_S
) -> Told:
    """Runs schemathesis against a server on a real socket. examples: of each operation and phase.

    Raises TimeoutError after `within` seconds.
    """
    told = Told()
    counted: Any = _Counted(app, told)
    async with listening(counted, LimitSettings()) as address:
        config = folder / "schemathesis.toml"
        await asyncio.to_thread(config.write_text, CONFIG)
        command = [
            *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(config)),
            *("run", f"{address}/openapi.json"),
            *("--header", f"Authorization: Bearer {OPERATOR}"),
            *("--checks", ",".join(CHECKS)),
            *("--phases", "examples,coverage,fuzzing,stateful"),
            *("--mode", "all", "--max-examples", str(examples), "--seed", str(seed)),
            *("--generation-database", "none"),
            *("--request-timeout", "60", "--suppress-health-check", "all", "--no-color"),
        ]
        running = await asyncio.create_subprocess_exec(
            *command, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        try:
            async with asyncio.timeout(within):
                output, _ = await running.communicate()
        finally:
            if running.returncode is None:
                running.kill()
                await running.wait()
    told.status, told.output = running.returncode, output.decode()
    return told
