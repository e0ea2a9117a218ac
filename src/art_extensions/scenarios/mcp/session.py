"""A session with an MCP server, which any task may use: what it offers, and calls of its tools."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from art.errors import ARTError, ConfigurationError, McpError, McpTimeoutError
from art_extensions.scenarios.mcp.sdk import CLOSED, load_sdk, sdk_error
from art_extensions.scenarios.mcp.server_address import EVERY_TOOL, Server, parse_server
from art_extensions.scenarios.mcp.transports import ServerDiagnostics, open_client
from art_extensions.scenarios.mcp.types import (
    MCPDocument,
    MCPPrompt,
    MCPResource,
    MCPResourceTemplate,
    MCPTool,
    ServerOffer,
    SessionSource,
    ToolResult,
    resource_text,
    tool_result,
)

if TYPE_CHECKING:
    from art_extensions.scenarios.mcp.cassette import Cassette


START_S = 30.0
"""Seconds that a server has to be ready, where a caller does not say."""
T = TypeVar("T")

CLOSING_S = 15.0
"""A server that does not end when its input does is killed within a few seconds; this is the outer limit."""
PAGES = 100
"""A listing with more pages than this never ends."""
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
        self._words = ServerDiagnostics()
        self._task: asyncio.Task[None] | None = None
        self._given_up: asyncio.Task[Any] | None = None

    async def start(self) -> None:
        """Connect. Raises McpError, and McpTimeoutError when it takes longer than the timeout."""
        await asyncio.to_thread(load_sdk)  # it may be missing; the seconds it takes are not the server's
        ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._live(ready), name=f"mcp {self.label}")
        self._given_up = asyncio.create_task(self._words.given_up.wait())
        await asyncio.wait(
            {self._task, ready, self._given_up}, timeout=self._timeout, return_when=asyncio.FIRST_COMPLETED
        )
        self._check_words()
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

    def _check_words(self) -> None:
        if self._words.given_up.is_set():
            raise McpError(f"MCP server {self.label!r} is given up{self._words.text()}")

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
        if self._given_up is not None:
            self._given_up.cancel()
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

    async def inspect(self) -> ServerOffer:
        """All that the server offers."""
        has = self._client.server_capabilities
        resources = await self._pages(self._client.list_resources, "resources") if has.resources else []
        templates = await self._templates() if has.resources else []
        prompts = await self._pages(self._client.list_prompts, "prompts") if has.prompts else []
        return ServerOffer(
            tools=await self.tools(),
            resources=[_resource(resource) for resource in resources],
            templates=[_template(template) for template in templates],
            prompts=[_prompt(prompt) for prompt in prompts],
        )

    async def _templates(self) -> list[Any]:
        """Returns the resource templates; none for a server that has resources and does not know this
        request.
        """
        try:
            return await self._pages(self._client.list_resource_templates, "resource_templates")
        except McpError as error:
            cause = error.__cause__
            if isinstance(cause, sdk_error()) and cause.error.code == _NO_SUCH_METHOD:
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

        async def ask() -> ToolResult:
            try:
                return tool_result(await self._client.call_tool(tool.name, dict(arguments)))
            except sdk_error() as error:
                if error.error.code == CLOSED or self._words.trouble:
                    raise  # the server's state, not the call
                return ToolResult(text=error.error.message, is_error=True)
            except RuntimeError as error:  # the SDK's word for an answer that its own schema forbids
                return ToolResult(text=str(error), is_error=True)

        return await self._ask(f"call {tool.name!r}", ask(), timeout)

    async def _ask(self, what: str, question: Awaitable[T], timeout: float) -> T:
        """The answer, or an error as soon as the server is gone or the time is over."""
        from pydantic import ValidationError

        assert self._task is not None and self._given_up is not None
        request = asyncio.ensure_future(question)
        try:
            ends = {request, self._task, self._given_up}
            await asyncio.wait(ends, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            self._check_words()
            if request.done():
                return request.result()
            if self._task.done():
                raise McpError(f"MCP server {self.label!r} is gone{self._words.text()}")
            raise McpTimeoutError(f"MCP server {self.label!r} did not {what} within {timeout:g} s")
        except sdk_error() as error:
            raise McpError(
                f"MCP server {self.label!r} failed to {what}: {error.error.message}{self._words.text()}"
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


Writes = Collection[str] | Literal[True]
"""Names of tools that may be called though they may write; True: all."""


class Session:
    """The session that `connect` opens. Any task may use it, several at once; it ends with `connect`'s
    block.
    """

    def __init__(self, source: SessionSource, tools: list[MCPTool], allow_writes: Writes) -> None:
        self.label = source.label
        """The server, for people and for metadata: a command or an address, without secrets."""
        self._source, self._tools = source, tools
        self._offer: ServerOffer | None = None
        self._by_name = {tool.name: tool for tool in tools}
        if allow_writes is not True:
            self._check_names(allow_writes)
        self._allow_writes = allow_writes

    def _check_names(self, names: Collection[str]) -> None:
        if isinstance(names, str) or (unknown := sorted(set(names) - self._by_name.keys())):
            wrong = names if isinstance(names, str) else unknown
            raise ConfigurationError(
                f"allow_writes={wrong!r}: give a list of tools of {self.label!r}, which has "
                f"{sorted(self._by_name)}, or True for all"
            )

    async def tools(self) -> list[MCPTool]:
        """All tools, also those that `call` would refuse."""
        return list(self._tools)

    async def resources(self) -> list[MCPResource]:
        """The documents that the server lists. Raises McpError, McpTimeoutError."""
        return list((await self._inspected()).resources)

    async def resource_templates(self) -> list[MCPResourceTemplate]:
        """Addresses of documents with places to fill in. Raises McpError, McpTimeoutError."""
        return list((await self._inspected()).templates)

    async def documents(self) -> list[MCPDocument]:
        """Returns resources and resource templates. Raises McpError, McpTimeoutError."""
        return [*await self.resources(), *await self.resource_templates()]

    async def prompts(self) -> list[MCPPrompt]:
        """The prompt templates that the server lists. Raises McpError, McpTimeoutError."""
        return list((await self._inspected()).prompts)

    async def _inspected(self) -> ServerOffer:
        if self._offer is None:  # asked for late: a rollout needs the tools alone
            self._offer = await self._source.inspect()
        return self._offer

    async def read_resource(self, uri: str, *, timeout: float = 30.0) -> str:
        """The text of a document. Raises McpError, McpTimeoutError."""
        return await self._source.read_resource(uri, timeout=timeout)

    def allows(self, name: str) -> bool:
        """Returns whether this tool may be called: it only reads, or it was allowed to write."""
        tool = self._by_name.get(name)
        if tool is None:
            return False
        return tool.read_only is True or self._allow_writes is True or name in self._allow_writes

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float = 60.0,
        limit: int | None = None,
    ) -> ToolResult:
        """Call a tool; what it reports as wrong is a result with `is_error`.

        timeout: seconds. limit: characters of the result's text. Raises ConfigurationError for a tool that
        the server does not have or that may write and is not allowed to, McpTimeoutError when it takes too
        long, McpError when the server is gone.
        """
        tool = self._by_name.get(name)
        if tool is None:
            raise ConfigurationError(f"{self.label!r} has no tool {name!r}; it has {sorted(self._by_name)}")
        if not self.allows(name):
            raise ConfigurationError(
                f"tool {name!r} of {self.label!r} may write: allow it with allow_writes=[{name!r}], or, if "
                f"it only reads, name it in the server's read_only"
            )
        result = await self._source.call(tool, arguments or {}, timeout=timeout)
        return result.limited(limit)


@asynccontextmanager
async def connect(
    server: Any,
    *,
    timeout: float = START_S,
    allow_writes: Writes = (),
    cassette: Cassette | None = None,
) -> AsyncIterator[Session]:
    """A session with a server of its own, which ends with the block.

    server: as `parse_server` takes it. timeout: seconds to start and for each listing. allow_writes: tools
    that may be called though they may write (True: all); tools that the server marks as read-only, or the
    description's `read_only` names, need no leave. cassette: what is asked is recorded on it or played from
    it; one that replays needs no server (None). Raises McpError when the server cannot be started or
    reached, McpTimeoutError when that takes too long, CassetteError.
    """
    source = _source(server, timeout, cassette)
    try:
        await source.start()
        yield Session(source, await source.tools(), allow_writes)
    finally:
        await source.close()


def _source(server: Any, timeout: float, cassette: Cassette | None) -> SessionSource:

    if cassette is None:
        return LiveServer(parse_server(server), timeout=timeout)
    live = LiveServer(parse_server(server), timeout=timeout) if cassette.needs_server else None
    return cassette.session(live)
