"""The servers that requests are tried on: in this process, with an engine that answers by a script."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
from chat_folder import write_chat_folder
from live import listening
from tenants_world import World, run_world

from art.rendering.registry import create_chat_renderer
from art.server.settings import LimitSettings

TENANT = "alice"
WAIT_S = 240.0
PATIENCE_S = 0.5
LONGEST_PATH = 60_000
"""Characters. httpx, which asks here, refuses a longer one by itself; so does the server."""
REFUSALS_OF_THE_WORLD = frozenset({503, 507})
"""What it answers where a worker, or room on the disk, is missing: none of them is a failure."""


class FailureError(AssertionError):
    """The server failed, or its answer has no form that its clients know."""


class Gateway:
    """The application, an operator and two tenants, and a loop that runs while a request is answered."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.renderer = create_chat_renderer(write_chat_folder(folder / "tiny"), name="tiny")
        self._runner = asyncio.Runner()
        self._stack = contextlib.AsyncExitStack()
        self._address = ""
        self.world: World = self._run(
            self._stack.enter_async_context(run_world(folder / "data", self.renderer))
        )

    def ask(
        self, path: str, body: bytes, *, method: str = "POST", headers: Mapping[str, Any] | None = None
    ) -> httpx.Response:
        """Returns the reply to a tenant's request. Raises FailureError."""
        client = self.world.clients[TENANT]
        raw_path = quote(path, "/?&=%", errors="replace")[:LONGEST_PATH]
        request = httpx.Request(
            method,
            httpx.URL("http://art/").copy_with(raw_path=raw_path.encode()),
            content=body,
            headers=[*client.headers.multi_items(), *(headers or {}).items()],
        )
        return check(self._run(client.send(request)))

    def send_bytes(self, content: bytes) -> bytes:
        """Returns what the server answers to these bytes on a connection. It goes on serving."""
        return self._run(self._send_bytes(content))

    def close(self) -> None:
        try:
            self._run(self._stack.aclose())
        finally:
            self._runner.close()

    async def _send_bytes(self, content: bytes) -> bytes:
        if not self._address:
            self._address = await self._stack.enter_async_context(listening(self.world.app, LimitSettings()))
        host, _, port = self._address.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        answer = b""
        with contextlib.suppress(ConnectionError):
            writer.write(content)
            with contextlib.suppress(TimeoutError):  # it waits for the rest
                answer = await asyncio.wait_for(reader.read(1 << 16), PATIENCE_S)
        writer.close()
        async with httpx.AsyncClient(base_url=self._address, timeout=WAIT_S) as client:
            assert (await client.get("/health")).status_code == 200
        return answer

    def _run(self, work: Any) -> Any:
        return self._runner.run(asyncio.wait_for(work, WAIT_S))


class TinkerGateway:
    """Tinker's API in this process, before a server that keeps what it is asked for."""

    def __init__(self, folder: Path) -> None:
        from test_tinker_app import ScriptedServer, serving

        folder.mkdir(parents=True)
        self._runner = asyncio.Runner()
        self._stack = contextlib.AsyncExitStack()
        self._client = self._run(self._stack.enter_async_context(serving(folder, ScriptedServer())))

    def ask(self, path: str, body: bytes) -> httpx.Response:
        """Returns the reply to a post below /api/v1. Raises FailureError."""
        raw = f"/api/v1/{path.lstrip('/')}".encode("ascii", "replace")
        headers = {"x-api-key": self._client.key, "content-type": "application/json"}
        url = httpx.URL("http://service/").copy_with(raw_path=raw)
        request = httpx.Request("POST", url, content=body, headers=headers)
        return check(self._run(self._client.http.send(request)), named=False)

    def close(self) -> None:
        try:
            self._run(self._stack.aclose())
        finally:
            self._runner.close()

    def _run(self, work: Any) -> Any:
        return self._runner.run(asyncio.wait_for(work, WAIT_S))


def check(reply: httpx.Response, *, named: bool = True) -> httpx.Response:
    """Returns the reply. Raises FailureError for a failure, and (named) for a refusal without its error."""
    status = reply.status_code
    if status >= 500 and status not in REFUSALS_OF_THE_WORLD:
        raise FailureError(f"{reply.request.method} {reply.request.url.path}: {status} {reply.text[:2000]}")
    if named and status >= 400 and reply.request.method != "HEAD":
        error = json.loads(reply.content)
        if "error" not in error:
            raise FailureError(f"a refusal without its error: {reply.text[:2000]}")
    return reply
