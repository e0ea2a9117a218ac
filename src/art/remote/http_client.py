"""The HTTP client under an `openai.AsyncOpenAI`: room for thousands of requests, for any event loop."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import openai

from art.capture import current_rollout
from art.remote.lane import file_budget
from art.remote.per_loop import PerLoop
from art.remote.short_way import TIMEOUT_S, Revive
from art.wire.headers import ROLLOUT_HEADER

CONNECT_TIMEOUT_S = 5.0
REFRAMED = frozenset({"content-encoding", "content-length", "transfer-encoding"})
"""Headers that describe a body as it travelled, not as it was read."""


class ReplyTooLargeError(Exception):
    """A reply that goes on beyond what was allowed."""


class AnyLoopClient(openai.DefaultAsyncHttpxClient):
    """openai's own HTTP client class, with connections for each event loop.

    An ordinary one keeps connections of the loop that made them: after the next `asyncio.run` (or a
    notebook's restarted loop) every other request fails with "Event loop is closed".
    """

    revive: Revive | None = None
    """Awaited when a connection is lost, before the error goes to `openai`, which asks again."""
    lost: tuple[type[Exception], ...] = ()

    def __init__(self, *, most_bytes: int | None = None, **options: Any) -> None:
        """most_bytes: of a whole reply, unpacked; None: no limit. Streams are the reader's to limit."""
        super().__init__(**options)
        self._most_bytes = most_bytes
        self._of_loop = PerLoop(lambda: openai.DefaultAsyncHttpxClient(**options))

    async def send(self, request: Any, **options: Any) -> Any:
        """As in httpx, over the running loop's connections."""
        if self.is_closed:
            return await super().send(request, **options)  # it has the words for that
        try:
            return await self._send(self._of_loop.get(), request, options)
        except self.lost:
            if self.revive is not None:
                await self.revive()
            raise

    async def _send(self, client: Any, request: Any, options: dict[str, Any]) -> Any:
        if self._most_bytes is None or options.get("stream"):
            return await client.send(request, **options)
        return await _read_whole(await client.send(request, **options | {"stream": True}), self._most_bytes)

    async def aclose(self) -> None:
        """Close the connections of this loop; those of others close with theirs."""
        own = self._of_loop.take()
        if own is not None:
            await own.aclose()
        await super().aclose()


async def _read_whole(response: Any, most_bytes: int) -> Any:
    """The same reply, read. Raises ReplyTooLargeError as soon as it is longer, without reading on."""
    parts: list[bytes] = []
    size = 0
    try:
        async for part in response.aiter_bytes():
            size += len(part)
            if size > most_bytes:
                raise ReplyTooLargeError(f"the reply is longer than {most_bytes} bytes")
            parts.append(part)
    finally:
        await response.aclose()
    headers = [(name, text) for name, text in response.headers.multi_items() if name not in REFRAMED]
    whole = type(response)(
        response.status_code, headers=headers, content=b"".join(parts), request=response.request
    )
    whole.elapsed = response.elapsed
    return whole


def http_client(
    *, trust_env: bool, name_rollouts: bool, most_bytes: int | None = None, follow_redirects: bool = True
) -> Any:
    """A client for openai's class with room for thousands of connections.

    The package behind it is httpx2 or httpx, as openai's version has it. most_bytes: of a whole reply.
    """
    package = import_module(openai.DefaultAsyncHttpxClient.__mro__[1].__module__.split(".")[0])
    room = file_budget()

    async def name_rollout(request: Any) -> None:
        rollout = current_rollout()
        if rollout is not None:
            request.headers.setdefault(ROLLOUT_HEADER, rollout)

    client = AnyLoopClient(
        verify=package.create_ssl_context(trust_env=trust_env),  # 20 ms: once, not for each loop
        timeout=package.Timeout(TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
        limits=package.Limits(max_connections=room, max_keepalive_connections=room),
        trust_env=trust_env,
        most_bytes=most_bytes,
        follow_redirects=follow_redirects,
        event_hooks={"request": [name_rollout] if name_rollouts else []},
    )
    client.lost = (package.NetworkError, package.RemoteProtocolError)
    return client
