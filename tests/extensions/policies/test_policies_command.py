"""`art policies`: a file of options, a run that goes on, and what is refused before a server starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from repeat_game import RepeatGame
from typer.testing import CliRunner

from art.cli.main import app
from art.errors import ConfigurationError
from art_extensions.policies.roles import find_roles_environment

FILE = """
environment: repeat_game:RepeatGame
policy:
  red: art/nano-games
  blue: art/nano-games
name: {blue: parrot}
project: roles
steps: 1
groups_per_step: 2
group_size: 2
learning_rate: 1e-3
"""
GAME_OBJECT = RepeatGame()
GAME = ["policies", "--environment", "repeat_game:RepeatGame"]
BOTH = [*GAME, "--policy", "red=art/nano-games", "--policy", "blue=art/nano-games"]


@pytest.mark.slow
def test_a_file_trains_a_model_for_each_role_and_the_command_goes_on(tmp_path: Path) -> None:
    config, told = tmp_path / "run.yaml", tmp_path / "report.json"
    config.write_text(FILE)
    command = ["policies", "--config", str(config), "--data-dir", str(tmp_path / "data")]
    first = CliRunner().invoke(app, [*command, "--json-file", str(told)])
    assert first.exit_code == 0, first.output
    assert "step 1/1: red " in first.output and "trained red, parrot" in first.output
    report = json.loads(told.read_text())
    (step,) = report["steps"]
    assert report["environment"] == "repeat" and {*step["rewards"]} == {"red", "blue"}
    assert step["step"] == 1 and step["trained"] == ["red", "parrot"] and step["failed"] == 0

    again = CliRunner().invoke(
        app, [*command, "--steps", "2", "--frozen", "blue=1", "--json-file", str(told)]
    )
    assert again.exit_code == 0, again.output
    assert "step 2/2: red " in again.output and "step 1/" not in again.output
    assert [one["trained"] for one in json.loads(told.read_text())["steps"]] == [["red", "parrot"], ["red"]]
    folders = tmp_path / "data" / "roles" / "models"
    steps = {
        name: sorted(one.name for one in (folders / name).glob("checkpoints/*")) for name in ("red", "parrot")
    }
    assert {name: len(found) for name, found in steps.items()} == {"red": 3, "parrot": 2}, steps


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--policy", "red=art/nano-games"], "role 'blue' has no model"),
        (["--policy", "red"], "--policy 'red': write ROLE=..., each role once"),
        (["--policy", "green=art/nano-games"], "has no role 'green'"),
    ],
)
def test_roles_without_a_model_are_refused_by_name(words: list[str], said: str) -> None:
    refused = CliRunner().invoke(app, [*GAME, *words])
    assert refused.exit_code == 1 and said in refused.output, refused.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--frozen", "blue=last"], "write ROLE, or ROLE=STEP with a step's number"),
        (["--frozen", "bleu"], "has no role 'bleu'"),
        (["--name", "red=one", "--name", "red=two"], "each role once"),
        (["--frozen", "red", "--frozen", "blue"], "every role is in --frozen"),
        (["--environment-option", "colour=1"], "unexpected keyword argument 'colour'"),
    ],
)
def test_options_that_do_not_fit_are_refused(words: list[str], said: str, tmp_path: Path) -> None:
    refused = CliRunner().invoke(app, [*BOTH, *words, "--data-dir", str(tmp_path)])
    assert refused.exit_code == 1 and said in refused.output, refused.output


def test_one_model_of_two_roles_has_one_base_model() -> None:
    words = ["--policy", "red=art/nano-games", "--policy", "blue=art/nano-words"]
    names = ["--name", "red=both", "--name", "blue=both"]
    refused = CliRunner().invoke(app, [*GAME, *words, *names])
    assert refused.exit_code == 1 and "give both one base model, or --name another one" in refused.output
    rates = CliRunner().invoke(app, [*GAME, *words])
    assert rates.exit_code == 1 and "give --learning-rate" in rates.output


def test_an_environment_with_roles_is_found_by_its_name() -> None:
    assert isinstance(find_roles_environment("python:repeat_game:RepeatGame", {"broken": "half"}), RepeatGame)
    with pytest.raises(ConfigurationError, match="has no name and no roles and no scenarios and no play"):
        find_roles_environment("repeat_game:word", {"text": "Maybe."})
    with pytest.raises(ConfigurationError, match="is an object: it takes no broken"):
        find_roles_environment("test_policies_command:GAME_OBJECT", {"broken": "half"})
