"""A host as the server sees it: its routes, and its life as a stream of news."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TypeVar

import httpx
from pydantic import ValidationError

from art.errors import NodeLostError, WorkerDiedError, WorkerStalledError
from art.process.resources import no_tls
from art.wire.engine import EngineErrorBody, to_error
from art.wire.records import Strict
from art_extensions.cluster.messages import HostAddress, HostNews, Reached, ReachOrder, Started, StartOrder

R = TypeVar("R", bound=Strict)
_CONNECT_S = 5.0
_LINGER_S = 30.0
"""Seconds beyond a worker's own deadline, for the host to report that it was missed."""


class HostClient:
    """The routes of one host. Close it."""

    def __init__(self, address: HostAddress, key: str) -> None:
        self.address = address
        self._http = httpx.AsyncClient(
            base_url=address.url,
            headers={"Authorization": f"Bearer {key}"},
            timeout=httpx.Timeout(30.0, connect=_CONNECT_S),
            trust_env=False,
            verify=no_tls(),
        )

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    async def start(self, order: StartOrder) -> Started:
        """The worker, once it serves. Raises what `Worker.start` raises on the node."""
        return await self._post("/start", order, Started, order.start_deadline + _LINGER_S)

    async def renew_lease(self, timeout: float) -> None:
        """Tell it that the server lives. Raises WorkerDiedError, WorkerStalledError."""
        await self._post("/lease", None, Strict, timeout)

    async def dump_stacks(self, timeout: float) -> None:
        """Have the worker's stacks written to its log. Raises WorkerDiedError, WorkerStalledError."""
        await self._post("/stacks", None, Strict, timeout)

    async def stop(self, timeout: float) -> None:
        """End worker and host, the worker in order. Raises WorkerDiedError, WorkerStalledError."""
        await self._post("/stop", None, Strict, timeout)

    async def kill(self, timeout: float) -> None:
        """End both at once. Raises WorkerDiedError, WorkerStalledError."""
        await self._post("/kill", None, Strict, timeout)

    async def reach(self, url: str, timeout: float) -> Reached:
        """Asks whether its node reaches an address. Raises WorkerDiedError, WorkerStalledError."""
        return await self._post("/reach", ReachOrder(url=url, timeout=timeout), Reached, timeout + _LINGER_S)

    async def life(self, silence: float) -> AsyncIterator[HostNews]:
        """Yields its news, until the connection ends.

        Raises NodeLostError (the connection was refused or broke), WorkerStalledError (no sign for
        `silence` seconds).
        """
        timeout = httpx.Timeout(silence, connect=min(silence, _CONNECT_S))
        try:
            async with self._http.stream("GET", "/life", timeout=timeout) as reply:
                reply.raise_for_status()
                async for line in reply.aiter_lines():
                    yield HostNews.model_validate_json(line)
        except httpx.TimeoutException as error:
            raise WorkerStalledError(
                f"lost its node {self.address.node}: no sign of life for {silence:g} s"
            ) from error
        except httpx.HTTPError as error:
            raise self._lost_error(error) from error
        except ValidationError as error:
            raise WorkerDiedError(f"its node {self.address.node} answered, and not as a host does") from error

    async def _post(self, route: str, body: Strict | None, kind: type[R], timeout: float) -> R:
        content = "{}" if body is None else body.model_dump_json()
        try:
            async with asyncio.timeout(timeout):
                reply = await self._http.post(route, content=content, timeout=httpx.Timeout(timeout))
        except (TimeoutError, httpx.TimeoutException) as error:
            raise WorkerStalledError(
                f"its node {self.address.node} did not answer {route} within {timeout:g} s"
            ) from error
        except httpx.HTTPError as error:
            raise self._lost_error(error) from error
        try:
            if reply.status_code != 200:
                raise to_error(EngineErrorBody.model_validate_json(reply.content))
            return kind.model_validate_json(reply.content)
        except ValidationError as error:
            raise WorkerDiedError(
                f"its node {self.address.node} answered {route} with status {reply.status_code}, and not as "
                "a host does"
            ) from error

    def _lost_error(self, error: Exception) -> NodeLostError:
        return NodeLostError(f"lost its node {self.address.node} ({type(error).__name__})")
