"""A connection to a running MCP server, which any task may use."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from art.errors import ARTError, McpError, McpTimeoutError
from art.mcp.sessions.results import ToolResult, resource_text, tool_result
from art.mcp.sessions.server import EVERY_TOOL, Server
from art.mcp.sessions.source import Offer
from art.mcp.sessions.stdio import LastWords
from art.mcp.sessions.transports import open_client
from art.mcp.types import MCPPrompt, MCPResource, MCPResourceTemplate, MCPTool

T = TypeVar("T")

CLOSING_S = 15.0
"""A server that does not end when its input does is killed within a few seconds; this is the outer limit."""
PAGES = 100
"""A listing with more pages than this never ends."""
_CLOSED = -32000
_NO_SUCH_METHOD = -32601

_LOGGER = logging.getLogger(__name__)


class LiveServer:
    """One session with one server.

    The SDK's connection lives in a task of its own from beginning to end: its cancel scopes may not be left
    by another task than the one that entered them, and rollouts begin, share and end wherever they like.
    """

    def __init__(self, server: Server, *, timeout: float) -> None:
        self.label = server.label
        self._server, self._timeout = server, timeout
        self._client: Any = None
        self._tools: list[MCPTool] | None = None
        self._stop = asyncio.Event()
        self._words = LastWords()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Connect. Raises McpError, and McpTimeoutError when it takes longer than the timeout."""
        ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._live(ready), name=f"mcp {self.label}")
        await asyncio.wait({self._task, ready}, timeout=self._timeout, return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            self._client = ready.result()
            return
        if self._task.done():
            error = self._task.exception()
            if isinstance(error, ARTError):
                raise error
            raise McpError(
                f"MCP server {self.label!r} could not be reached: {_reason(error)}{self._words.text()}"
            )
        raise McpTimeoutError(
            f"MCP server {self.label!r} was not ready within {self._timeout:g} s{self._words.text()}"
        )

    async def _live(self, ready: asyncio.Future[Any]) -> None:
        async with AsyncExitStack() as stack:
            client = await open_client(self._server, stack, self._words)
            if not ready.done():
                ready.set_result(client)
            await self._stop.wait()

    async def close(self) -> None:
        """End the connection, and the server's process where there is one."""
        task = self._task
        if task is None:
            return
        self._stop.set()
        if self._client is None:
            task.cancel()  # still on its way
        await asyncio.wait({task}, timeout=CLOSING_S)
        if not task.done():
            _LOGGER.warning("MCP server %r did not end within %g s", self.label, CLOSING_S)
            task.cancel()
        elif not task.cancelled() and (error := task.exception()) is not None:
            _LOGGER.debug("MCP server %r ended with %s", self.label, _reason(error))

    async def tools(self) -> list[MCPTool]:
        """The tools alone, which are all that a rollout needs."""
        if self._tools is None:
            has = self._client.server_capabilities.tools
            found = await self._pages(self._client.list_tools, "tools") if has else []
            self._tools = [_tool(tool, self._server.read_only) for tool in found]
        return self._tools

    async def inspect(self) -> Offer:
        """All that the server offers."""
        has = self._client.server_capabilities
        resources = await self._pages(self._client.list_resources, "resources") if has.resources else []
        templates = await self._templates() if has.resources else []
        prompts = await self._pages(self._client.list_prompts, "prompts") if has.prompts else []
        return Offer(
            tools=await self.tools(),
            resources=[_resource(resource) for resource in resources],
            templates=[_template(template) for template in templates],
            prompts=[_prompt(prompt) for prompt in prompts],
        )

    async def _templates(self) -> list[Any]:
        """None of a server that has resources and does not know this question."""
        from mcp import MCPError

        try:
            return await self._pages(self._client.list_resource_templates, "resource_templates")
        except McpError as error:
            if isinstance(error.__cause__, MCPError) and error.__cause__.code == _NO_SUCH_METHOD:
                return []
            raise

    async def _pages(self, listing: Callable[..., Awaitable[Any]], name: str) -> list[Any]:
        items: list[Any] = []
        cursor = None
        for _ in range(PAGES):
            page = await self._ask(f"list {name}", listing(cursor=cursor), self._timeout)
            items += getattr(page, name)
            if (cursor := page.next_cursor) is None:
                return items
        raise McpError(f"MCP server {self.label!r} lists {name} on more than {PAGES} pages")

    async def read_resource(self, uri: str, *, timeout: float) -> str:
        """The text of a resource."""
        answer = await self._ask(f"read {uri!r}", self._client.read_resource(uri), timeout)
        return "\n".join(resource_text(part) for part in answer.contents)

    async def call(self, tool: MCPTool, arguments: Mapping[str, Any], *, timeout: float) -> ToolResult:
        """The tool's answer. What the server says is wrong with the call is an answer, too."""
        from mcp import MCPError

        async def ask() -> ToolResult:
            try:
                return tool_result(await self._client.call_tool(tool.name, dict(arguments)))
            except MCPError as error:
                if error.code == _CLOSED or self._words.trouble:
                    raise  # the server's state, not the call
                return ToolResult(text=error.message, is_error=True)
            except RuntimeError as error:  # the SDK's word for an answer that its own schema forbids
                return ToolResult(text=str(error), is_error=True)

        return await self._ask(f"call {tool.name!r}", ask(), timeout)

    async def _ask(self, what: str, question: Awaitable[T], timeout: float) -> T:
        """The answer, or an error as soon as the server is gone or the time is over."""
        from mcp import MCPError
        from pydantic import ValidationError

        assert self._task is not None
        request = asyncio.ensure_future(question)
        try:
            await asyncio.wait({request, self._task}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if request.done():
                return request.result()
            if self._task.done():
                raise McpError(f"MCP server {self.label!r} is gone{self._words.text()}")
            raise McpTimeoutError(f"MCP server {self.label!r} did not {what} within {timeout:g} s")
        except MCPError as error:
            raise McpError(
                f"MCP server {self.label!r} failed to {what}: {error.message}{self._words.text()}"
            ) from error
        except ValidationError as error:
            raise McpError(
                f"MCP server {self.label!r} does not keep to the protocol ({what}): {error}"
            ) from error
        finally:
            if not request.done():
                request.cancel()
                await asyncio.wait({request}, timeout=CLOSING_S)


def _tool(tool: Any, read_only: tuple[str, ...]) -> MCPTool:
    hint = tool.annotations.read_only_hint if tool.annotations is not None else None
    if EVERY_TOOL in read_only or tool.name in read_only:
        hint = True
    return MCPTool(tool.name, tool.description or "", dict(tool.input_schema), hint)


def _resource(resource: Any) -> MCPResource:
    return MCPResource(str(resource.uri), resource.name or "", resource.description or "", resource.mime_type)


def _template(template: Any) -> MCPResourceTemplate:
    return MCPResourceTemplate(
        template.uri_template, template.name or "", template.description or "", template.mime_type
    )


def _prompt(prompt: Any) -> MCPPrompt:
    arguments = [item.model_dump(exclude_none=True) for item in prompt.arguments or ()]
    return MCPPrompt(prompt.name, prompt.description or "", arguments)


def _reason(error: BaseException | None) -> str:
    """The first cause in a group of exceptions, as the SDK's task groups raise them."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
