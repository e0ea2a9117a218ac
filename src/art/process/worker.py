"""One worker process: started by module name, told its key on stdin, watched through its health route.

    parent                                  worker
    stdin:  {"key": ..., ...config}   ->
                                      <-    stdout: {"ready": true, "port": 40123}
    GET /health                       ->    (bearer key)
    stdin closed                      ->    ends by itself

A worker leads its own session, so that the whole group can be killed; it dies with its parent
(`art.process.child`). Its stderr is kept on disk (`WorkerLog`), never larger than twice its limit, with its
last lines at hand for error messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import signal
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import httpx

from art.errors import ConfigurationError, DeadlineError, WorkerDiedError, WorkerStalledError
from art.process.environment import inherited_variables
from art.process.files import WorkerLog
from art.process.process_state import is_stopped
from art.process.resources import no_tls
from art.process.threads import thread_variables

_log = logging.getLogger(__name__)
_DUMP_SECONDS = 0.5
_STOPPED_S = 40
"""A process that a signal stopped goes on within so long, or is not waited for."""

START_SETTING = "control.start"
"""The server's setting that is a worker's `start_deadline`, for messages."""


@dataclass(frozen=True, kw_only=True)
class GangPlace:
    """One process's place in a gang, for whoever chooses its machine: ranks of a node follow each other."""

    name: str
    """The name of the gang, such as `trainer-nano-games`."""
    rank: int
    ranks: int
    nodes: int = 1

    @property
    def node(self) -> int:
        """Returns which of the gang's nodes it is for, from 0.

        >>> [GangPlace(name="trainer-x", rank=rank, ranks=4, nodes=2).node for rank in range(4)]
        [0, 0, 1, 1]
        """
        return self.rank * self.nodes // self.ranks

    @property
    def local_rank(self) -> int:
        """Returns its number among the ranks of its node."""
        return self.rank - self.node * (self.ranks // self.nodes)


@dataclass(frozen=True, kw_only=True)
class WorkerSpec:
    """The program to start and its deadlines. All times in seconds."""

    name: str
    """The name that messages and the log's file use, such as `trainer-nano-games`."""
    command: Sequence[str] = ()
    """The command line of a worker of ART's own."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The JSON line for its stdin; the key is added here and is nowhere else."""
    gpus: int = 1
    """That it computes on together, if it computes on GPUs."""
    copies: int = 1
    """Workers like it on its machine that compute at the same time: they divide its cores."""
    log_path: Path
    start_deadline: float = 180.0
    health_interval: float = 2.0
    health_deadline: float = 60.0
    """A worker whose health route has not answered for so long has stalled."""
    stop_deadline: float = 10.0
    gang: GangPlace | None = None
    """The place in its gang of a worker that is one of several which work as one."""


def module_command(module: str) -> list[str]:
    """The command that runs a worker module with this interpreter, tied to this process."""
    return [sys.executable, "-m", "art.process.child", module]


class WorkerDisk(Protocol):
    """The way of folders between the server's disk and the worker's."""

    async def fetch(self, folder: Path, *, without: Collection[str] = ()) -> Path:
        """Returns where the worker finds the content of a folder of the server's disk.

        without: names of files that it does not need.
        """
        ...

    def place(self, folder: Path) -> Path:
        """Returns where the worker is to write what `collect` then brings to `folder`."""
        ...

    async def collect(self, folder: Path) -> None:
        """Brings what the worker wrote at `place(folder)` to `folder`, on the server's disk."""
        ...


class SharedDisk:
    """The disk of a worker on the server's machine: each path is its own."""

    async def fetch(self, folder: Path, *, without: Collection[str] = ()) -> Path:
        return folder

    def place(self, folder: Path) -> Path:
        return folder

    async def collect(self, folder: Path) -> None:
        """Does nothing: it was written in its place."""


class Supervised(Protocol):
    """The interface of supervised processes: a `Worker`, or a vLLM server."""

    node: str
    """The address of its machine in a cluster; empty: this machine."""

    @property
    def label(self) -> str: ...

    async def wait(self) -> object: ...

    def death(self) -> WorkerDiedError: ...

    async def probe(self) -> Mapping[str, Any]: ...

    async def dump_stacks(self) -> None: ...

    async def stop(self) -> None: ...

    async def kill(self) -> None: ...


class RunningWorker(Supervised, Protocol):
    """A worker that serves, wherever it runs: its address, its key, its disk and its life."""

    url: str
    key: str
    disk: WorkerDisk


Launch = Callable[[WorkerSpec], Awaitable[RunningWorker]]
"""Starts a worker somewhere: `Worker.start` on this machine."""


class Worker:
    """A running worker. Make one with `await Worker.start(spec)`."""

    def __init__(
        self, spec: WorkerSpec, process: asyncio.subprocess.Process, log: WorkerLog, key: str
    ) -> None:
        self.spec = spec
        self.key = key
        self.url = ""
        self.disk: WorkerDisk = SharedDisk()
        self.node = ""
        self._process = process
        self._log = log
        assert process.stderr is not None
        self._copies = [asyncio.create_task(log.follow(process.stderr))]
        self._http: httpx.AsyncClient | None = None

    @classmethod
    async def start(cls, spec: WorkerSpec) -> Worker:
        """Start a worker and wait until it serves.

        Raises WorkerDiedError (with the log's tail), ConfigurationError (it refused what it was told),
        DeadlineError.
        """
        key = secrets.token_urlsafe(32)
        log = WorkerLog(spec.log_path)
        environment = inherited_variables()
        process = await asyncio.create_subprocess_exec(
            *spec.command,
            env={**environment, **thread_variables(environment, copies=spec.copies)},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        worker = cls(spec, process, log, key)
        try:
            await worker._handshake()
        except BaseException:
            await asyncio.shield(worker.kill())
            raise
        return worker

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def label(self) -> str:
        """Returns how messages call it."""
        return f"worker {self.spec.name!r} (pid {self.pid})"

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    async def wait(self) -> int:
        """Return code once it ended."""
        return await self._process.wait()

    def tail(self) -> str:
        return self._log.tail()

    async def probe(self) -> Mapping[str, Any]:
        """Returns the data of its health route.

        Raises WorkerDiedError, WorkerStalledError (no answer within `health_deadline`).
        """
        assert self._http is not None
        try:
            reply = await self._http.get("/health", timeout=self.spec.health_deadline)
            reply.raise_for_status()
            return dict(reply.json())
        except httpx.TimeoutException as error:
            raise WorkerStalledError(
                f"{self.label} has not answered its health check for "
                f"{self.spec.health_deadline:g} s; its stacks are in {self.spec.log_path}"
            ) from error
        except (httpx.HTTPError, ValueError) as error:
            if self.returncode is not None:
                raise self.death() from error
            raise WorkerStalledError(f"{self.label} failed its health check: {error!r}") from error

    def death(self) -> WorkerDiedError:
        """The error that says how it ended."""
        code = self.returncode
        how = f"was ended by {signal.Signals(-code).name}" if code and code < 0 else f"ended with code {code}"
        return WorkerDiedError(f"{self.label} {how}; log: {self.spec.log_path}\n{self.tail()}".rstrip())

    async def dump_stacks(self) -> None:
        """Writes the stacks of all its threads to its log. Works on a stopped process, too."""
        with contextlib.suppress(ProcessLookupError):  # it ended in the meantime: nothing to look at
            os.kill(self.pid, signal.SIGUSR1)
            os.kill(self.pid, signal.SIGCONT)
            await asyncio.sleep(_DUMP_SECONDS)

    async def stop(self) -> None:
        """Close its stdin; what does not end within `stop_deadline` is killed. Calling it twice is
        allowed.
        """
        if self.returncode is None and self._process.stdin is not None:
            self._process.stdin.close()
            with contextlib.suppress(TimeoutError):  # killed below
                async with asyncio.timeout(self.spec.stop_deadline):
                    await self._process.wait()
        await self.kill()

    async def kill(self) -> None:
        """Kill the worker's whole group and free what belongs to it."""
        with contextlib.suppress(ProcessLookupError, PermissionError):  # the group is gone already
            os.killpg(self.pid, signal.SIGKILL)
        await self._process.wait()
        await asyncio.wait(self._copies, timeout=1.0)  # the last words are in the pipe
        for copy in self._copies:
            copy.cancel()
        if self._http is not None:
            await self._http.aclose()
        self._log.close()

    async def _handshake(self) -> None:
        line = json.dumps({**self.spec.config, "key": self.key}) + "\n"
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        # It may have died already: its end is told below. (uvloop raises RuntimeError for a closed pipe.)
        with contextlib.suppress(OSError, RuntimeError):
            stdin.write(line.encode())
        reading, looks = asyncio.ensure_future(self._ready_line(stdout)), 0
        try:
            async with asyncio.timeout(self.spec.start_deadline):
                while not (await asyncio.wait({reading}, timeout=1.0))[0]:
                    looks = looks + 1 if is_stopped(self.pid) else 0
                    if looks >= _STOPPED_S:
                        raise WorkerStalledError(f"{self.label} was stopped (SIGSTOP) while it started")
                ready = reading.result()
        except TimeoutError as error:
            await self.dump_stacks()
            raise DeadlineError(
                f"worker {self.spec.name!r} was not ready within {self.spec.start_deadline:g} s "
                f"(setting {START_SETTING}: give a slow machine or a large model more); "
                f"log: {self.spec.log_path}\n{self.tail()}".rstrip()
            ) from error
        finally:
            reading.cancel()
        # A worker that prints must not block on a full pipe, and what it prints belongs to its log.
        self._copies.append(asyncio.create_task(self._log.follow(stdout)))
        host = str(self.spec.config.get("host", "127.0.0.1"))
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{ready['port']}"
        self._http = httpx.AsyncClient(
            base_url=self.url,
            headers={"Authorization": f"Bearer {self.key}"},
            trust_env=False,
            verify=no_tls(),
        )
        _log.info("worker %s is ready: pid %d, port %s", self.spec.name, self.pid, ready["port"])

    async def _ready_line(self, stdout: asyncio.StreamReader) -> dict[str, Any]:
        while line := await stdout.readline():
            try:
                reply = json.loads(line)
            except ValueError:
                reply = None
            if isinstance(reply, dict) and reply.get("ready") is True and isinstance(reply.get("port"), int):
                return reply
            if isinstance(reply, dict) and reply.get("ready") is False:
                raise ConfigurationError(f"worker {self.spec.name!r} refused to start: {reply.get('error')}")
            self._log.write(line)  # a library that prints while it is imported
        await self._process.wait()
        await asyncio.wait(self._copies, timeout=1.0)
        raise self.death()
