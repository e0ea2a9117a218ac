"""A session of version 1 of the MCP SDK, with the methods and names of version 2's client."""

from __future__ import annotations

import re
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from importlib import import_module
from typing import Any

from pydantic import AnyUrl, BaseModel

from art_extensions.scenarios.mcp.sdk import CLOSED, sdk_error

_UNDERSCORE = re.compile(r"_([a-z])")


class SnakeCase:
    """A value of version 1 under the names that version 2 has: `tool.input_schema` is its `inputSchema`."""

    def __init__(self, value: BaseModel) -> None:
        self._value = value

    def __getattr__(self, name: str) -> Any:
        if hasattr(self._value, name):
            return _renamed(getattr(self._value, name))
        return _renamed(getattr(self._value, _UNDERSCORE.sub(lambda found: found[1].upper(), name)))


def _renamed(value: Any) -> Any:
    if isinstance(value, list):
        return [_renamed(one) for one in value]
    return SnakeCase(value) if isinstance(value, BaseModel) else value


class EarlierSession:
    """A `ClientSession` that has shaken hands. An HTTP status that is an error ends it, as the SDK has it."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.server_capabilities = SnakeCase(session.get_server_capabilities())

    async def list_tools(self, *, cursor: str | None) -> SnakeCase:
        """Returns a page of the tools."""
        return await _answer(self._session.list_tools(cursor))

    async def list_resources(self, *, cursor: str | None) -> SnakeCase:
        """Returns a page of the resources."""
        return await _answer(self._session.list_resources(cursor))

    async def list_resource_templates(self, *, cursor: str | None) -> SnakeCase:
        """Returns a page of the templates of resources."""
        return await _answer(self._session.list_resource_templates(cursor))

    async def list_prompts(self, *, cursor: str | None) -> SnakeCase:
        """Returns a page of the prompts."""
        return await _answer(self._session.list_prompts(cursor))

    async def read_resource(self, uri: str) -> SnakeCase:
        """Returns the contents of a resource."""
        return await _answer(self._session.read_resource(AnyUrl(uri)))

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> SnakeCase:
        """Returns what a tool answers."""
        return await _answer(self._session.call_tool(name, arguments))


async def _answer(question: Awaitable[BaseModel]) -> SnakeCase:
    """Raises the SDK's error for a connection that is closed already, as version 2 does."""
    import anyio
    from mcp.types import ErrorData

    try:
        return SnakeCase(await question)
    except (anyio.ClosedResourceError, anyio.BrokenResourceError) as error:
        raise sdk_error()(ErrorData(code=CLOSED, message="Connection closed")) from error


async def open_session(transport: Any, stack: AsyncExitStack) -> EarlierSession:
    """Shakes hands over a transport, or with a server object of this process. `stack` closes it all."""
    from mcp import ClientSession

    if not hasattr(transport, "__aenter__"):
        memory: Any = import_module("mcp.shared.memory")
        connected = memory.create_connected_server_and_client_session(transport)
        return EarlierSession(await stack.enter_async_context(connected))
    incoming, outgoing, *_ = await stack.enter_async_context(transport)
    session = await stack.enter_async_context(ClientSession(incoming, outgoing))
    await session.initialize()
    return EarlierSession(session)
