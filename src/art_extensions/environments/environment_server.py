"""Requests to the server of an environment over HTTP: a session for each rollout, and no more requests at a
time than client and server take.

A thousand rollouts share one pool of connections. A session is the cookies of a rollout. The requests that
the pool has no connection for wait here, and so does one that a busy server (429, 503) did not take.
"""

from __future__ import annotations

import asyncio
import random
import time
from http import HTTPStatus
from typing import Any

import httpx

from art.errors import (
    ConfigurationError,
    EnvironmentFailedError,
    EnvironmentTimeoutError,
    UnreadableFileError,
)
from art.process.foreign_files import ask_foreign, parse_json

BUSY = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})
WAIT_S, MOST_WAIT_S = 0.2, 5.0
"""The first and the longest wait, in seconds, until a busy server that says none itself is asked again."""
MOST_BYTES = 16 << 20
"""Limit of an answer in bytes. `/verify` of NeMo-Gym repeats the row and the replies."""
SHOWN = 500
"""Characters of an answer that an error shows."""


class EnvironmentServer:
    """The server of an environment, as all of its rollouts share it."""

    def __init__(self, full: str, *, deadline_s: float, connections: int) -> None:
        """full: the environment's name. deadline_s: of one request, in seconds, from when it is sent.
        connections: the most requests that are sent at a time. Raises ConfigurationError for less than one.
        """
        if connections < 1:
            raise ConfigurationError(f"{full}: connections={connections} allows no request; give 1 or more")
        self._full, self._deadline_s, self._connections = full, deadline_s, connections
        self._loop: asyncio.AbstractEventLoop | None = None
        self.answered_at = 0.0
        """When it last took a request, on the monotonic clock."""

    def open(self, address: str) -> ServerSession:
        """Returns a new session."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # connections belong to the loop that opened them
            limits = httpx.Limits(
                max_connections=self._connections, max_keepalive_connections=self._connections
            )
            self._transport = httpx.AsyncHTTPTransport(limits=limits)
            self._slots = asyncio.Semaphore(self._connections)
            self._loop = loop
        # Closing it would close the pool that all share. It has nothing else that is open.
        client = httpx.AsyncClient(
            base_url=address, transport=self._transport, timeout=self._deadline_s, trust_env=False
        )
        return ServerSession(self._full, client, self, self._slots, self._deadline_s)

    async def close(self) -> None:
        """Closes the connections of this loop."""
        if self._loop is asyncio.get_running_loop():
            self._loop = None
            await self._transport.aclose()


class ServerSession:
    """The session of one rollout."""

    def __init__(
        self,
        full: str,
        client: httpx.AsyncClient,
        server: EnvironmentServer,
        slots: asyncio.Semaphore,
        deadline_s: float,
    ) -> None:
        self._full, self._client, self._server = full, client, server
        self._slots, self._deadline_s = slots, deadline_s

    async def ask(self, path: str, body: Any) -> dict[str, Any]:
        """Returns the object that the server answers. Raises EnvironmentFailedError,
        EnvironmentTimeoutError.
        """
        answer = await self.send(path, body)
        failed = f"environment {self._full!r}: {path} failed"
        if answer.is_error:
            raise EnvironmentFailedError(f"{failed} with status {answer.status_code}: {answer.text[:SHOWN]}")
        try:
            value = parse_json(answer.content)
        except ValueError as error:
            raise EnvironmentFailedError(f"{failed}: its answer is no JSON: {answer.text[:SHOWN]}") from error
        if not isinstance(value, dict):
            raise EnvironmentFailedError(f"{failed}: its answer is no object: {answer.text[:SHOWN]}")
        return value

    async def send(self, path: str, body: Any) -> httpx.Response:
        """Posts a body (None: gets), and returns the answer, of whatever status.

        A busy server is asked again as long as it takes requests of other rollouts, and for `deadline_s`
        where it takes none. Raises EnvironmentFailedError, EnvironmentTimeoutError.
        """
        since, tries = time.monotonic(), 0
        while True:
            async with self._slots:
                answer = await self._send_once(path, body)
            now = time.monotonic()
            if answer.status_code not in BUSY:
                self._server.answered_at = now
                return answer
            if now - max(since, self._server.answered_at) > self._deadline_s:
                return answer
            await asyncio.sleep(_wait_s(answer, tries))
            tries += 1

    async def _send_once(self, path: str, body: Any) -> httpx.Response:
        full = f"environment {self._full!r}: {path}"
        try:
            async with asyncio.timeout(self._deadline_s):
                method = "GET" if body is None else "POST"
                return await ask_foreign(self._client, method, path, most_bytes=MOST_BYTES, body=body)
        except (TimeoutError, httpx.TimeoutException) as error:
            raise EnvironmentTimeoutError(f"{full} did not answer within {self._deadline_s:g} s") from error
        except UnreadableFileError as error:
            raise EnvironmentFailedError(f"{full} failed: its answer cannot be read, {error}") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise EnvironmentFailedError(f"{full} failed: {type(error).__name__}: {error}") from error


def _wait_s(answer: httpx.Response, tries: int) -> float:
    """Returns the seconds until a busy server is asked again: those that it says, or twice the last, with a
    part drawn at random, so that not all ask at once.
    """
    said = answer.headers.get("retry-after", "")
    least = float(said) if said.replace(".", "", 1).isdigit() else WAIT_S * 2**tries
    return min(least, MOST_WAIT_S) * (1 + random.random())
