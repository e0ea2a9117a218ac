"""How each kind of MCP server is reached with the official SDK, which is loaded here and no earlier.

Over the standard input and output of a program the transport is our own: the SDK's collects a line of any
length and logs each line that is no message, so a server that floods its output would fill memory or the log
of a run. This one reads lines of at most `LINE_LIMIT` bytes, gives up after `STRAY_LINES` that are no
messages, and keeps the end of standard error for errors.

Over streamable HTTP it is the SDK's transport, over a client that keeps secrets, tells statuses and reads
replies within the limits of `reply_limits`.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
import os
import shutil
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from art.errors import ConfigurationError, McpError
from art.process.reaper import reaper
from art_extensions.scenarios.mcp.reply_limits import (
    BY_THREAD,
    ENCODINGS,
    MOST_ITEMS,
    limit_reply,
    longest_list,
)
from art_extensions.scenarios.mcp.sdk import has_version_2, load_sdk
from art_extensions.scenarios.mcp.server_address import HttpServer, InProcessServer, Server, StdioServer
from art_extensions.scenarios.mcp.version_1 import open_session

if TYPE_CHECKING:
    import ssl

    import httpx2


LINE_LIMIT = 16 << 20
"""Bytes of one message."""
STRAY_LINES = 1000
"""Some programs print a banner; one that prints so many lines speaks another language."""
STDERR_KEPT = 2000
"""Bytes of the end of standard error that are kept."""
GRACE_S = 2.0
"""Seconds between the end of its input and SIGTERM, and between that and SIGKILL."""
FLUSH_S = 0.5
WATCH_S = 0.5
"""Seconds between two looks at whether the program lives. Its children may hold its pipes open."""
_POLL_S = 0.01
_KILL = signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL


class ServerDiagnostics:
    """The trouble of a server, with the last output and exit of its program, for error messages."""

    def __init__(self) -> None:
        self.stderr = b""
        self.trouble = ""
        self.given_up = asyncio.Event()
        """Set when the server did what ends the session; `trouble` says what."""

    def give_up(self, trouble: str) -> None:
        """Ends the session: it asks nothing more."""
        if not self.given_up.is_set():
            self.trouble = trouble
            self.given_up.set()

    def text(self) -> str:
        """Empty if nothing is known."""
        said = self.stderr.decode("utf-8", errors="replace").strip()
        parts = [f"It {self.trouble}."] if self.trouble else []
        parts += [f"Its standard error ends with:\n{said}"] if said else []
        return "".join(f"\n{part}" for part in parts)


@asynccontextmanager
async def open_program(server: StdioServer, words: ServerDiagnostics) -> AsyncIterator[tuple[Any, Any]]:
    """Start the program and give the two streams of the SDK; at the end nothing of it is left.

    It has a process group of its own, which is killed where closing its input does not end it, also when this
    process is killed meanwhile. Raises McpError when it cannot be started.
    """
    import anyio
    from mcp.shared.message import SessionMessage

    process = await _start(server)
    arriving, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, leaving = anyio.create_memory_object_stream[SessionMessage](0)
    writer = asyncio.create_task(_write(process, leaving))
    stderr = asyncio.create_task(_keep_stderr(process, words))
    reader = asyncio.create_task(_read(process, arriving, words, stderr))
    watcher = asyncio.create_task(_watch(process))
    try:
        yield incoming, outgoing
    finally:
        incoming.close()
        outgoing.close()
        try:
            await asyncio.wait({writer}, timeout=FLUSH_S)
            await _end(process)
        finally:
            if not watcher.done():
                watcher.cancel()
                _signal(process, _KILL)  # also its children, and also when this was cancelled
            if sys.platform != "win32":
                reaper().forget(process.pid)
            tasks = {writer, stderr, reader, watcher}
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


async def _start(server: StdioServer) -> Process:
    from mcp.client.stdio import get_default_environment

    command = shutil.which(server.command) if sys.platform == "win32" else server.command
    try:
        process = await asyncio.create_subprocess_exec(
            command or server.command,
            *server.args,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env={**get_default_environment(), **server.env},
            cwd=server.cwd,
            limit=LINE_LIMIT,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise McpError(f"MCP server {server.label!r} could not be started: {error}") from error
    if sys.platform != "win32":
        try:
            reaper().watch(process.pid)
        except OSError as error:  # no more processes, or files
            _signal(process, _KILL)
            raise McpError(f"MCP server {server.label!r} cannot be watched: {error}") from error
    return process


async def _read(
    process: Process, arriving: Any, words: ServerDiagnostics, stderr: asyncio.Task[None]
) -> None:
    """Messages of the program to the session, until either ends; then to nowhere, so that it can end."""
    import anyio
    from mcp import types
    from mcp.shared.message import SessionMessage
    from pydantic import TypeAdapter

    messages = getattr(types, "jsonrpc_message_adapter", None) or TypeAdapter(types.JSONRPCMessage)
    assert process.stdout is not None
    stray = 0
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, ConnectionError):
        async with arriving:
            while line := await _line(process.stdout, words):
                try:
                    if len(line) > BY_THREAD:
                        message = await asyncio.to_thread(messages.validate_json, line, by_name=False)
                    else:
                        message = messages.validate_json(line, by_name=False)
                except ValueError:
                    stray += bool(line.strip())
                    if stray < STRAY_LINES:
                        continue
                    shown = line[:80].decode("utf-8", errors="replace").strip()
                    words.trouble = f"wrote {stray} lines that are no messages, such as {shown!r}"
                    break
                answer = getattr(message, "root", message)
                if (items := longest_list(getattr(answer, "result", None))) > MOST_ITEMS:
                    words.trouble = f"wrote a message with {items} items, more than {MOST_ITEMS}"
                    break
                await arriving.send(SessionMessage(message))
            if not words.trouble:  # known before the session learns that this is the end
                await asyncio.wait({stderr}, timeout=FLUSH_S)
                await _ended(process, FLUSH_S)
                words.trouble = f"ended with exit code {process.returncode}"
    with suppress(ConnectionError):
        while await process.stdout.read(1 << 16):
            pass


async def _line(stdout: asyncio.StreamReader, words: ServerDiagnostics) -> bytes:
    try:
        return await stdout.readline()
    except ValueError:
        words.trouble = f"wrote a line of more than {LINE_LIMIT >> 20} MB"
        return b""


async def _write(process: Process, leaving: Any) -> None:
    assert process.stdin is not None
    # A program that is gone is noticed where it is read.
    with suppress(ConnectionError):
        async with leaving:
            async for item in leaving:
                text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                process.stdin.write(text.encode() + b"\n")
                await process.stdin.drain()


async def _keep_stderr(process: Process, words: ServerDiagnostics) -> None:
    assert process.stderr is not None
    with suppress(ConnectionError):
        while piece := await process.stderr.read(1 << 16):
            words.stderr = (words.stderr + piece)[-STDERR_KEPT:]


async def _watch(process: Process) -> None:
    """End the children of a program that is gone, at once: later its group's number may be another's."""
    await _ended(process, math.inf, every=WATCH_S)
    _signal(process, _KILL)


async def _end(process: Process) -> None:
    """Close the program's input; SIGTERM for its group if it does not heed that."""
    assert process.stdin is not None
    process.stdin.close()
    if not await _ended(process, GRACE_S):
        _signal(process, signal.SIGTERM)
        await _ended(process, GRACE_S)


async def _ended(process: Process, within: float, *, every: float = _POLL_S) -> bool:
    # `process.wait()` also waits for the pipes, which a child of the program may hold open.
    deadline = asyncio.get_running_loop().time() + within
    while process.returncode is None:
        if asyncio.get_running_loop().time() > deadline:
            return False
        await asyncio.sleep(every)
    return True


def _signal(process: Process, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        if sys.platform == "win32":
            process.send_signal(number)
        else:
            os.killpg(process.pid, number)


CONNECT_S = 30.0
BUSY = frozenset({429, 503})
"""Answers of a server that did nothing and may be asked again."""
ATTEMPTS = 4
LONGEST_WAIT_S = 30.0
NOT_THERE = frozenset({404, 405})
"""Answers of a path at which no MCP server listens."""
REFUSED = frozenset({401, 402, 403, 407, 408, 429})
"""The HTTP statuses that, like those from 500 on, say nothing about the call itself."""


async def open_http(server: HttpServer, stack: AsyncExitStack, words: ServerDiagnostics) -> Any:
    """The transport; `stack` closes its client."""
    from mcp.client import streamable_http

    if not hasattr(streamable_http, "streamable_http_client"):
        raise ConfigurationError("the installed package mcp is older than 1.24: pip install 'mcp>=1.25'")
    http = http_package()
    address = urlsplit(server.url)

    client = http.AsyncClient(
        headers={"accept-encoding": ENCODINGS, **server.headers},
        auth=(address.username, address.password or "") if address.username else None,
        transport=_transport_kind(http, address.query, words)(verify=await asyncio.to_thread(tls)),
        timeout=http.Timeout(CONNECT_S, read=None),  # each question to a session has its own deadline
    )
    await stack.enter_async_context(client)
    host = address.netloc.rpartition("@")[2]
    open_streams: Any = streamable_http.streamable_http_client
    known = inspect.signature(open_streams).parameters
    limit: dict[str, Any] = (
        {"max_sse_event_size": None} if "max_sse_event_size" in known else {}
    )  # ours ends the session
    return open_streams(
        urlunsplit((address.scheme, host, address.path or "/", "", "")), http_client=client, **limit
    )


def _transport_kind(http: Any, query: str, words: ServerDiagnostics) -> Any:
    """A class of transports to one server; `http`: the package of the SDK's clients."""

    class LimitedReply(http.AsyncByteStream):  # type: ignore[misc]
        """The body of a reply, within limits; one beyond them ends the session."""

        def __init__(self, reply: httpx2.Response) -> None:
            self._headers: Any = reply.headers
            self._stream: Any = reply.stream

        async def __aiter__(self) -> AsyncIterator[bytes]:
            try:
                async for part in limit_reply(self._stream, self._headers):
                    yield part
            except McpError as error:
                words.give_up(str(error))
                raise

        async def aclose(self) -> None:
            await self._stream.aclose()

    class Outermost(http.AsyncHTTPTransport):  # type: ignore[misc]
        """Adds the query on the way out, since the client logs the address of each request that it knows."""

        _met = False
        """Whether there was an answer that is no error: then the address is right."""

        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            if words.given_up.is_set():
                raise http.ConnectError("the session is over")
            sent = _with_query(request, query)
            for attempt in range(1, ATTEMPTS + 1):
                response: httpx2.Response = await super().handle_async_request(sent)
                if response.status_code not in BUSY or attempt == ATTEMPTS:
                    break
                await response.aclose()
                await asyncio.sleep(_wait(response, attempt))
            if not words.given_up.is_set():
                words.trouble = _server_failure(request, response.status_code, first=not self._met)
            self._met = self._met or response.is_success
            sent_as = ("content-encoding", "content-length", "transfer-encoding")
            headers = [pair for pair in response.headers.multi_items() if pair[0] not in sent_as]
            plain: httpx2.Response = http.Response(
                response.status_code,
                headers=headers,
                stream=LimitedReply(response),
                extensions=response.extensions,
            )
            return plain

    return Outermost


@functools.cache
def tls() -> ssl.SSLContext:
    """Whom this process trusts. Reading the certificates takes longer than all else of a session."""
    context: ssl.SSLContext = http_package().create_ssl_context()
    return context


def http_package() -> Any:
    """The package whose clients the SDK takes: httpx2 since version 2, httpx before."""
    return import_module("httpx2" if has_version_2() else "httpx")


def _with_query(request: httpx2.Request, query: str) -> httpx2.Request:
    if not query:
        return request
    return type(request)(
        request.method,
        request.url.copy_with(query=query.encode()),
        headers=request.headers,
        stream=request.stream,
        extensions=request.extensions,
    )


def _wait(response: httpx2.Response, attempt: int) -> float:
    """Seconds: what the server asks for, or one, two, four."""
    wait = 2.0 ** (attempt - 1)
    with suppress(KeyError, ValueError):
        wait = float(response.headers["retry-after"])
    return min(max(wait, 0.0), LONGEST_WAIT_S)


def _server_failure(request: httpx2.Request, status: int, *, first: bool) -> str:
    """Returns the server's failure by its status; empty if the status is about the call, whose error has
    more.
    """
    if status == 404 and "mcp-session-id" in request.headers:
        return "has forgotten the session (HTTP status 404)"
    if status in NOT_THERE and first:
        return f"answered with HTTP status {status}; the path of most MCP servers is /mcp"
    return f"answered with HTTP status {status}" if status in REFUSED or status >= 500 else ""


async def open_client(server: Server, stack: AsyncExitStack, words: ServerDiagnostics) -> Any:
    """An SDK client that has shaken hands with `server`; `stack` closes it. `words`: what a program says."""
    transport: Any
    if isinstance(server, StdioServer):
        transport = open_program(server, words)
    elif isinstance(server, HttpServer):
        transport = await open_http(server, stack, words)
    else:
        transport = _object(server)
    if not has_version_2():
        return await open_session(transport, stack)
    return await stack.enter_async_context(load_sdk().Client(transport, cache=None))


def _object(server: InProcessServer) -> Any:
    from mcp import server as sdk
    from mcp.server.lowlevel import Server as LowLevelServer

    made = server.make()
    high_level: Any = getattr(sdk, "MCPServer", None) or getattr(sdk, "FastMCP", None)
    if not isinstance(made, (high_level, LowLevelServer)):
        raise McpError(f"{server.label!r} gave a {type(made).__name__}, which is no server of the mcp SDK")
    return made
