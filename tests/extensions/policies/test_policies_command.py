"""`art policies`: a file of options, a run that goes on, and what is refused before a server starts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from repeat_game import RepeatGame
from typer.testing import CliRunner, Result

from art.cli.main import app
from art.errors import ConfigurationError
from art.runs.folder import JudgedRunFolder
from art.tracking.model_files import read_history
from art.tracking.rollout_figures import scores
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


LAST = re.compile(r"validation: red of step (\d) [\d.]+, blue of step (\d) [\d.]+")


def run(tmp_path: Path, *words: str) -> Result:
    """The command with the file, resumed if it has run before."""
    config, told = tmp_path / "run.yaml", tmp_path / "report.json"
    config.write_text(FILE)
    command = ["policies", "--config", str(config), "--data-dir", str(tmp_path / "data")]
    return CliRunner().invoke(app, [*command, "--json-file", str(told), *words])


def report(tmp_path: Path) -> Any:
    return json.loads((tmp_path / "report.json").read_text())


@pytest.mark.slow
def test_a_file_trains_a_model_for_each_role_and_the_command_goes_on(tmp_path: Path) -> None:
    first = run(tmp_path)
    assert first.exit_code == 0, first.output
    assert "step 1/1: red " in first.output and "trained red, parrot" in first.output
    told = report(tmp_path)
    (step,) = told["steps"]
    assert told["environment"] == "repeat" and {*step["rewards"]} == {"red", "blue"}
    assert step["step"] == 1 and step["trained"] == ["red", "parrot"] and step["failed"] == 0

    again = run(tmp_path, "--steps", "2", "--frozen", "blue=1")
    assert again.exit_code == 0, again.output
    assert "step 2/2: red " in again.output and "step 1/" not in again.output
    assert [one["trained"] for one in report(tmp_path)["steps"]] == [["red", "parrot"], ["red"]]
    folders = tmp_path / "data" / "roles" / "models"
    steps = {
        name: sorted(one.name for one in (folders / name).glob("checkpoints/*")) for name in ("red", "parrot")
    }
    assert {name: len(found) for name, found in steps.items()} == {"red": 3, "parrot": 2}, steps
    assert LAST.findall(first.output) == [("0", "0"), ("1", "1")], "before and after"
    assert LAST.findall(again.output) == [("2", "1")], "before is kept"


@pytest.mark.slow
def test_each_role_is_compared_before_and_after_on_held_out_scenarios(tmp_path: Path) -> None:
    made = run(
        tmp_path, "--steps", "3", "--eval-every", "2", "--eval-scenarios", "3", "--eval-group-size", "2"
    )
    assert made.exit_code == 0, made.output
    assert LAST.findall(made.output) == [("0", "0"), ("2", "2"), ("3", "3")]
    told, folder = report(tmp_path), tmp_path / "data" / "roles" / "policies" / "repeat"
    for role, model in (("red", "red"), ("blue", "parrot")):
        found = told["roles"][role]
        assert (found["model"], found["before_step"], found["after_step"]) == (f"roles/{model}", 0, 3)
        held_out = JudgedRunFolder(folder / f"role-{role}")
        for side, number in (("before", 0), ("after", 2)):
            rows = held_out.evaluation(number) or []
            assert [len(row) for row in rows] == [2, 2, 2] and found[side]["count"] == 3
            ids = [{one.metadata["scenario_id"] for one in row} for row in rows]
            assert ids == [{one.id} for one in GAME_OBJECT.scenarios("val")[:3]]
            mean = fmean(scores(one for row in rows for one in row))
            assert found[side]["mean"] == pytest.approx(mean, abs=1e-3)
            assert told["evaluations"][number]["rewards"][role]["mean"] == found[side]["mean"]
        history = read_history(tmp_path / "data" / "roles" / "models" / model / "history.jsonl")
        logged = {row["step"]: row["val/reward"] for row in history if "val/reward" in row}
        assert [*logged] == [0, 2, 3]
        assert logged[3] == pytest.approx(found["after"]["mean"], abs=1e-3)
    text = (folder / "report.md").read_text()
    assert "| red | `roles/red` | 0 to 3 |" in text and "- blue: " in text
    assert "| 3 | " in text.partition("## Training")[2]

    again = run(tmp_path, "--steps", "3", "--eval-scenarios", "3", "--eval-group-size", "2")
    assert again.exit_code == 0 and not LAST.search(again.output), "all of it is done"
    assert "going on with the run in" in again.output
    assert {**report(tmp_path)} == told


@pytest.mark.slow
def test_a_run_that_goes_on_has_the_settings_that_it_began_with(tmp_path: Path) -> None:
    assert run(tmp_path, "--steps", "1").exit_code == 0
    before = report(tmp_path)
    for words, said in {
        ("--group-size", "3"): "group_size=3, but the run was started with 2: leave it as it was, or give it",
        ("--learning-rate", "2e-3"): "learning_rate=0.002, but the run was started with 0.001",
        ("--seed", "1"): "seed=1, but the run was started with 0",
        ("--eval-scenarios", "4"): "eval_scenarios=4, but the run was started with 100",
        ("--environment-option", "broken=half"): "has options={}, not {'broken': 'half'}; give it another",
        ("--policy", "red=art/nano-words", "--policy", "blue=art/nano-games"): "has policies={'red': 'art/na",
        (
            "--name",
            "blue=jay",
        ): "has names={'red': 'red', 'blue': 'parrot'}, not {'red': 'red', 'blue': 'jay'}",
    }.items():
        refused = run(tmp_path, *words)
        assert refused.exit_code == 1 and said in refused.output, refused.output
        assert "another --project" in refused.output and "step " not in refused.output
    assert report(tmp_path) == before

    interrupted = tmp_path / "data" / "roles" / "policies" / "repeat" / "run.json"
    saved = json.loads(interrupted.read_text())
    interrupted.write_text(json.dumps({**saved, "settings": {**saved["settings"], "steps": 2}}))
    refused = run(tmp_path, "--steps", "2", "--frozen", "blue")
    said = (
        "frozen=['blue'], but the run was started with [], and has made 1 of its 2 steps: leave it as it was"
    )
    assert refused.exit_code == 1 and said in refused.output and "--steps 1" in refused.output
    assert run(tmp_path, "--steps", "1").exit_code == 0, "the run ends there"
    allowed = run(tmp_path, "--steps", "2", "--frozen", "blue", "--concurrency", "2", "--max-failed", "0")
    assert allowed.exit_code == 0 and "trained red\n" in allowed.output, allowed.output


@pytest.mark.slow
def test_an_episode_that_hangs_ends_at_its_deadline(tmp_path: Path) -> None:
    words = ["--environment-option", "broken=hangs", "--eval-scenarios", "2", "--eval-group-size", "2"]
    hung = run(tmp_path, *words, "--deadline", "0.5")
    assert hung.exit_code == 1 and "a rollout did not end within 0.5 s" in hung.output, hung.output
    refused = run(tmp_path, "--deadline", "0")
    assert refused.exit_code != 0 and "deadline" in refused.output


def test_an_environment_without_held_out_scenarios_is_refused(tmp_path: Path) -> None:
    words = ["--environment-option", "broken=no val", "--data-dir", str(tmp_path)]
    refused = CliRunner().invoke(app, [*BOTH, *words])
    assert refused.exit_code == 1 and "has 0 scenarios with 0 ids in split 'val'" in refused.output


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
    with pytest.raises(
        ConfigurationError, match=r"'verifiers:x': got an unexpected keyword argument 'colour'"
    ):
        find_roles_environment("verifiers:x", {"colour": 1})
