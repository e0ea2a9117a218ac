"""A box through ssh: short commands there, files from there, and a port of its loopback address here.

SkyPilot writes the box's name, user, address and key into ~/.ssh/config, so `ssh NAME` is all that is needed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shlex
import signal
from dataclasses import dataclass
from pathlib import Path

from art.errors import BoxError, DeadlineError
from art.process.reaper import reaper
from art.process.resources import find_free_tcp_port
from art.process.running_server import RunningServer
from art.process.runtimes import complete_command, end_process
from art_extensions.launch.task import DATA

COMMAND_S = 60.0
OPEN_S = 60.0
COPY_S = 600.0
CLOSE_S = 5.0
_PAUSE_S = 0.1
_OPTIONS = (
    *("-o", "BatchMode=yes", "-o", "ConnectTimeout=20"),
    *("-o", "ControlMaster=no", "-o", "ControlPath=none"),
    *("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4"),
)
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BoxShell:
    """ssh to a box. config: the file that names it; None: the user's own."""

    box: str
    config: Path | None = None

    def command(self, *words: str) -> list[str]:
        """Returns the command line of an ssh to the box, without the command there."""
        named = () if self.config is None else ("-F", str(self.config))
        return ["ssh", *named, *_OPTIONS, *words, self.box]

    async def read(self, command: str) -> str:
        """Returns what a command of the box prints. Raises BoxError, DeadlineError."""
        return await _output([*self.command("-T"), command], f"ssh {self.box}", COMMAND_S)

    async def find_server(self) -> RunningServer:
        """Returns the address and the key of the box's server. Raises BoxError where there is none yet."""
        text = await self.read(f"cat {shlex.quote(f'{DATA}/server/address.json')}")
        try:
            return RunningServer(**json.loads(text))
        except (ValueError, TypeError) as error:
            # Without the text: it holds the key.
            raise BoxError(f"the server of box {self.box!r} tells its address in another form") from error

    async def copy_folder(self, there: str, here: Path) -> None:
        """Brings what is new in a folder of the box. Raises BoxError, DeadlineError."""
        await asyncio.to_thread(here.mkdir, parents=True, exist_ok=True)
        shell = shlex.join(self.command()[:-1])
        command = ["rsync", "-a", "--timeout=60", "-e", shell, f"{self.box}:{there}/", f"{here}/"]
        await _output(command, f"rsync from {self.box}", COPY_S)


async def _output(command: list[str], name: str, deadline_s: float) -> str:
    try:
        code, out, err = await complete_command(command, deadline_s)
    except FileNotFoundError as error:
        raise BoxError(f"{command[0]} is not installed; install it with your system's packages") from error
    except TimeoutError as error:
        raise DeadlineError(f"{name} did not answer within {deadline_s:g} s") from error
    if code != 0:
        raise BoxError(f"{name} ended with code {code}: {' | '.join(err.splitlines()[-2:])}")
    return out


class Tunnel:
    """A port of this machine's loopback address that leads to the box's server, whatever its port there.

    The port here stays the same when the connection is opened again. ssh ends with this program, also where
    that is killed.
    """

    def __init__(self, shell: BoxShell) -> None:
        self._shell = shell
        self.port = find_free_tcp_port()
        self._process: asyncio.subprocess.Process | None = None
        self._opening = asyncio.Lock()

    @property
    def url(self) -> str:
        """Returns the address of the box's server on this machine."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def is_open(self) -> bool:
        """Returns whether ssh runs."""
        return self._process is not None and self._process.returncode is None

    async def open(self, port: int) -> None:
        """Leads to this port of the box. Raises BoxError, DeadlineError."""
        async with self._opening:
            await self._end()
            words = ("-N", "-T", "-o", "ExitOnForwardFailure=yes")
            there = f"127.0.0.1:{self.port}:127.0.0.1:{port}"
            process = self._process = await asyncio.create_subprocess_exec(
                *self._shell.command(*words, "-L", there),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
            await asyncio.to_thread(reaper().watch, process.pid, 0.0)
            try:
                async with asyncio.timeout(OPEN_S):
                    while not await _is_listening(self.port):
                        if process.returncode is not None:
                            assert process.stderr is not None
                            said = (await process.stderr.read()).decode(errors="replace").strip()
                            raise BoxError(f"the tunnel to box {self._shell.box!r} did not open: {said}")
                        await asyncio.sleep(_PAUSE_S)
            except TimeoutError as error:
                await self._end()
                raise DeadlineError(
                    f"the tunnel to box {self._shell.box!r} was not open within {OPEN_S:g} s"
                ) from error
            _log.debug("the tunnel to box %s is open at %s", self._shell.box, self.url)

    async def close(self) -> None:
        """Ends ssh."""
        async with self._opening:
            await self._end()

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            try:
                async with asyncio.timeout(CLOSE_S):
                    await process.wait()
            except TimeoutError:
                _log.debug("ssh of box %s did not end in time", self._shell.box)
        await end_process(process)
        await asyncio.to_thread(reaper().forget, process.pid)


async def _is_listening(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True
