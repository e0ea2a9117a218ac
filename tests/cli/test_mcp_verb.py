"""`art mcp` as it is typed."""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from art import environment
from art.cli.main import app
from art.cli.mcp import train
from art.cli.mcp_work import Place, options_of, read_scenarios_file
from art.errors import ConfigurationError
from art.mcp import HttpServer, StdioServer
from art.mcp.settings import TrainSettings
from art.testing import LlmServer, ScriptedGenerator

WEATHER = ("--", sys.executable, "-m", "art.mcp.servers.weather")
BABBLING = Path(__file__).parents[1] / "mcp" / "babbling.py"


def art(*words: str) -> Any:
    return CliRunner().invoke(app, ["mcp", *words])


def test_what_a_server_offers() -> None:
    told = art("inspect", *WEATHER)
    assert told.exit_code == 0, told.output
    assert "4 tools" in told.stdout and "forecast(place, day)  [reads]" in told.stdout


def test_what_a_server_offers_as_json() -> None:
    # A small server that starts at once: without `site` the interpreter is up in no time.
    told = art("inspect", "--json", "--", sys.executable, "-S", str(BABBLING), "")
    assert json.loads(told.stdout)["tools"][0] == {
        **{"name": "go", "description": "", "parameters": {"type": "object"}, "read_only": True}
    }


def test_a_server_that_does_not_start_is_one_line() -> None:
    told = art("inspect", "--", sys.executable, "-c", "raise SystemExit('no database')")
    assert told.exit_code == 1 and "McpError" in told.stderr and "no database" in told.stderr


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


def place(*words: str, **more: Any) -> Place:
    return Place(words=list(words), **{"read_only": [], "env": [], "headers": [], **more})


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


def test_options_reach_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environment.JUDGE_API_KEY, "jk")
    given = {
        **{"server": ["x"], "read_only": None, "env": None, "header": None, "allow_write": ["*"], "seed": 3},
        **{
            "data_dir": Path("d"),
            "judge": "truth",
            "judge_base_url": "http://h/v1",
            "steps": 2,
            "train": print,
        },
        **{"budget_calls": 5, "budget_tokens": None, "budget_usd": None},
    }
    options = options_of(given)
    assert options.keywords == {
        **{"seed": 3, "steps": 2, "judge": "truth", "allow_writes": True, "path": Path("d")},
        "judge_params": {"base_url": "http://h/v1", "api_key": "jk"},
    }
    budget = options.budget()
    assert budget is not None and budget.limits["calls"] == 5
    assert options_of({**given, "budget_calls": None}).budget() is None


def test_every_setting_is_an_option() -> None:
    options = inspect.signature(train).parameters
    for field in dataclasses.fields(TrainSettings):
        if field.name == "allow_writes":
            continue  # --allow-write, once for each
        by_model = field.name == "learning_rate"
        assert options[field.name].default == (None if by_model else field.default), field.name


def test_a_checked_judge(tmp_path: Path) -> None:
    given = {
        **{key: ["x"] for key in ("server", "read_only", "env", "header", "allow_write", "check_judge")},
        **dict.fromkeys(("budget_calls", "budget_tokens", "budget_usd")),
        **{"data_dir": tmp_path, "project": "p", "name": "n"},
    }
    checks = options_of(given).keywords["checks"]
    assert checks.agreement_share > 0 and checks.record.parent == tmp_path / "p" / "mcp" / "n"
    assert "checks" not in options_of({**given, "check_judge": False}).keywords


@pytest.mark.parametrize("verb", ["inspect", "generate", "train"])
def test_help(verb: str) -> None:
    told = art(verb, "--help")
    assert (told.exit_code == 0 and "--allow-write" in told.stdout) or verb == "inspect"


def test_a_judge_that_nobody_knows(tmp_path: Path) -> None:
    told = art(
        "train", "--base-model", "art/nano", "--judge", "nosuch/x", "--data-dir", str(tmp_path), *WEATHER
    )
    assert told.exit_code == 1 and "no provider 'nosuch'" in told.stderr
