"""The engine as the gateway sees it: a worker process, reached over loopback. No torch here.

All completions of a worker travel over one WebSocket, made when the first is asked for. Requests made in the
same turn of the event loop share a frame up, deltas of one engine step share a frame down, so a completion
costs the gateway a fraction of a millisecond.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import orjson
from pydantic import BaseModel, ValidationError
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from art.engine.frames import generate_message, read_news
from art.engine.protocol import Deadlines, Delta, EngineInfo, GenerateRequest, Ranked, Rows
from art.errors import ARTError, WorkerDiedError, WorkerError, WorkerStalledError, WorkerUnreachableError
from art.process.resources import no_tls
from art.process.worker import SharedDisk, WorkerDisk
from art.wire.engine import (
    Alternatives,
    EngineErrorBody,
    EngineHealth,
    EngineScoreReply,
    EngineScoreRequest,
    LoadAdapter,
    UnloadAdapter,
    check_transfer,
    to_error,
)
from art.wire.models import TRAINERS_FILES

_TOLD_TOGETHER = 16
"""Deltas after which others have a turn: hundreds of replies may end with one step of the engine."""


@dataclass(slots=True, eq=False)
class _Stream:
    news: list[Delta | ARTError] = field(default_factory=list)
    waiter: asyncio.Future[None] | None = None

    def put(self, item: Delta | ARTError) -> None:
        self.news.append(item)
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


class CompletionSocket:
    """Requests go up, deltas come down; a connection that is lost is made again by the next request."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        *,
        connect_s: float,
        stall_s: float,
        health: Callable[[], Awaitable[EngineHealth]],
    ) -> None:
        """`url` is `http://host:port`. `stall_s`: requests fail when they are open and the step counter of
        `health` stands still so long.
        """
        self._url = url
        self._headers = headers
        self._connect_s = connect_s
        self._stall_s = stall_s
        self._health = health
        self._socket: ClientConnection | None = None
        self._connecting = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._streams: dict[str, _Stream] = {}
        self._outbox: list[dict[str, Any]] = []
        self._outgoing = asyncio.Event()
        self._count = 0
        self._closed = False

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Delta]:
        """See `RemoteEngine.generate`."""
        if self._socket is None:
            await self._connect()
        self._count += 1
        # Our own number, so that two callers with one request id do not meet.
        number = str(self._count)
        stream = self._streams[number] = _Stream()
        self._send(generate_message(number, request))
        ended = False
        try:
            while not ended:
                if not stream.news:
                    stream.waiter = asyncio.get_running_loop().create_future()
                    await stream.waiter
                items, stream.news = stream.news, []
                for item in items:
                    if isinstance(item, ARTError):
                        ended = True
                        raise item
                    ended = item.finish_reason is not None
                    yield item
        finally:
            self._streams.pop(number, None)
            if not ended and self._socket is not None:
                self._send({"cancel": number})

    def close(self) -> None:
        """Fail what is open, and what comes."""
        self._closed = True
        self._fail_streams(WorkerError("the engine client was closed before the request was done"))

    async def _connect(self) -> None:
        async with self._connecting:
            if self._socket is not None:
                return
            if self._closed:
                raise WorkerError("the engine client is closed")
            try:
                socket = await connect(
                    self._url.replace("http", "ws", 1) + "/generate",
                    additional_headers=self._headers,
                    open_timeout=self._connect_s,
                    close_timeout=1.0,
                    max_size=1 << 28,
                    max_queue=None,
                    compression=None,
                    ping_interval=None,
                    proxy=None,
                )
            except TimeoutError as error:
                raise WorkerUnreachableError(
                    f"the engine worker at {self._url} did not take a connection within {self._connect_s:g} s"
                ) from error
            except (OSError, InvalidHandshake, ConnectionClosed) as error:
                raise WorkerUnreachableError(f"no engine worker answers at {self._url}: {error}") from error
            self._socket = socket
            self._outbox.clear()
            self._tasks = [
                asyncio.create_task(self._read(socket)),
                asyncio.create_task(self._write(socket)),
                asyncio.create_task(self._watch()),
            ]

    def _send(self, message: dict[str, Any]) -> None:
        self._outbox.append(message)
        self._outgoing.set()

    async def _write(self, socket: ClientConnection) -> None:
        try:
            while True:
                await self._outgoing.wait()
                self._outgoing.clear()
                messages, self._outbox = self._outbox, []
                if messages:
                    await socket.send(orjson.dumps(messages))
        except ConnectionClosed:
            self._fail_streams(WorkerDiedError(f"the engine worker at {self._url} closed the connection"))

    async def _read(self, socket: ClientConnection) -> None:
        # However it was closed, what is open has failed.
        with contextlib.suppress(ConnectionClosed):
            async for frame in socket:
                for number, message in enumerate(orjson.loads(frame), 1):
                    stream = self._streams.get(message["id"])
                    if stream is not None:
                        stream.put(read_news(message))
                    if number % _TOLD_TOGETHER == 0:
                        await asyncio.sleep(0)
        self._fail_streams(WorkerDiedError(f"the engine worker at {self._url} closed the connection"))

    async def _watch(self) -> None:
        """While requests are open, the worker's step counter must move on."""
        seen = -1
        while True:
            await asyncio.sleep(self._stall_s)
            if not self._streams:
                seen = -1
                continue
            try:
                health = await self._health()
            except ARTError as error:
                self._fail_streams(error)
                return
            if health.running and health.steps == seen:
                self._fail_streams(WorkerStalledError(f"the engine made no step for {self._stall_s:g} s"))
                return
            seen = health.steps

    def _fail_streams(self, error: ARTError) -> None:
        """Fail what is open and forget the connection; the next request makes a new one."""
        socket, self._socket = self._socket, None
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.put(error)
        current = asyncio.current_task()
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            if task is not current:
                task.cancel()
        if socket is not None:
            # Without a handshake: the other side may be dead.
            socket.transport.abort()


class RemoteEngine:
    """See `art.engine.protocol.Engine`. `url` is `http://host:port`; connects when first used.

    `disk`: how a folder of ours comes to the worker. `transfer`: how an adapter's weights do.
    """

    def __init__(
        self,
        url: str,
        key: str,
        deadlines: Deadlines | None = None,
        disk: WorkerDisk | None = None,
        *,
        transfer: str = "shelf",
    ) -> None:
        self._disk = disk or SharedDisk()
        self._transfer = check_transfer(transfer)
        self.url = url.rstrip("/")
        self.deadlines = deadlines or Deadlines()
        self._headers = {"Authorization": f"Bearer {key}"}
        self._http = httpx.AsyncClient(
            base_url=self.url, headers=self._headers, trust_env=False, verify=no_tls()
        )
        self._completions = CompletionSocket(
            self.url,
            self._headers,
            connect_s=self.deadlines.connect,
            stall_s=self.deadlines.stall,
            health=self.health,
        )
        self._closed = False

    async def health(self) -> EngineHealth:
        """Raises: WorkerDiedError, WorkerStalledError."""
        reply = await self._ask("GET", "/health", None, self.deadlines.health)
        return EngineHealth.model_validate(reply)

    async def info(self) -> EngineInfo:
        return EngineInfo.from_health(await self.health())

    def generate(self, request: GenerateRequest) -> AsyncIterator[Delta]:
        """See `Engine.generate`; WorkerDiedError when the connection is lost, WorkerStalledError when steps
        stop."""
        return self._completions.generate(request)

    async def load_adapter(self, name: str, path: Path) -> None:
        """See `Engine.load_adapter`."""
        found = await self._disk.fetch(path, without=TRAINERS_FILES)
        order = LoadAdapter(name=name, path=str(found), transfer=self._transfer)
        await self._post("/load_adapter", order, self.deadlines.control)

    async def unload_adapter(self, name: str) -> None:
        """See `Engine.unload_adapter`."""
        await self._post("/unload_adapter", UnloadAdapter(name=name), self.deadlines.drain)

    async def score(self, adapter: str | None, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        """See `Engine.score`."""
        body = EngineScoreRequest(adapter=adapter, rows=[list(row) for row in rows])
        return EngineScoreReply.model_validate(
            await self._post("/score", body, self.deadlines.control)
        ).logprobs

    async def rank(
        self, adapter: str | None, rows: Rows, most: int, alternatives: Alternatives | None = None
    ) -> list[Ranked]:
        """See `Engine.rank`."""
        copied = [list(row) for row in rows]
        body = EngineScoreRequest(adapter=adapter, rows=copied, most=most, alternatives=alternatives)
        reply = EngineScoreReply.model_validate(await self._post("/score", body, self.deadlines.control))
        tops = reply.tops or [[] for _ in reply.logprobs]
        return [
            Ranked(logprobs=logprobs, tops=top, named=reply.named, drawn=reply.drawn)
            for logprobs, top in zip(reply.logprobs, tops, strict=True)
        ]

    async def sleep(self) -> None:
        """See `Engine.sleep`."""
        await self._post("/sleep", None, self.deadlines.drain)

    async def wake(self) -> None:
        """See `Engine.wake`."""
        await self._post("/wake", None, self.deadlines.control)

    async def close(self) -> None:
        """Close the connection; the worker itself belongs to whoever started it."""
        self._closed = True
        self._completions.close()
        await self._http.aclose()

    async def _post(self, path: str, body: BaseModel | None, seconds: float) -> Any:
        return await self._ask("POST", path, body, seconds)

    async def _ask(self, method: str, path: str, body: BaseModel | None, seconds: float) -> Any:
        if self._closed:
            raise WorkerError("the engine client is closed")
        content = orjson.dumps(body.model_dump()) if body is not None else b"{}"
        try:
            reply = await self._http.request(method, path, content=content, timeout=seconds)
        except httpx.TimeoutException as error:
            raise WorkerStalledError(
                f"the engine worker did not answer {path} within {seconds:g} s"
            ) from error
        except httpx.TransportError as error:
            raise WorkerDiedError(
                f"the engine worker at {self.url} is gone ({type(error).__name__})"
            ) from error
        if reply.status_code == 200:
            return orjson.loads(reply.content)
        try:
            raise to_error(EngineErrorBody.model_validate_json(reply.content))
        except ValidationError as error:
            raise WorkerError(f"the engine worker answered {path} with status {reply.status_code}") from error
