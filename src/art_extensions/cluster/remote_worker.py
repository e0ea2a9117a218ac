"""A worker on a node of the cluster, as its supervisor sees it (`art.process.worker.RunningWorker`).

Its host tells its life in one stream: health, log, end. A stream that breaks and is not taken up again at
once means that the host is dead, and with it the worker. So the supervisor knows of a dead node as soon as
the connections break, and of one that is cut off after `silence` seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from art.errors import (
    ARTError,
    ConfigurationError,
    DeadlineError,
    NodeLostError,
    WorkerDiedError,
    WorkerError,
    WorkerStalledError,
)
from art.process.files import WorkerLog
from art.process.worker import START_SETTING, WorkerDisk, WorkerSpec
from art.server.cluster_settings import RENEWALS
from art_extensions.cluster.host_client import HostClient
from art_extensions.cluster.messages import HostNews, StartOrder
from art_extensions.cluster.shelf_disk import ShelfDisk

_log = logging.getLogger(__name__)
_TRIES = 3
"""Tries to take up a stream that broke."""
_PAUSE_S = 0.1
_ASIDE_S = 5.0
"""Seconds in which a host must obey: it may be gone."""
_MODEL_FIELDS = ("model_path", "base_model")
Release = Callable[[bool], Awaitable[None]]
"""A function that ends a worker's host and frees its place; it is told whether the node is lost."""


class RemoteWorker:
    """A worker on a node. It serves once `begin` has returned."""

    def __init__(
        self, spec: WorkerSpec, host: HostClient, disk: ShelfDisk, *, silence: float, release: Release
    ) -> None:
        self.spec = spec
        self.disk: WorkerDisk = disk
        self._shelf_disk = disk
        self.node = host.address.node
        self.node_id = host.address.node_id
        self.url = ""
        self.key = ""
        self.pid = 0
        self.lost_node = False
        """Whether it ended because its node did not answer."""
        self._host = host
        self._silence = silence
        self._release = release
        self._log = WorkerLog(spec.log_path)
        self._health: Mapping[str, Any] | None = None
        self._measured = time.monotonic()
        self._trouble: str | None = None
        self._changed = asyncio.Event()
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._tasks: list[asyncio.Task[None]] = []
        self._renewed = time.monotonic()
        self._closed = False

    async def begin(self, lease: float) -> None:
        """Start the worker on its node, and wait until it serves.

        Raises WorkerDiedError (with the log's tail), ConfigurationError (it refused what it was told),
        DeadlineError, StorageError (its base model did not get there).
        """
        self._tasks += [
            asyncio.create_task(self._renew_lease(lease)),
            asyncio.create_task(self._follow_life()),
        ]
        try:
            await self._start()
        except BaseException:
            await asyncio.shield(self.kill())
            raise

    @property
    def label(self) -> str:
        """Returns how messages call it."""
        return f"worker {self.spec.name!r} (pid {self.pid} on node {self.node})"

    @property
    def lease_age(self) -> float:
        """Seconds since its lease was renewed."""
        return time.monotonic() - self._renewed

    def tail(self) -> str:
        return self._log.tail()

    async def wait(self) -> str:
        """Returns how it ended, once it has."""
        return await asyncio.shield(self._ended)

    def death(self) -> WorkerDiedError:
        """The error that says how it ended."""
        if not self._ended.done():
            return WorkerDiedError(f"{self.label} was ended")
        how, log = self._ended.result(), self.spec.log_path
        kind = NodeLostError if self.lost_node else WorkerDiedError
        return kind(f"{self.label} {how}; log: {log}\n{self.tail()}".rstrip())

    async def probe(self) -> Mapping[str, Any]:
        """Returns the newest data of its health route, which its host asks for.

        Raises WorkerDiedError, WorkerStalledError (none newer than `health_deadline`).
        """
        while True:
            if self._ended.done():
                raise self.death()
            if self._trouble is not None:
                raise WorkerStalledError(f"{self.label} failed its health check: {self._trouble}")
            age = time.monotonic() - self._measured
            if age > self.spec.health_deadline:
                raise WorkerStalledError(
                    f"{self.label} has not answered its health check for {self.spec.health_deadline:g} s; "
                    f"its stacks are in {self.spec.log_path}"
                )
            if self._health is not None:
                return self._health
            self._changed.clear()
            with contextlib.suppress(TimeoutError):  # told above
                async with asyncio.timeout(self.spec.health_deadline - age + 0.01):
                    await self._changed.wait()

    async def dump_stacks(self) -> None:
        """Writes the stacks of all its threads to its log, on this machine."""
        with contextlib.suppress(WorkerError):  # a node that is gone has none
            await self._host.dump_stacks(_ASIDE_S)
            await asyncio.sleep(_PAUSE_S)  # until they are in the stream

    async def stop(self) -> None:
        """End it in order; what does not end within `stop_deadline` is killed. Calling it twice is
        allowed.
        """
        if not self._closed and not self._ended.done():
            with contextlib.suppress(WorkerError):  # killed below
                await self._host.stop(self.spec.stop_deadline + _ASIDE_S)
        await self.kill()

    async def kill(self) -> None:
        """End it with its host, and free what belongs to it. A node that is cut off does so by itself, when
        the lease has run out.
        """
        if self._closed:
            return
        self._closed = True
        if not self.lost_node:
            with contextlib.suppress(WorkerError):
                await self._host.kill(_ASIDE_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._end("was ended")
        try:
            await self._release(self.lost_node)
        except ARTError as error:
            _log.warning("the place of %s is not free yet: %s", self.label, error)
        await self._host.close()
        self._log.close()

    def lose_node(self, why: str) -> None:
        """The cluster says that its node is dead."""
        self._lose(f"lost its node {self.node}, which is dead{': ' + why if why else ''}")

    async def _start(self) -> None:
        config = dict(self.spec.config)
        for name in _MODEL_FIELDS:
            folder = config.get(name)
            if isinstance(folder, str) and await asyncio.to_thread(_is_folder, folder):
                config[name] = str(await self._unless_lost(self._shelf_disk.fetch_base_model(Path(folder))))
        order = StartOrder(
            name=self.spec.name,
            arguments=list(self.spec.command[1:]),
            config=config,
            copies=self.spec.copies,
            start_deadline=self.spec.start_deadline,
            health_interval=self.spec.health_interval,
            health_deadline=self.spec.health_deadline,
            stop_deadline=self.spec.stop_deadline,
        )
        try:
            started = await self._unless_lost(self._host.start(order))
        except DeadlineError as error:  # the path in it is the node's
            raise DeadlineError(
                f"worker {self.spec.name!r} was not ready within {self.spec.start_deadline:g} s on node "
                f"{self.node} (setting {START_SETTING}: give a slow machine or a large model more); "
                f"log: {self.spec.log_path}\n{self.tail()}".rstrip()
            ) from error
        self.url, self.key, self.pid = started.url, started.key, started.pid
        self._measured = time.monotonic()
        _log.info("worker %s is ready on node %s: pid %d", self.spec.name, self.node, self.pid)

    async def _unless_lost(self, work: Awaitable[Any]) -> Any:
        """The result of what the node does, or WorkerDiedError as soon as the node is gone."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task, self._ended}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise self.death()
            return task.result()
        finally:
            task.cancel()

    async def _renew_lease(self, lease: float) -> None:
        interval = lease / RENEWALS
        while True:
            began = time.monotonic()
            with contextlib.suppress(WorkerError):  # its life says more
                await self._host.renew_lease(interval)
                self._renewed = began
            await asyncio.sleep(max(0.0, interval - (time.monotonic() - began)))

    async def _follow_life(self) -> None:
        """Takes the news; a stream that breaks is taken up again, while somebody answers."""
        failures = 0
        while not self._ended.done():
            error: ARTError = NodeLostError(f"lost its node {self.node}: it ended the connection")
            try:
                async for news in self._host.life(self._silence):
                    failures = 0
                    self._take(news)
            except (WorkerError, ConfigurationError) as failed:
                error = failed
            failures += 1
            if self._ended.done():
                return
            if failures >= _TRIES or isinstance(error, WorkerStalledError):
                self._lose(str(error))
                return
            await asyncio.sleep(_PAUSE_S)

    def _take(self, news: HostNews) -> None:
        if news.log is not None:
            self._log.write(news.log.encode())
        if news.health is not None:
            self._health = news.health
        if news.health_age is not None:
            self._measured = time.monotonic() - news.health_age
        self._trouble = news.trouble or self._trouble
        self._changed.set()
        if news.ended is not None:
            self._end(news.ended)

    def _lose(self, why: str) -> None:
        if not self._ended.done():
            self.lost_node = True
            self._end(why)

    def _end(self, how: str) -> None:
        if not self._ended.done():
            self._ended.set_result(how)
            self._changed.set()


def _is_folder(name: str) -> bool:
    return Path(name).is_absolute() and Path(name).is_dir()
