"""MCP over the standard input and output of a program: the transport, with limits on what the program may do.

The SDK's own stdio transport collects a line of any length and logs each line that is no message; a server
that floods its output would fill memory or the log of a run. This one reads lines of at most `LINE_LIMIT`
bytes, gives up after `STRAY_LINES` that are no messages, and keeps the end of standard error for errors.
"""

from __future__ import annotations

import asyncio
import math
import os
import shutil
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from art.errors import McpError
from art.mcp.sessions.server import StdioServer
from art.process.reaper import reaper

LINE_LIMIT = 16 << 20
"""Bytes of one message."""
STRAY_LINES = 1000
"""Some programs print a banner; one that prints so many lines speaks another language."""
STDERR_KEPT = 2000
"""Bytes of the end of standard error that are kept."""
GRACE_S = 2.0
"""Between the end of its input and SIGTERM, and between that and SIGKILL."""
FLUSH_S = 0.5
WATCH_S = 0.5
"""Between two looks at whether the program lives: its children may hold its pipes open when it is gone."""
_POLL_S = 0.01
_KILL = signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL


class LastWords:
    """What is known of the end of a server's program, for error messages."""

    def __init__(self) -> None:
        self.stderr = b""
        self.trouble = ""

    def text(self) -> str:
        """Empty if nothing is known."""
        said = self.stderr.decode("utf-8", errors="replace").strip()
        parts = [f"It {self.trouble}."] if self.trouble else []
        parts += [f"Its standard error ends with:\n{said}"] if said else []
        return "".join(f"\n{part}" for part in parts)


@asynccontextmanager
async def program(server: StdioServer, words: LastWords) -> AsyncIterator[tuple[Any, Any]]:
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


async def _read(process: Process, arriving: Any, words: LastWords, stderr: asyncio.Task[None]) -> None:
    """Messages of the program to the session, until either ends; then to nowhere, so that it can end."""
    import anyio
    from mcp.shared.message import SessionMessage
    from mcp.types import jsonrpc_message_adapter

    assert process.stdout is not None
    stray = 0
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, ConnectionError):
        async with arriving:
            while line := await _line(process.stdout, words):
                try:
                    message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                except ValueError:
                    stray += bool(line.strip())
                    if stray < STRAY_LINES:
                        continue
                    shown = line[:80].decode("utf-8", errors="replace").strip()
                    words.trouble = f"wrote {stray} lines that are no messages, such as {shown!r}"
                    break
                await arriving.send(SessionMessage(message))
            if not words.trouble:  # known before the session learns that this is the end
                await asyncio.wait({stderr}, timeout=FLUSH_S)
                await _ended(process, FLUSH_S)
                words.trouble = f"ended with exit code {process.returncode}"
    with suppress(ConnectionError):
        while await process.stdout.read(1 << 16):
            pass


async def _line(stdout: asyncio.StreamReader, words: LastWords) -> bytes:
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


async def _keep_stderr(process: Process, words: LastWords) -> None:
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
