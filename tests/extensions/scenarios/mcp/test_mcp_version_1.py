"""Version 1 of the MCP SDK, by a session that answers as its `ClientSession` does: names are in camel case.

`make test-mcp-older` runs the tests of MCP with the SDK itself.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack, asynccontextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import anyio
import mcp
import pytest
from pydantic import AnyUrl, BaseModel

from art.errors import ConfigurationError, McpError
from art_extensions.scenarios.mcp import connect
from art_extensions.scenarios.mcp.sdk import sdk_error
from art_extensions.scenarios.mcp.transports import http_package
from art_extensions.scenarios.mcp.version_1 import SnakeCase, open_session


class Part(BaseModel):
    type: str = "text"
    text: str = "14 degrees"
    mimeType: str | None = None


class Hints(BaseModel):
    readOnlyHint: bool | None = True


class Tool(BaseModel):
    name: str = "forecast"
    description: str | None = None
    inputSchema: dict[str, Any] = {"properties": {"place_name": {}}}
    annotations: Hints | None = Hints()


class Page(BaseModel):
    tools: list[Tool] = []
    resourceTemplates: list[Any] = []
    nextCursor: str | None = None


class Answer(BaseModel):
    content: list[Part] = [Part()]
    structuredContent: dict[str, Any] | None = None
    isError: bool = False


class Session:
    """A `ClientSession` of version 1."""

    def __init__(self, incoming: Any, outgoing: Any) -> None:
        self.closed, self.shook_hands = False, False

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.closed = True

    async def initialize(self) -> None:
        self.shook_hands = True

    def get_server_capabilities(self) -> BaseModel:
        class Capabilities(BaseModel):
            tools: dict[str, Any] | None = {}
            resources: dict[str, Any] | None = None
            prompts: dict[str, Any] | None = None

        return Capabilities(tools={"listChanged": False})

    async def list_tools(self, cursor: str | None = None) -> Page:
        return Page(tools=[Tool()], nextCursor="2") if cursor is None else Page(tools=[Tool(name="alerts")])

    async def read_resource(self, uri: AnyUrl) -> BaseModel:
        class Contents(BaseModel):
            contents: list[Part] = [Part(text=f"of {uri}")]

        assert isinstance(uri, AnyUrl)
        return Contents()

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> Answer:
        if name == "alerts":
            raise anyio.ClosedResourceError
        return Answer(content=[Part(text=f"{name} {arguments}")])


class EarlierError(Exception):
    def __init__(self, error: Any) -> None:
        super().__init__(error.message)
        self.error = error


@pytest.fixture
def version_1(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    sdk = ModuleType("mcp")
    vars(sdk).update(McpError=EarlierError, ClientSession=Session)
    monkeypatch.setattr("art_extensions.scenarios.mcp.sdk.load_sdk", lambda: sdk)
    monkeypatch.setattr(mcp, "ClientSession", Session)
    return sdk


@asynccontextmanager
async def transport(*_: Any) -> Any:
    yield "incoming", "outgoing", lambda: "session id"


def test_names_of_version_2_find_those_of_version_1() -> None:
    tool = SnakeCase(Tool())
    assert tool.name == "forecast" and tool.description is None
    assert tool.input_schema == {"properties": {"place_name": {}}} and tool.annotations.read_only_hint is True
    assert [one.mime_type for one in SnakeCase(Answer()).content] == [None]
    assert getattr(SnakeCase(Hints()), "text", None) is None
    assert SnakeCase(Part()).model_dump(exclude_none=True) == {"type": "text", "text": "14 degrees"}


@pytest.mark.usefixtures("version_1")
async def test_a_session_of_version_1_is_one_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("art_extensions.scenarios.mcp.transports.open_program", transport)
    async with connect("a program") as session:
        assert [tool.name for tool in await session.tools()] == ["forecast", "alerts"]
        assert all(tool.read_only and "properties" in tool.parameters for tool in await session.tools())
        assert (await session.call("forecast", {"place": "Oslo"})).text == "forecast {'place': 'Oslo'}"
        assert await session.read_resource("weather://oslo") == "of weather://oslo"
        with pytest.raises(McpError, match="failed to call 'alerts': Connection closed"):
            await session.call("alerts")


@pytest.mark.usefixtures("version_1")
async def test_a_server_object_is_connected_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def connected(server: Any) -> Any:
        assert server.name == "weather"
        yield Session(None, None)

    memory: Callable[..., Any] = connected
    monkeypatch.setattr("mcp.shared.memory.create_connected_server_and_client_session", memory, raising=False)
    async with AsyncExitStack() as stack:
        client = await open_session(SimpleNamespace(name="weather"), stack)
        assert [tool.name for tool in (await client.list_tools(cursor="2")).tools] == ["alerts"]


async def test_an_sdk_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("mcp.client.streamable_http.streamable_http_client")
    with pytest.raises(ConfigurationError, match=r"older than 1.24: pip install 'mcp>=1.25'"):
        async with connect("http://127.0.0.1:9/mcp"):
            pass


@pytest.mark.usefixtures("version_1")
def test_version_1_has_its_own_error_and_http_client() -> None:
    assert sdk_error() is EarlierError and http_package().__name__ == "httpx"
