from __future__ import annotations

import asyncio
import random
import socket
import subprocess
import sys

import pytest

from art.process.resources import find_free_tcp_port
from art_extensions.scenarios.mcp import StdioServer, connect
from art_extensions.testing.mcp_servers.weather import (
    CONDITIONS,
    DAYS,
    PLACES,
    REGIONS,
    UnknownNameError,
    create_server,
    draw,
    shipped,
)
from waiting import until

COMMAND = StdioServer(command=sys.executable, args=("-m", "art_extensions.testing.mcp_servers.weather"))


@pytest.mark.slow
async def test_over_stdio_it_lists_tools_that_only_read_and_answers_calls() -> None:
    async with connect(COMMAND) as session:
        tools = await session.tools()
        told = [await session.call("forecast", {"place": place, "day": "monday"}) for place in ("Oslo", "X")]
    assert [tool.name for tool in tools] == ["list_places", "forecast", "alerts", "compare"]
    assert all(tool.read_only and tool.description for tool in tools)
    assert tools[1].parameters["required"] == ["place", "day"]
    forecast = shipped().forecasts["Oslo", "Monday"]
    assert told[0].text == f"Oslo, Monday: {forecast.condition}, {forecast.temperature} degrees"
    assert told[1].is_error and "unknown place 'X'; known: Stockholm" in told[1].text


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.slow
async def test_with_http_it_answers_at_the_port_that_was_given() -> None:
    port = find_free_tcp_port()
    program = [
        sys.executable,
        "-m",
        "art_extensions.testing.mcp_servers.weather",
        "--http",
        "--port",
        str(port),
    ]
    process = await asyncio.create_subprocess_exec(*program, stderr=subprocess.DEVNULL)
    try:
        await until(lambda: listens(port))
        async with connect(f"http://127.0.0.1:{port}/mcp") as session:
            told = await session.call("alerts", {"place": "Rome"})
        assert told.text == shipped().alerts("Rome")
    finally:
        process.kill()
        await process.wait()


async def test_it_serves_any_data_set() -> None:
    weather = draw(random.Random(3))
    async with connect(lambda: create_server(weather)) as session:
        told = await session.call("list_places", {"region": "north"})
    assert told.text == ", ".join(weather.regions["north"]) != shipped().list_places("north")


def test_the_shipped_data_is_complete_and_of_the_known_words() -> None:
    weather = shipped()
    assert sorted(place for places in weather.regions.values() for place in places) == sorted(PLACES)
    assert tuple(weather.regions) == REGIONS
    assert set(weather.forecasts) == {(place, day) for place in PLACES for day in DAYS}
    assert {forecast.condition for forecast in weather.forecasts.values()} == set(CONDITIONS)
    assert 0 < len(weather.warnings) < len(PLACES)


def test_each_tool_answers_with_one_line() -> None:
    weather = draw(random.Random(0))
    warned = next(iter(weather.warnings))
    alert = weather.warnings[warned]
    assert weather.alerts(warned.upper()) == f"{warned}, {alert.day}: {alert.kind}"
    free = next(place for place in PLACES if place not in weather.warnings)
    assert weather.alerts(free) == f"{free}: no alerts"
    for other in PLACES[1:]:
        here, there = (weather.forecasts[place, "Friday"].temperature for place in (PLACES[0], other))
        told = weather.compare(PLACES[0], other, "friday")
        assert told == weather.compare(other, PLACES[0], "Friday") or here == there
        assert ("equally" in told) == (here == there)
        if here != there:
            assert told.startswith(PLACES[0] if here > there else other)


def test_an_unknown_name_is_told_with_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="unknown region 'moon'; known: north, west"):
        shipped().list_places("moon")
    with pytest.raises(UnknownNameError, match="unknown day 'Noday'; known: Monday"):
        shipped().forecast("Oslo", "Noday")
