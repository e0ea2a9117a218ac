"""Sandboxes of Harbor's own classes: Docker, Podman and the services that Harbor knows.

Harbor needs Python 3.12, so that it runs in an interpreter of its own, with a process between
(`container_worker.py`).
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from art.errors import ConfigurationError, EnvironmentFailedError, EnvironmentTimeoutError
from art.process.environment import inherited_variables
from art_extensions.harbor.sandbox import CommandResult, CutOutput
from art_extensions.harbor.task_folders import HarborTask

WORKER = Path(__file__).with_name("container_worker.py")
LINE_BYTES = 64 << 20
"""The longest reply: a command's whole output."""
GRACE_S = 30.0
"""The seconds between the deadline of a request and the end of a worker that does not answer."""
STOP_S = 120.0
ERROR_BYTES = 4000


class HarborContainer:
    """A sandbox of one of Harbor's classes. python: the interpreter that has Harbor."""

    def __init__(self, task: HarborTask, kind: str, *, python: str | None) -> None:
        """Raises: ConfigurationError where there is no such interpreter."""
        self._task, self._kind, self._python = task, kind, _interpreter(python)
        self._process: asyncio.subprocess.Process | None = None
        self._asked = 0
        """Requests so far."""

    async def start(self) -> None:
        """Starts the worker and the sandbox. Raises: EnvironmentFailedError, EnvironmentTimeoutError."""
        self._process = await asyncio.create_subprocess_exec(
            self._python,
            str(WORKER),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=LINE_BYTES,
            env=inherited_variables(),
        )
        await self._ask("make", self._task.setup_s, folder=str(self._task.folder), kind=self._kind)
        await self._ask("start", self._task.setup_s)

    async def run(
        self,
        command: str,
        *,
        timeout_s: float,
        variables: Mapping[str, str] | None = None,
        workdir: str | None = None,
    ) -> CommandResult:
        """Runs a shell command. Raises: EnvironmentFailedError, EnvironmentTimeoutError."""
        given = {**self._task.variables, **(variables or {})}
        done = await self._ask(
            "run", timeout_s, command=command, timeout_s=timeout_s, variables=given, workdir=workdir
        )
        output = CutOutput()
        output.add(str(done["output"]).encode("utf-8", "replace"))
        return CommandResult(code=int(done["code"]), output=output.text(), timed_out=bool(done["timed_out"]))

    async def upload(self, folder: Path, target: str) -> None:
        """Copies what is in a folder. Raises as `run`."""
        await self._ask("upload", self._task.setup_s, folder=str(folder), target=target)

    async def close(self) -> None:
        """Stops the sandbox, then the worker."""
        if self._process is None:
            return
        with suppress(EnvironmentFailedError):
            await self._ask("stop", STOP_S)
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()
        await self._process.wait()

    async def _ask(self, name: str, seconds: float, **given: Any) -> dict[str, Any]:
        """Returns the worker's reply. One that nobody waits for any more is cancelled there, too."""
        process, what = self._process, f"Harbor's sandbox {self._kind!r}: {name}"
        assert process is not None and process.stdin is not None and process.stdout is not None
        self._asked += 1
        try:
            process.stdin.write(json.dumps({"do": name, "number": self._asked, **given}).encode() + b"\n")
            async with asyncio.timeout(seconds + GRACE_S):
                await process.stdin.drain()
                reply = await _reply_to(self._asked, process.stdout)
        except asyncio.CancelledError:
            with suppress(OSError):
                process.stdin.write(b'{"do": "cancel"}\n')
            raise
        except TimeoutError as error:
            process.kill()
            raise EnvironmentTimeoutError(f"{what} did not end within {seconds:g} s") from error
        except (OSError, ValueError) as error:
            raise EnvironmentFailedError(f"{what} failed: {error}") from error
        if reply is None:
            raise EnvironmentFailedError(f"{what} failed: its process ended")
        if "error" in reply:
            raise EnvironmentFailedError(f"{what} failed: {reply['error']:.{ERROR_BYTES}}")
        return reply


async def _reply_to(number: int, replies: asyncio.StreamReader) -> dict[str, Any] | None:
    """Returns the reply to a request; those to earlier ones, which were cancelled, are left out. None: the
    worker has ended.
    """
    while line := await replies.readline():
        reply: dict[str, Any] = json.loads(line)
        if reply["number"] == number:
            return reply
    return None


def _interpreter(python: str | None) -> str:
    if python is None and find_spec("harbor") is not None:
        return sys.executable
    if python is None or not Path(python).is_file():
        found = "no interpreter is named" if python is None else f"python={python!r} is no file"
        raise ConfigurationError(
            f"Harbor's sandboxes need Harbor, which needs Python 3.12, and {found}. Make one with "
            "`python3.12 -m venv harbor && harbor/bin/pip install harbor`, and give "
            'python="harbor/bin/python"'
        )
    return python
