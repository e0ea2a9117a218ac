"""The engine as the gateway sees it: a worker process, reached over loopback. No torch here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import orjson
from pydantic import BaseModel, ValidationError

from art.engine.completion_socket import CompletionSocket
from art.engine.protocol import Delta, EngineInfo, GenerateRequest, Ranked
from art.errors import WorkerDiedError, WorkerError, WorkerStalledError
from art.process.loopback import no_tls
from art.wire.engine import (
    EngineErrorBody,
    EngineHealth,
    EngineScoreReply,
    EngineScoreRequest,
    LoadAdapter,
    UnloadAdapter,
    to_error,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Deadlines:
    """Seconds after which a silent worker is taken for stuck."""

    connect: float = 10.0
    health: float = 10.0
    control: float = 120.0
    """Loading, scoring, waking."""
    drain: float = 1800.0
    """Unloading and sleeping, which wait for running requests."""
    stall: float = 60.0
    """Requests are running, but the worker's step counter stands still."""


class RemoteEngine:
    """See `art.engine.protocol.Engine`. `url` is `http://host:port`; connects when first used."""

    def __init__(self, url: str, key: str, deadlines: Deadlines | None = None) -> None:
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
        return EngineInfo.of(await self.health())

    def generate(self, request: GenerateRequest) -> AsyncIterator[Delta]:
        """See `Engine.generate`; WorkerDiedError when the connection is lost, WorkerStalledError when steps
        stop."""
        return self._completions.generate(request)

    async def load_adapter(self, name: str, path: Path) -> None:
        """See `Engine.load_adapter`."""
        await self._post("/load_adapter", LoadAdapter(name=name, path=str(path)), self.deadlines.control)

    async def unload_adapter(self, name: str) -> None:
        """See `Engine.unload_adapter`."""
        await self._post("/unload_adapter", UnloadAdapter(name=name), self.deadlines.drain)

    async def score(self, adapter: str | None, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        """See `Engine.score`."""
        body = EngineScoreRequest(adapter=adapter, rows=[list(row) for row in rows])
        return EngineScoreReply.model_validate(
            await self._post("/score", body, self.deadlines.control)
        ).logprobs

    async def rank(self, adapter: str | None, rows: Sequence[Sequence[int]], most: int) -> list[Ranked]:
        """See `Engine.rank`."""
        body = EngineScoreRequest(adapter=adapter, rows=[list(row) for row in rows], most=most)
        reply = EngineScoreReply.model_validate(await self._post("/score", body, self.deadlines.control))
        tops = reply.tops or [[] for _ in reply.logprobs]
        return [
            Ranked(logprobs=logprobs, tops=top) for logprobs, top in zip(reply.logprobs, tops, strict=True)
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
