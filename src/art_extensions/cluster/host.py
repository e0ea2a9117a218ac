"""What runs on a node for each worker: it starts the worker, serves the node's shelf, and keeps a lease.

The worker is the same child process as on one machine, told to listen at the node's address. It dies with its
host, and the host with Ray's process on its node. The server renews the lease; one that does not for so long
is dead or cut off, and the host ends its worker and itself: nothing is left behind.

Nothing here imports ray. `art_extensions.cluster.placer` makes an actor of it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Mount, Route

from art.errors import DISTRIBUTION, ConfigurationError, WorkerError
from art.process.files import ScratchFolder
from art.process.resources import listen
from art.process.worker import Worker, WorkerSpec
from art.wire.json_lines import one_line
from art.wire.records import Strict
from art_extensions.cluster.messages import (
    HostAddress,
    HostNews,
    HostOrder,
    Reached,
    ReachOrder,
    Started,
    StartOrder,
)
from art_extensions.cluster.shelf import Shelf
from art_extensions.cluster.shelf_app import QuietServer, ShelfAddress, guard_route, make_shelf_app

_log = logging.getLogger(__name__)
_SIGN_S = 1.0
"""Seconds between two lines of `HostNews` that have nothing new."""
_LAST_REPLY_S = 0.3
_MOST_LOG = 1 << 16
"""Bytes of the log in one line."""


class NodeHost:
    """The host of one worker on a node. `serve` before anything else."""

    def __init__(self) -> None:
        self._address: asyncio.Future[str] | None = None
        self._worker: Worker | None = None
        self._folder = ScratchFolder("art-host")
        self._log_at = 0
        self._health: dict[str, object] | None = None
        self._health_at = 0.0
        self._trouble: str | None = None
        self._ended: str | None = None
        self._news = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def serve(self, order: str, node: str, node_id: str) -> str:
        """Serves at the node's address and returns a `HostAddress` as JSON, the same one when asked again.

        order: a `HostOrder`. Raises ConfigurationError.
        """
        if self._address is None:
            self._address = asyncio.ensure_future(self._serve(order, node, node_id))
        return await asyncio.shield(self._address)

    async def _serve(self, text: str, node: str, node_id: str) -> str:
        order = HostOrder.model_validate_json(text)
        self._node, self._lease, self._renewed = node, order.lease, time.monotonic()
        home = Path.home() / ".cache" / "art" / "shelf"
        folder = Path(order.shelf.replace("{node}", node.replace(":", "_"))) if order.shelf else home
        shelf = Shelf(folder, order.shelf_bytes)
        listener = listen(node, 0)
        name = f"[{node}]" if ":" in node else node
        url = f"http://{name}:{listener.getsockname()[1]}"
        read_key, order_key = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        app = self._app(order.key, make_shelf_app(shelf, read_key, order_key))
        server = QuietServer(
            uvicorn.Config(
                app, log_config=None, access_log=False, lifespan="off", ws="none", server_header=False
            )
        )
        self._tasks += [
            asyncio.create_task(server.serve(sockets=[listener])),
            asyncio.create_task(self._watch_lease()),
        ]
        return HostAddress(
            nonce=order.nonce,
            url=url,
            node=node,
            node_id=node_id,
            shelf=ShelfAddress(
                url=url, read_key=read_key, order_key=order_key, written=str(shelf.copies.written)
            ),
            pid=os.getpid(),
            version=version(DISTRIBUTION),
            python=sys.version.split()[0],
        ).model_dump_json()

    def _app(self, key: str, shelf: Starlette) -> Starlette:
        posts: dict[str, Callable[[bytes], Awaitable[Strict | None]]] = {
            "/lease": self._renew,
            "/start": self._start,
            "/stacks": self._dump_stacks,
            "/stop": self._stop,
            "/kill": self._kill,
            "/reach": self._reach,
        }
        return Starlette(
            routes=[
                Route("/life", guard_route(self._life, key), methods=["GET"]),
                *(
                    Route(path, guard_route(_answer(one), key), methods=["POST"])
                    for path, one in posts.items()
                ),
                Mount("/", shelf),
            ]
        )

    # -- routes --

    async def _renew(self, body: bytes) -> None:
        self._renewed = time.monotonic()

    async def _start(self, body: bytes) -> Started:
        order = StartOrder.model_validate_json(body)
        if self._worker is not None:
            raise ConfigurationError(f"this host has worker {self._worker.label} already")
        spec = WorkerSpec(
            name=order.name,
            command=[sys.executable, *order.arguments],
            config={**order.config, "host": self._node},
            log_path=self._folder.path / "worker.log",
            copies=order.copies,
            start_deadline=order.start_deadline,
            health_interval=order.health_interval,
            health_deadline=order.health_deadline,
            stop_deadline=order.stop_deadline,
        )
        self._worker = worker = await Worker.start(spec)
        self._tasks += [
            asyncio.create_task(self._watch_health(worker)),
            asyncio.create_task(self._watch_end(worker)),
        ]
        return Started(url=worker.url, key=worker.key, pid=worker.pid)

    async def _dump_stacks(self, body: bytes) -> None:
        if self._worker is not None:
            await self._worker.dump_stacks()
            self._news.set()

    async def _stop(self, body: bytes) -> None:
        if self._worker is not None:
            await self._worker.stop()
        self._leave_soon()

    async def _kill(self, body: bytes) -> None:
        if self._worker is not None:
            await self._worker.kill()
        self._leave_soon()

    async def _reach(self, body: bytes) -> Reached:
        order = ReachOrder.model_validate_json(body)
        where = urlsplit(order.url)
        try:
            async with asyncio.timeout(order.timeout):
                _, writer = await asyncio.open_connection(where.hostname, where.port)
            writer.close()
        except (OSError, TimeoutError) as error:
            return Reached(reached=False, error=f"{type(error).__name__}: {error}".rstrip(": "))
        return Reached(reached=True)

    async def _life(self, request: Request) -> Response:
        return StreamingResponse(self._tell_life(), media_type="application/x-ndjson")

    async def _tell_life(self) -> AsyncIterator[bytes]:
        told_health = 0.0
        while True:
            self._news.clear()
            news = HostNews(log=self._new_log(), trouble=self._trouble)
            if self._health is not None:
                news.health_age = time.monotonic() - self._health_at
                if self._health_at != told_health:
                    told_health, news.health = self._health_at, self._health
            if self._ended is not None and news.log is None:
                news.ended = self._ended
            yield one_line(news.model_dump_json(exclude_none=True)) + b"\n"
            if news.ended is not None:
                return
            if news.log is None:
                await _wait_for(self._news, _SIGN_S)

    # -- what it watches --

    def _new_log(self) -> str | None:
        """Returns what the worker's log has more; the file begins anew when it is large."""
        path = self._folder.path / "worker.log"
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size < self._log_at:
                    self._log_at = 0
                file.seek(self._log_at)
                text = file.read(_MOST_LOG)
        except OSError:
            return None
        self._log_at += len(text)
        return text.decode(errors="replace") if text else None

    async def _watch_health(self, worker: Worker) -> None:
        while self._ended is None:
            try:
                self._health = dict(await worker.probe())
                self._health_at = time.monotonic()
            except WorkerError as error:
                self._trouble = str(error)
            self._news.set()
            await asyncio.sleep(worker.spec.health_interval)

    async def _watch_end(self, worker: Worker) -> None:
        await worker.wait()
        await asyncio.sleep(0.1)  # its last words are on their way to its log
        how = str(worker.death()).partition("; log:")[0]  # its log is at the server, too
        self._ended = how.removeprefix(worker.label).strip()
        self._news.set()

    async def _watch_lease(self) -> None:
        left = self._lease
        while left > 0:
            await asyncio.sleep(left)
            left = self._renewed + self._lease - time.monotonic()
        _log.error("nobody has renewed the lease for %g s: the worker ends with its host", self._lease)
        if self._worker is not None:
            await self._worker.kill()
        self._leave()

    def _leave_soon(self) -> None:
        asyncio.get_running_loop().call_later(_LAST_REPLY_S, self._leave)

    def _leave(self) -> None:
        self._folder.remove()
        os._exit(0)  # the actor's process is this host's own


def _answer(work: Callable[[bytes], Awaitable[Strict | None]]) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        reply = await work(await request.body())
        content = b"{}" if reply is None else reply.model_dump_json().encode()
        return Response(content, media_type="application/json")

    return endpoint


async def _wait_for(event: asyncio.Event, seconds: float) -> None:
    waiting = asyncio.ensure_future(event.wait())
    await asyncio.wait({waiting}, timeout=seconds)
    waiting.cancel()
