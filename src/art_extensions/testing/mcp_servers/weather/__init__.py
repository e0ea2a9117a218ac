"""A weather service over a shipped data set: `python -m art.mcp.servers.weather`.

Each tool answers with a short line. `art/nano-mcp` learns to work with it; `tasks` has scenarios for it, and
knows how well one was done.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from art.process.root_logger import preserve_root_logger
from art_extensions.testing.mcp_servers import reading_tool, server_class, tool_error

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer


PLACES = (
    *("Stockholm", "Oslo", "Helsinki", "Bergen", "London", "Paris", "Brussels", "Dublin"),
    *("Madrid", "Rome", "Athens", "Lisbon", "Vienna", "Warsaw", "Prague", "Riga"),
)
REGIONS = ("north", "west", "south", "east")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
CONDITIONS = ("sunshine", "clouds", "rain", "fog", "wind", "thunder")
ALERTS = ("storm", "flood", "heat", "fire")
TEMPERATURES = range(10, 40)
DATA = Path(__file__).with_name("data.json")


class UnknownNameError(ValueError):
    """A place, a day or a region that the service does not know; says which ones it knows."""


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """One day at one place; degrees Celsius."""

    condition: str
    temperature: int


@dataclass(frozen=True, kw_only=True)
class Alert:
    """The warning of one place."""

    day: str
    kind: str


@dataclass(frozen=True, kw_only=True)
class Weather:
    """A data set, and the tools over it. Each tool takes names in any case and answers with one line."""

    regions: Mapping[str, Sequence[str]]
    """Places by region, the largest first."""
    forecasts: Mapping[tuple[str, str], Forecast]
    """Place and day -> its forecast."""
    warnings: Mapping[str, Alert]
    """Place -> its warning, where it has one."""

    def list_places(self, region: str) -> str:
        """The places of `region`, the largest first. Raises UnknownNameError."""
        return ", ".join(self.regions[known("region", region, tuple(self.regions))])

    def forecast(self, place: str, day: str) -> str:
        """Condition and temperature. Raises UnknownNameError."""
        place, day = known("place", place, PLACES), known("day", day, DAYS)
        forecast = self.forecasts[place, day]
        return f"{place}, {day}: {forecast.condition}, {forecast.temperature} degrees"

    def alerts(self, place: str) -> str:
        """The warning in force at `place` and its day. Raises UnknownNameError."""
        place = known("place", place, PLACES)
        alert = self.warnings.get(place)
        return f"{place}, {alert.day}: {alert.kind}" if alert else f"{place}: no alerts"

    def compare(self, place: str, other: str, day: str) -> str:
        """The warmer one of two places first. Raises UnknownNameError."""
        places = (known("place", place, PLACES), known("place", other, PLACES))
        day = known("day", day, DAYS)
        cool, warm = sorted(places, key=lambda one: self.forecasts[one, day].temperature)
        high, low = self.forecasts[warm, day].temperature, self.forecasts[cool, day].temperature
        if high == low:
            return f"{warm} and {cool} are equally warm on {day}: {high} degrees"
        return f"{warm} is warmer on {day}: {high} degrees, {cool} {low} degrees"


def known(kind: str, name: str, names: Sequence[str]) -> str:
    """`name` as the service spells it. Raises UnknownNameError."""
    for one in names:
        if one.lower() == name.strip().lower():
            return one
    raise UnknownNameError(f"unknown {kind} {name!r}; known: {', '.join(names)}")


@cache
def shipped() -> Weather:
    """The data set that ships with the service."""
    data = json.loads(DATA.read_text())
    return Weather(
        regions=data["regions"],
        forecasts={
            (place, day): Forecast(condition=condition, temperature=temperature)
            for place, days in data["forecasts"].items()
            for day, (condition, temperature) in days.items()
        },
        warnings={place: Alert(day=day, kind=kind) for place, (day, kind) in data["alerts"].items()},
    )


def draw(dice: random.Random) -> Weather:
    """A random data set with the same names: what is true in one is mostly false in another."""
    places = dice.sample(PLACES, len(PLACES))
    share = len(PLACES) // len(REGIONS)
    return Weather(
        regions={region: places[at * share : (at + 1) * share] for at, region in enumerate(REGIONS)},
        forecasts={
            (place, day): Forecast(condition=dice.choice(CONDITIONS), temperature=dice.choice(TEMPERATURES))
            for place in PLACES
            for day in DAYS
        },
        warnings={
            place: Alert(day=dice.choice(DAYS), kind=dice.choice(ALERTS))
            for place in dice.sample(PLACES, len(PLACES) * 3 // 4)
        },
    )


INSTRUCTIONS = "Forecasts for one week, weather alerts and comparisons for sixteen places in Europe."

Place = Annotated[str, Field(description="Name of a place, such as Oslo.")]
Day = Annotated[str, Field(description="Day of the week, such as Monday.")]
Region = Annotated[str, Field(description="One of north, west, south, east.")]


def create_server(weather: Weather | None = None) -> MCPServer:
    """A server over `weather`, by default the shipped data set. All of its tools only read."""
    data = weather or shipped()
    with preserve_root_logger():
        server: MCPServer = server_class()("weather", instructions=INSTRUCTIONS)
    tool = reading_tool(server)

    @tool
    def list_places(region: Region) -> str:
        """List the places of a region that have forecasts, the largest first."""
        with _errors_for_agent():
            return data.list_places(region)

    @tool
    def forecast(place: Place, day: Day) -> str:
        """Get the weather forecast of a place for a day: condition and temperature in degrees Celsius."""
        with _errors_for_agent():
            return data.forecast(place, day)

    @tool
    def alerts(place: Place) -> str:
        """Get the weather alert in force for a place, with its day."""
        with _errors_for_agent():
            return data.alerts(place)

    @tool
    def compare(place: Place, other: Place, day: Day) -> str:
        """Compare the temperatures of two places on a day; the warmer one is named first."""
        with _errors_for_agent():
            return data.compare(place, other, day)

    return server


@contextmanager
def _errors_for_agent() -> Iterator[None]:
    """A name that is not known is a mistake of the agent, who reads which ones are."""
    try:
        yield
    except UnknownNameError as error:
        raise tool_error()(str(error)) from error
