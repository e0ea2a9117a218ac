from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from agent_endpoint import DONE, Agent, call, script

from art.errors import CassetteError, ConfigurationError, McpError, McpTimeoutError
from art_extensions.scenarios.mcp import Cassette, StdioServer, connect, rollout
from troublesome import create_server


def text_of(path: Path) -> str:
    return path.read_text()


NOWHERE = StdioServer(command="no-such-program")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "tape.jsonl"


async def ask(session: Any) -> list[Any]:
    """One of everything."""
    said: list[Any] = [await session.tools(), await session.resources(), await session.prompts()]
    said.append(await session.read_resource("trouble://list"))
    for name, arguments in (("add", {"a": 1, "b": 2}), ("refuse", {}), ("count", {}), ("count", {})):
        said.append(await session.call(name, arguments))
    said.append(await session.call("flood", {"characters": 5000}, limit=100))
    with pytest.raises(McpTimeoutError):
        await session.call("hang", timeout=0.1)
    return said


async def test_what_was_recorded_is_played_without_a_server(path: Path) -> None:
    async with connect(create_server, cassette=Cassette(path, "record")) as session:
        recorded = await ask(session)
    assert [result.text for result in recorded[6:8]] == ["call 1", "call 2"], "equal calls, other answers"
    for server in (None, NOWHERE):
        async with connect(server, cassette=Cassette(path)) as session:
            assert session.label == "create_server" and await ask(session) == recorded


async def test_sessions_of_one_cassette_are_each_played_from_the_start(path: Path) -> None:
    tape = Cassette(path, "record")
    for _ in range(2):
        async with connect(create_server, cassette=tape) as session:
            await session.call("count")
            await session.call("count")
    assert len(text_of(path).splitlines()) == 3, "the second session said nothing new"
    tape = Cassette(path)
    async with connect(None, cassette=tape) as one, connect(None, cassette=tape) as other:
        said = [(await session.call("count")).text for session in (one, other, one, other)]
    assert said == ["call 1", "call 1", "call 2", "call 2"]


async def test_a_call_that_is_not_on_it_is_an_error_that_says_so(path: Path) -> None:
    async with connect(create_server, cassette=Cassette(path, "record")) as session:
        await session.call("add", {"a": 1, "b": 2})
    async with connect(None, cassette=Cassette(path)) as session:
        with pytest.raises(CassetteError) as error:
            await session.call("add", {"a": 1, "b": 3})
        assert 'call \'add\' with {"a": 1, "b": 3} is not on the cassette' in str(error.value)
        assert "1 others of 'add' are" in str(error.value) and "record it again" in str(error.value)
        with pytest.raises(CassetteError, match="read 'trouble://list'"):
            await session.read_resource("trouble://list")
        assert (await session.call("add", {"b": 2, "a": 1})).text == "3", "the order of names is no matter"


async def test_extending_asks_the_server_for_the_rest_alone(path: Path, tmp_path: Path) -> None:
    started: list[int] = []

    def make() -> Any:
        started.append(1)
        return create_server()

    async with connect(make, cassette=Cassette(path, "extend")) as session:
        await session.call("add", {"a": 1, "b": 2})
    assert len(started) == 1
    async with connect(make, cassette=Cassette(path, "extend")) as session:
        assert (await session.call("add", {"a": 1, "b": 2})).text == "3"
        assert len(started) == 1, "all of it was on the cassette"
        assert (await session.call("add", {"a": 5, "b": 5})).text == "10"
        assert len(started) == 2
    target = tmp_path / "x"
    async with connect(make, cassette=Cassette(path, "extend"), allow_writes=True) as session:
        with pytest.raises(CassetteError, match="'write'"):
            await session.call("write", {"path": str(target), "text": "y"})
    assert not target.exists(), "the server is not in the state in which the recording left it"
    async with connect(None, cassette=Cassette(path)) as session:
        assert (await session.call("add", {"a": 5, "b": 5})).text == "10"


async def test_a_call_that_writes_is_played_as_often_as_it_was_recorded(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "x"
    arguments = {"path": str(target), "text": "y"}
    async with connect(create_server, cassette=Cassette(path, "record"), allow_writes=True) as session:
        await session.call("write", arguments)
        await session.call("add", {"a": 1, "b": 1})
    target.unlink()
    async with connect(None, cassette=Cassette(path), allow_writes=True) as session:
        assert (await session.call("write", arguments)).text == "written" and not target.exists()
        with pytest.raises(CassetteError):
            await session.call("write", arguments)
        assert [(await session.call("add", {"a": 1, "b": 1})).text for _ in range(3)] == ["2"] * 3
    async with connect(None, cassette=Cassette(path)) as session:
        with pytest.raises(ConfigurationError, match="may write"):
            await session.call("write", arguments)


async def test_a_line_that_a_kill_tore_is_left_out_and_written_over(path: Path) -> None:
    async with connect(create_server, cassette=Cassette(path, "record")) as session:
        await session.call("add", {"a": 1, "b": 2})
    whole = text_of(path)
    with path.open("a") as file:
        file.write('{"call": "add", "arg')
    async with connect(create_server, cassette=Cassette(path, "extend")) as session:
        await session.call("add", {"a": 2, "b": 2})
    lines = text_of(path).splitlines()
    assert text_of(path).startswith(whole) and json.loads(lines[-1])["text"] == "4"


@pytest.mark.slow
async def test_recording_begins_anew_once_the_server_answers(path: Path) -> None:
    async with connect(create_server, cassette=Cassette(path, "record")) as session:
        await session.call("add", {"a": 1, "b": 2})
    before = text_of(path)
    with pytest.raises(McpError, match="could not be started"):
        async with connect(NOWHERE, cassette=Cassette(path, "record")):
            pass
    assert text_of(path) == before
    async with connect(create_server, cassette=Cassette(path, "record")) as session:
        await session.call("add", {"a": 4, "b": 4})
    async with connect(None, cassette=Cassette(path)) as session:
        with pytest.raises(CassetteError):
            await session.call("add", {"a": 1, "b": 2})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no cassette .*record one with mode="),
        ("", "is empty"),
        ("not json\n", "line 1 of the cassette .* is damaged"),
        ('{"call": "add"}\n', "line 1 .* is damaged: KeyError"),
        ('{"offer": {}, "server": "x", "version": 2}\n', "version 2 instead of 1"),
    ],
)
def test_a_file_that_is_no_cassette_is_named(tmp_path: Path, content: str | None, said: str) -> None:
    file = tmp_path / "tape"
    if content is not None:
        file.write_text(content)
    with pytest.raises(CassetteError, match=said):
        Cassette(file)


def test_unknown_modes_are_refused(path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"mode='play'.*'record', 'replay', 'extend'"):
        Cassette(path, "play")  # type: ignore[arg-type]


@pytest.mark.slow
async def test_a_rollout_is_played_as_it_was(agent: Agent, path: Path) -> None:
    turns = [{"tool_calls": [call("count"), call("hang", id="c1")]}, {"tool_calls": [call("count")]}, DONE]
    agent.policy = script(*turns)

    async def attempt(server: Any, tape: Cassette) -> Any:
        return await rollout(agent.model(), "Count.", server, cassette=tape, call_timeout=5.0)

    recorded = await attempt(create_server, Cassette(path, "record"))
    played = await attempt(None, Cassette(path))
    assert played.messages() == recorded.messages()
    assert [message["content"] for message in played.messages() if message["role"] == "tool"] == [
        "call 1",
        "Error: 'hang' did not answer within 5 s",
        "call 2",
    ]
    assert played.tools == recorded.tools and played.metadata == recorded.metadata
    unlike = {"duration"}
    assert {k: v for k, v in played.metrics.items() if k not in unlike} == {
        k: v for k, v in recorded.metrics.items() if k not in unlike
    }
