"""The control connection to a server: calls that are asked again when the connection is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel

from art.errors import OverloadedError, ServerUnreachableError, WorkerError
from art.remote.failures import response_error
from art.remote.per_loop import PerLoop
from art.wire.strict import read_reply

M = TypeVar("M", bound=BaseModel)
CONNECT_S = 5.0
WORKER_FAILURES = 3
"""A failed worker is started again by the server; one that fails so often in one call will not come up."""


class ServerConnection:
    """JSON calls with a bearer key. `revive` is awaited when nobody answers: it may start the server
    again. `state` says for messages what the server does, where that is known.
    """

    def __init__(
        self,
        address: Callable[[], Awaitable[tuple[str, str]]],
        revive: Callable[[], Awaitable[None]],
        state: Callable[[], str] | None = None,
    ) -> None:
        self._address, self._revive, self._state = address, revive, state
        self.completions: Any = None
        """The client whose connections those of all rollouts share; closed with this one."""
        self._clients: PerLoop[dict[tuple[str, str], httpx.AsyncClient]] = PerLoop(dict)

    async def client(self) -> httpx.AsyncClient:
        """The HTTP client of this event loop: connections cannot move between loops."""
        url, key = await self._address()
        clients = self._clients.get()
        if (url, key) not in clients:
            clients[url, key] = httpx.AsyncClient(
                base_url=url,
                headers={"authorization": f"Bearer {key}"},
                trust_env=not url.startswith("http://127.0.0.1"),
            )
        return clients[url, key]

    async def revive(self) -> float:
        """Called when nobody answered. Returns the seconds that it took: a server that is being started is
        not one that is silent, and its start has a deadline of its own.
        """
        begun = asyncio.get_running_loop().time()
        await self._revive()
        return asyncio.get_running_loop().time() - begun

    def state(self, error: Exception | None) -> str:
        """What is known of a server that gave no answer."""
        if self._state is not None:
            return self._state()
        if error is None or isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return "is the server running and the address right?"
        if isinstance(error, httpx.TimeoutException):
            return "it takes connections and answers nothing: it is frozen, or far too busy"
        return "it breaks connections off: it is ending, or starting again"

    async def call(
        self,
        method: str,
        path: str,
        reply: type[M],
        body: BaseModel | None = None,
        *,
        deadline_s: float = 120.0,
    ) -> M:
        """Ask until there is an answer: every route is safe to ask twice.

        Raises ServerUnreachableError when nobody answered within `deadline_s` seconds, OverloadedError when
        the queue stayed full for as long, WorkerError when a worker failed three times, and else the error
        of the answer.
        """
        loop = asyncio.get_running_loop()
        until, pause, failed_workers = loop.time() + deadline_s, 0.1, 0
        content = body.model_dump_json() if body is not None else None
        while True:
            client = await self.client()
            try:
                response = await client.request(
                    method,
                    path,
                    content=content,
                    headers={"content-type": "application/json"} if content else None,
                    timeout=httpx.Timeout(max(1.0, until - loop.time()), connect=CONNECT_S),
                )
            except httpx.TransportError as error:
                if loop.time() + pause > until:
                    raise ServerUnreachableError(
                        f"nobody answers {method} {client.base_url}{path} within {deadline_s:g} s "
                        f"({type(error).__name__}: {error}): {self.state(error)}"
                    ) from error
                until += await self.revive()
            else:
                if response.status_code < 400:
                    return read_reply(reply, response.content)
                failure = response_error(response, f"{method} {path}")
                failed_workers += isinstance(failure, WorkerError)
                again = (
                    isinstance(failure, OverloadedError | WorkerError) and failed_workers < WORKER_FAILURES
                )
                pause = getattr(failure, "retry_after", 1.0)
                if not again or loop.time() + pause > until:
                    raise failure
            await asyncio.sleep(pause)
            pause = min(2.0, pause * 2)

    async def close(self) -> None:
        """Close the connections of this event loop; those of others close with theirs."""
        completions, self.completions = self.completions, None
        if completions is not None:
            await completions.close()
        for client in (self._clients.take() or {}).values():
            await client.aclose()
