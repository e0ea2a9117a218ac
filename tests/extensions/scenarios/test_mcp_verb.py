"""`art mcp` as it is typed."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from art.backend import Keyword
from art.cli.main import app
from art.cli.run_options import settings_verb
from art.errors import ConfigurationError
from art.process import environment
from art_extensions.scenarios.mcp import HttpServer, StdioServer
from art_extensions.scenarios.mcp_commands import ServerArguments, read_scenarios_file
from art_extensions.scenarios.mcp_rl.settings import TrainSettings
from art_extensions.testing import LlmServer, ScriptedGenerator

WEATHER = ("--", sys.executable, "-m", "art_extensions.testing.mcp_servers.weather")
BABBLING = Path(__file__).parent / "mcp" / "babbling.py"


def art(*words: str) -> Any:
    return CliRunner().invoke(app, ["mcp", *words])


@pytest.mark.slow
def test_what_a_server_offers() -> None:
    told = art("inspect", *WEATHER)
    assert told.exit_code == 0, told.output
    assert "4 tools" in told.stdout and "forecast(place, day)  [reads]" in told.stdout


@pytest.mark.slow
def test_what_a_server_offers_as_json() -> None:
    # A small server that starts at once: without `site` the interpreter is up in no time.
    told = art("inspect", "--json", "--", sys.executable, "-S", str(BABBLING), "")
    assert json.loads(told.stdout)["tools"][0] == {
        **{"name": "go", "description": "", "parameters": {"type": "object"}, "read_only": True}
    }


@pytest.mark.slow
def test_a_server_that_does_not_start_is_one_line() -> None:
    told = art("inspect", "--", sys.executable, "-c", "raise SystemExit('no database')")
    assert told.exit_code == 1 and "McpError" in told.stderr and "no database" in told.stderr


@pytest.mark.slow
def test_scenarios_into_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = ["Oslo", "Bergen", "Dublin", "Paris", "Rome", "Athens", "Madrid", "Berlin"]
    tasks = [{"task": f"Is there an alert in {place}?", "difficulty": 1, "plan": []} for place in places]
    with LlmServer(ScriptedGenerator(scenarios=tasks), key="secret") as server:
        monkeypatch.setenv(environment.GENERATOR_API_KEY, "secret")
        options = [
            *("--generator", "writer", "--generator-base-url", server.base_url, "--num-train", "3"),
            *("--num-test", "2", "--output", str(tmp_path / "s.json"), "--data-dir", str(tmp_path)),
        ]
        told = art("generate", *options, "--", sys.executable, "-S", str(BABBLING), "")
        assert told.exit_code == 0, told.output
        assert "3 scenarios to train on and 2 held out" in told.stdout
        again = art("generate", *options, *WEATHER)
    assert again.exit_code == 1 and "is there already" in again.stderr
    made = read_scenarios_file(tmp_path / "s.json")
    assert len(made.train) == 3 and len(made.test) == 2


def test_scenario_files(tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    path.write_text('[{"task": "a"}, "b"]')
    assert [one.task for one in read_scenarios_file(path)] == ["a", "b"]
    path.write_text('{"train": ["a"], "test": [{"task": "b"}]}')
    assert [one.task for one in read_scenarios_file(path).test] == ["b"]
    for wrong in (
        '{"train": 3, "test": []}',
        '{"train": [], "test": [], "rejected": [{"x": 1}]}',
        '{"train": [1], "test": []}',
    ):
        path.write_text(wrong)
        with pytest.raises(ConfigurationError):
            read_scenarios_file(path)
    path.write_text("no json")
    with pytest.raises(ConfigurationError, match="cannot be read as JSON"):
        read_scenarios_file(path)


def place(*words: str, **more: Any) -> ServerArguments:
    return ServerArguments(words=list(words), **{"read_only": [], "env": [], "headers": [], **more})


def test_secrets_come_from_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "s3cret")
    http = place("https://x.org/mcp", headers=["Authorization=MY_TOKEN"], read_only=["*"]).server()
    assert (
        isinstance(http, HttpServer)
        and http.headers == {"Authorization": "s3cret"}
        and http.read_only == ("*",)
    )
    stdio = place("npx", "server", env=["MY_TOKEN"]).server()
    assert isinstance(stdio, StdioServer) and stdio.env == {"MY_TOKEN": "s3cret"}
    with pytest.raises(ConfigurationError, match="--header is for an http server"):
        place("npx", headers=["A=MY_TOKEN"]).server()
    with pytest.raises(ConfigurationError, match="--env is for a command"):
        place("https://x.org/mcp", env=["MY_TOKEN"]).server()
    bearer = place("https://x.org/mcp", bearer="MY_TOKEN").server()
    assert isinstance(bearer, HttpServer) and bearer.headers == {"Authorization": "Bearer s3cret"}
    with pytest.raises(ConfigurationError, match="--bearer is for an http server"):
        place("npx", bearer="MY_TOKEN").server()
    with pytest.raises(ConfigurationError, match="'NO_SUCH_VARIABLE', which is not set"):
        place("https://x.org/mcp", bearer="NO_SUCH_VARIABLE").server()
    with pytest.raises(ConfigurationError, match="are one header: give one"):
        place("https://x.org/mcp", bearer="MY_TOKEN", headers=["authorization=MY_TOKEN"]).server()
    with pytest.raises(ConfigurationError, match="write NAME=VARIABLE"):
        place("https://x.org/mcp", headers=["Authorization: Bearer x"]).server()
    with pytest.raises(ConfigurationError, match="'NO_SUCH_VARIABLE', which is not set"):
        place("npx", env=["NO_SUCH_VARIABLE"]).server()


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `art mcp train` gives to `art.mcp.train`, which does nothing here."""
    given: dict[str, Any] = {}

    async def train(server: Any, **keywords: Any) -> None:
        given.update(keywords, server=server)
        raise ConfigurationError("this is as far as it goes")

    monkeypatch.setattr("art_extensions.scenarios.mcp_rl.training.train", train)
    return given


def test_options_reach_the_function(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(environment.JUDGE_API_KEY, "jk")
    options = [
        *("--base-model", "b", "--judge", "truth", "--judge-base-url", "http://h/v1", "--allow-write", "*"),
        *("--steps", "2", "--seed", "3", "--budget-calls", "5", "--data-dir", str(tmp_path), "--check-judge"),
    ]
    told = art("train", *options, "--", "serve", "--with-dashes")
    assert told.exit_code == 1 and "as far as it goes" in told.stderr
    assert given["server"] == StdioServer(command="serve", args=("--with-dashes",))
    assert given["judge_params"] == {"base_url": "http://h/v1", "api_key": "jk"}
    expected = {"seed": 3, "steps": 2, "judge": "truth", "allow_writes": True, "path": tmp_path}
    assert expected.items() <= given.items() and given["budget"].limits["calls"] == 5
    assert given["checks"].record.parent == tmp_path / "mcp" / "mcp" / "mcp-agent"


def test_every_setting_is_an_option_with_its_default(given: dict[str, Any]) -> None:
    art("train", "--base-model", "b", *WEATHER)
    settings = {field.name: field.default for field in dataclasses.fields(TrainSettings)}
    assert given.items() >= (settings | {"learning_rate": None}).items()
    assert given["checks"] is None and given["budget"] is None
    art("train", "--base-model", "b", "--learning-rate", "0.5", "--allow-write", "a", *WEATHER)
    assert given["learning_rate"] == 0.5 and given["allow_writes"] == ("a",)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BakingSettings(TrainSettings):
    """The settings of a made-up run."""

    loaves: Annotated[int, Keyword(least=1, most=9)] = 4
    """Loaves in the oven."""


def test_a_new_field_is_an_option_with_its_bounds_and_text() -> None:
    baked: list[int] = []
    app = typer.Typer()

    def bake(flour: str, **settings: Any) -> None:
        """Bakes bread."""
        baked.append(settings["loaves"])

    settings_verb(app, f"{__name__}:BakingSettings", leave_out=("allow_writes",))(bake)
    assert CliRunner().invoke(app, ["rye", "--loaves", "7"]).exit_code == 0 and baked == [7]
    assert CliRunner().invoke(app, ["rye"]).exit_code == 0 and baked == [7, 4]
    assert CliRunner().invoke(app, ["rye", "--loaves", "10"]).exit_code == 2
    shown = " ".join(CliRunner().invoke(app, ["--help"]).output.split())
    assert "Loaves in the oven." in shown and "Concurrent rollouts." in shown


@pytest.mark.parametrize("verb", ["inspect", "generate", "train"])
def test_help(verb: str) -> None:
    told = art(verb, "--help")
    assert (told.exit_code == 0 and "--allow-write" in told.stdout) or verb == "inspect"


def test_a_judge_that_nobody_knows(tmp_path: Path) -> None:
    told = art(
        "train", "--base-model", "art/nano", "--judge", "nosuch/x", "--data-dir", str(tmp_path), *WEATHER
    )
    assert told.exit_code == 1 and "no provider 'nosuch'" in told.stderr
