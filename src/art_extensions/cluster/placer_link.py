"""The server's end of its placer: started, asked, watched, and started again when it dies.

What was asked of one that died is asked of the next one. Its death costs placement for seconds, and no
request: workers are reached without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from pydantic import ValidationError

from art.errors import ARTError, ConfigurationError, DeadlineError, WorkerDiedError
from art.process.files import WorkerLog
from art.process.worker import module_command
from art.server.cluster_settings import ClusterSettings
from art.wire.engine import to_error
from art_extensions.cluster.messages import (
    HostAddress,
    PlaceOrder,
    PlacerLine,
    PlacerOrder,
    PlacerReady,
    PlacerStart,
)
from art_extensions.cluster.plan import NodeRow

_log = logging.getLogger(__name__)
PLACER_MODULE = "art_extensions.cluster.placer"
_LONGEST_LINE = 16 << 20
_START_S = 120.0
_WAITS_S = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds to wait before each restart; the last one repeats: a cluster may be away for hours."""
OnNodes = Callable[[Sequence[NodeRow]], None]


class PlacerLink:
    """One placer at a time. Make one with `await PlacerLink.start(...)`, and close it."""

    def __init__(
        self, settings: ClusterSettings, log_path: Path, on_nodes: OnNodes, command: Sequence[str]
    ) -> None:
        self.nodes: list[NodeRow] = []
        self.restarts = 0
        self.ready = PlacerReady(ready=False)
        self._settings = settings
        self._log = WorkerLog(log_path)
        self._on_nodes = on_nodes
        self._command = command
        self._process: asyncio.subprocess.Process | None = None
        self._numbers = itertools.count(1)
        self._open: dict[int, tuple[PlacerOrder, asyncio.Future[PlacerLine]]] = {}
        self._watch: asyncio.Task[None] | None = None
        self._copy: asyncio.Task[None] | None = None
        self._failure = ""

    @classmethod
    async def start(
        cls,
        settings: ClusterSettings,
        log_path: Path,
        on_nodes: OnNodes,
        command: Sequence[str] | None = None,
    ) -> PlacerLink:
        """Start a placer, and wait until it has seen the nodes.

        command: of a process that keeps to the lines of a placer; None: the one that speaks to Ray. Raises
        ConfigurationError (the cluster may not be used), WorkerDiedError (nobody answers), DeadlineError.
        """
        link = cls(settings, log_path, on_nodes, command or module_command(PLACER_MODULE))
        try:
            await link._launch()
        except BaseException:
            await link.close()
            raise
        link._watch = asyncio.create_task(link._keep_alive(), name="watch placer")
        return link

    @property
    def state(self) -> str:
        """`up` or `restarting`."""
        return "up" if self._process is not None and self._process.returncode is None else "restarting"

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def place(self, order: PlaceOrder) -> HostAddress:
        """The host's address. Raises WorkerDiedError, DeadlineError, ConfigurationError."""
        line = await self._ask(PlacerOrder(id=0, place=order), order.deadline + _START_S)
        assert line.placed is not None
        return line.placed

    async def release(self, name: str, timeout: float) -> None:
        """End a host. Raises DeadlineError, WorkerDiedError."""
        await self._ask(PlacerOrder(id=0, release=name), timeout)

    async def sweep(self, beginning: str, timeout: float) -> list[str]:
        """End the hosts whose names begin so. Raises DeadlineError, WorkerDiedError."""
        return (await self._ask(PlacerOrder(id=0, sweep=beginning), timeout)).released or []

    async def close(self) -> None:
        """End the placer; hosts stay. What waits fails."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        await self._end()
        for _, answer in self._open.values():
            if not answer.done():
                answer.set_exception(WorkerDiedError("the placer was closed with its server"))
        self._open.clear()
        self._log.close()

    async def _ask(self, order: PlacerOrder, timeout: float) -> PlacerLine:
        number = next(self._numbers)
        order = order.model_copy(update={"id": number})
        answer: asyncio.Future[PlacerLine] = asyncio.get_running_loop().create_future()
        self._open[number] = (order, answer)
        self._send(order)
        try:
            async with asyncio.timeout(timeout):
                line = await answer
        except TimeoutError as error:
            raise DeadlineError(
                f"the placer did not answer within {timeout:g} s (it is {self.state}"
                f"{': ' + self._failure if self._failure else ''}); its log: {self._log.path}"
            ) from error
        finally:
            self._open.pop(number, None)
        if line.error is not None:
            raise to_error(line.error)
        return line

    def _send(self, order: PlacerOrder) -> None:
        process = self._process
        if process is not None and process.stdin is not None and process.returncode is None:
            with contextlib.suppress(OSError, RuntimeError):  # it ended: the next one is told again
                process.stdin.write(order.model_dump_json(exclude_none=True).encode() + b"\n")

    async def _launch(self) -> None:
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            limit=_LONGEST_LINE,
        )
        self._process = process
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        self._copy = asyncio.create_task(self._log.follow(process.stderr))
        start = PlacerStart(
            address=self._settings.address,
            host=self._settings.host,
            trust_network=self._settings.trust_network,
        )
        process.stdin.write(start.model_dump_json().encode() + b"\n")
        try:
            async with asyncio.timeout(_START_S):
                self.ready = await self._ready_line(process.stdout)
                self._take(await process.stdout.readline())  # the nodes
        except TimeoutError as error:
            await self._end()
            raise DeadlineError(
                f"the placer was not ready within {_START_S:g} s: does a Ray cluster run at "
                f"{self._settings.address}? Its log: {self._log.path}\n{self._log.tail()}"
            ) from error
        for order, _ in list(self._open.values()):
            self._send(order)

    async def _ready_line(self, stdout: asyncio.StreamReader) -> PlacerReady:
        line = await stdout.readline()
        if not line:
            await self._end()
            raise WorkerDiedError(f"the placer ended while it started; {self._log.path}\n{self._log.tail()}")
        ready = PlacerReady.model_validate_json(line)
        if not ready.ready:
            await self._end()
            kind = ConfigurationError if ready.refused else WorkerDiedError
            raise kind(f"the cluster {self._settings.address} cannot be used: {ready.error}")
        return ready

    def _take(self, line: bytes) -> None:
        try:
            message = PlacerLine.model_validate_json(line)
        except ValidationError:
            _log.error("the placer wrote a line that is none of its own")
            return
        if message.nodes is not None:
            self.nodes = message.nodes
            self._on_nodes(message.nodes)
        elif message.id is not None and (open_order := self._open.get(message.id)) is not None:
            answer = open_order[1]
            if not answer.done():
                answer.set_result(message)

    async def _keep_alive(self) -> None:
        while True:
            process = self._process
            assert process is not None and process.stdout is not None
            while line := await process.stdout.readline():
                self._take(line)
            await self._end()
            self._failure = f"it ended with code {process.returncode}"
            _log.error("the placer %s; log: %s", self._failure, self._log.path)
            await self._restart()

    async def _restart(self) -> None:
        for attempt in itertools.count():
            await asyncio.sleep(_WAITS_S[min(attempt, len(_WAITS_S) - 1)])
            try:
                await self._launch()
            except (ARTError, OSError, ValueError) as error:
                self._failure = str(error)
                _log.error("the placer could not be started again: %s", error)
                continue
            self.restarts += 1
            self._failure = ""
            _log.warning("the placer was started again")
            return

    async def _end(self) -> None:
        process = self._process
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it is gone already
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        if self._copy is not None:
            await asyncio.wait({self._copy}, timeout=1.0)
            self._copy.cancel()
