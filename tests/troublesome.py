"""A real MCP server that can fail in every way: `python troublesome.py [--http PORT | --never-ready]`."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

try:
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
except ImportError:  # version 1 of the SDK
    from mcp.server.fastmcp import FastMCP as MCPServer
    from mcp.server.fastmcp.exceptions import ToolError
from mcp.types import ToolAnnotations

from art.process.root_logger import preserve_root_logger

READS = ToolAnnotations.model_validate({"readOnlyHint": True})
WRITES = ToolAnnotations.model_validate({"readOnlyHint": False})


def create_server() -> MCPServer:
    with preserve_root_logger():
        server = MCPServer("troublesome", instructions="Trouble.")
    counted = {"calls": 0}

    @server.tool(annotations=READS)
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @server.tool(annotations=READS)
    def count() -> str:
        """How often this was called in this process."""
        counted["calls"] += 1
        return f"call {counted['calls']}"

    @server.tool(annotations=READS, structured_output=False)
    def flood(characters: int) -> str:
        """A long answer."""
        return "a" + "x" * (characters - 2) + "z"

    @server.tool(annotations=READS)
    def refuse() -> str:
        """Always fails."""
        raise ToolError("there is no such place")

    @server.tool(annotations=READS)
    async def hang() -> str:
        """Never answers."""
        await asyncio.sleep(1000)
        return "late"

    @server.tool(annotations=READS)
    def die() -> str:
        """Ends the process."""
        sys.stderr.write("the disk is on fire\n")
        sys.stderr.flush()
        os._exit(7)

    @server.tool(name="notes/pid.of", annotations=READS)
    def pid() -> int:
        """The process."""
        return os.getpid()

    @server.tool(annotations=WRITES)
    def write(path: str, text: str) -> str:
        """Write a file."""
        Path(path).write_text(text)
        return "written"

    @server.tool()
    def unmarked() -> str:
        """Says nothing about itself."""
        return "unmarked"

    documents(server)
    return server


def documents(server: MCPServer) -> None:
    @server.resource("trouble://list", name="list", description="All troubles.")
    def listed() -> str:
        return "fire, water"

    @server.resource("trouble://{kind}/news", name="news", description="What is new about one.")
    def news(kind: str) -> str:
        return f"no {kind} today"

    @server.prompt()
    def advice(trouble: str) -> str:
        """What to do about it."""
        return f"What to do about {trouble}?"


def serve_http(server: Any, port: int) -> None:
    if hasattr(server.settings, "port"):  # version 1 of the SDK
        server.settings.port = port
        server.run("streamable-http")
    else:
        server.run("streamable-http", port=port)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--never-ready"]:
        time.sleep(1000)
    elif sys.argv[1:2] == ["--http"]:
        serve_http(create_server(), int(sys.argv[2]))
    else:
        create_server().run("stdio")
