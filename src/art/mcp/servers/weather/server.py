"""The weather service as an MCP server, over stdio or streamable HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from art.mcp.servers.weather.service import UnknownNameError, Weather, shipped
from art.mcp.sessions.quiet import root_logger_kept

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

INSTRUCTIONS = "Forecasts for one week, weather alerts and comparisons for sixteen places in Europe."

Place = Annotated[str, Field(description="Name of a place, such as Oslo.")]
Day = Annotated[str, Field(description="Day of the week, such as Monday.")]
Region = Annotated[str, Field(description="One of north, west, south, east.")]


def create_server(weather: Weather | None = None) -> MCPServer:
    """A server over `weather`, by default the shipped data set. All of its tools only read."""
    from mcp.server.mcpserver import MCPServer
    from mcp.types import ToolAnnotations

    data = weather or shipped()
    with root_logger_kept():
        server: MCPServer = MCPServer("weather", instructions=INSTRUCTIONS)
    tool = server.tool(
        annotations=ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False),
        structured_output=False,
    )

    @tool
    def list_places(region: Region) -> str:
        """List the places of a region that have forecasts, the largest first."""
        with _told():
            return data.list_places(region)

    @tool
    def forecast(place: Place, day: Day) -> str:
        """Get the weather forecast of a place for a day: condition and temperature in degrees Celsius."""
        with _told():
            return data.forecast(place, day)

    @tool
    def alerts(place: Place) -> str:
        """Get the weather alert in force for a place, with its day."""
        with _told():
            return data.alerts(place)

    @tool
    def compare(place: Place, other: Place, day: Day) -> str:
        """Compare the temperatures of two places on a day; the warmer one is named first."""
        with _told():
            return data.compare(place, other, day)

    return server


@contextmanager
def _told() -> Iterator[None]:
    """A name that is not known is a mistake of the agent, who reads which ones are."""
    from mcp.server.mcpserver.exceptions import ToolError

    try:
        yield
    except UnknownNameError as error:
        raise ToolError(str(error)) from error
