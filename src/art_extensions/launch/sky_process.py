"""SkyPilot as another program: each question starts its interpreter, and has a deadline.

What is asked goes to its standard input, so that a secret is on no command line; its answer is JSON lines.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from art.errors import BoxError, ConfigurationError, DeadlineError
from art.process.runtimes import end_process
from art_extensions.launch.environment import find_skypilot

PROGRAM = Path(__file__).with_name("sky_program.py")
ASK_S = 300.0
LAUNCH_S = 3600.0
DOWN_S = 900.0
_LINE_LIMIT = 1 << 22
_DEADLINES = {"launch": LAUNCH_S, "down": DOWN_S}
_log = logging.getLogger(__name__)


class SkyPilot:
    """SkyPilot in an environment of its own. environment: its folder; None: that of `art runtime install`."""

    def __init__(self, environment: Path | None = None) -> None:
        self._environment = environment
        self._python: Path | None = None

    async def check(
        self, cluster: str, task: Mapping[str, Any], secrets: Mapping[str, str], env_file: Path | None
    ) -> str:
        """Returns the task as YAML, secrets masked. Raises ConfigurationError, with SkyPilot's message."""
        reply = await self._ask("check", cluster, task=task, secrets=secrets, env_file=_path_text(env_file))
        return str(reply["yaml"])

    async def launch(
        self,
        cluster: str,
        task: Mapping[str, Any],
        secrets: Mapping[str, str],
        env_file: Path | None,
        *,
        autodown: bool,
    ) -> Path | None:
        """Starts the box. Returns the ssh configuration that names it; None: the user's own.

        Raises ConfigurationError for a task that SkyPilot refuses, BoxError, DeadlineError.
        """
        reply = await self._ask(
            "launch", cluster, task=task, secrets=secrets, env_file=_path_text(env_file), autodown=autodown
        )
        return Path(reply["ssh_config"]) if reply["ssh_config"] else None

    async def status(self, cluster: str) -> tuple[str | None, Path | None]:
        """Returns `UP`, `INIT` or `STOPPED`, or None (there is no such box); and its ssh configuration."""
        reply = await self._ask("status", cluster)
        named = reply.get("ssh_config")
        return reply["status"], Path(named) if named else None

    async def job(self, cluster: str) -> str | None:
        """Returns the state of the server's job. SkyPilot's words: `RUNNING`, `FAILED_SETUP` ..."""
        reply = await self._ask("job", cluster)
        state: str | None = reply["job"]
        return state

    async def cancel(self, cluster: str) -> None:
        """Ends the server's job; the box goes down later. Raises BoxError, DeadlineError."""
        await self._ask("cancel", cluster)

    async def down(self, cluster: str) -> None:
        """Ends the box and removes its disks. Raises BoxError, DeadlineError."""
        await self._ask("down", cluster)

    async def _ask(self, operation: str, cluster: str, **rest: Any) -> Any:
        python = await self._interpreter()
        process = await asyncio.create_subprocess_exec(
            str(python),
            "-I",
            str(PROGRAM),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=_LINE_LIMIT,
        )
        deadline_s = _DEADLINES.get(operation, ASK_S)
        try:
            async with asyncio.timeout(deadline_s):
                return await _converse(process, {"operation": operation, "cluster": cluster, **rest})
        except TimeoutError as error:
            raise DeadlineError(
                f"SkyPilot did not finish {operation!r} of box {cluster!r} within {deadline_s:g} s; look at "
                f"`{python.with_name('sky')} status`"
            ) from error
        finally:
            await end_process(process)

    async def _interpreter(self) -> Path:
        if self._python is None:
            self._python, version = await find_skypilot(self._environment)
            _log.debug("SkyPilot %s of %s", version, self._python)
        return self._python


def _path_text(path: Path | None) -> str | None:
    return None if path is None else str(path)


async def _converse(process: asyncio.subprocess.Process, request: Mapping[str, Any]) -> Any:
    """Returns the result of a request. Raises ConfigurationError (a refused task), BoxError."""
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    errors = asyncio.create_task(_last_lines(process.stderr))
    process.stdin.write(json.dumps(request).encode() + b"\n")
    process.stdin.close()
    about = f"{request['operation']} of box {request['cluster']!r}"
    try:
        while line := await process.stdout.readline():
            reply = json.loads(line)
            if "log" in reply:
                _log.info("%s: %s", request["cluster"], reply["log"])
            elif "error" in reply and reply["kind"] == "refused":
                raise ConfigurationError(
                    f"SkyPilot refuses the task of box {request['cluster']!r}: {reply['error']}"
                )
            elif "error" in reply:
                raise BoxError(f"SkyPilot failed at {about}: {reply['error']}")
            else:
                await process.wait()
                return reply["result"]
        await process.wait()
        raise BoxError(f"SkyPilot's program ended without an answer to {about}: {await errors}")
    finally:
        errors.cancel()
        await asyncio.wait([errors])


async def _last_lines(stream: asyncio.StreamReader) -> str:
    lines: list[str] = []
    while line := await stream.readline():
        text = line.decode(errors="replace").rstrip()
        _log.debug("%s", text)
        lines = [*lines[-7:], text]
    return " | ".join(lines) or "it said nothing"
