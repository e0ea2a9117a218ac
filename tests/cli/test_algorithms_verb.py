"""`art algorithms`."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner, Result

from art.batch.algorithms import TABLE
from art.cli import app
from art.wire.algorithm import Algorithm


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["algorithms", *arguments], env={"COLUMNS": "160"})


def test_all_of_them() -> None:
    done = run()
    assert done.exit_code == 0
    assert all(name in done.stdout for name in TABLE)


def test_it_says_which_are_biased() -> None:
    """All lines but those of supervised training and of a teacher, which have no rewards."""
    said = {row["name"]: row["meaning"] for row in json.loads(run("--json").stdout)}
    biased = {name for name, meaning in said.items() if meaning.endswith(" Biased.")}
    assert {
        "art",
        "grpo",
        "dapo",
        "gspo",
        "reinforce++",
        "ppo_value",
        "gigpo",
        "mt_grpo",
        "turn_tree",
    } <= biased
    unbiased = {name for name, meaning in said.items() if meaning.endswith(" Unbiased.")}
    off = {name for name, meaning in said.items() if "Unbiased; token mean" in meaning}
    assert unbiased == {"dr_grpo"} and off >= {"rloo", "turn_rloo", "state_rloo", "progress", "turn_gae"}
    assert said.keys() - biased - unbiased - off == {"distillation", "sft"}
    assert "Biased." in run("gigpo").stdout and "2.2 % off" in run("turn_rloo").stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLE)
def test_one_in_full(name: str) -> None:
    done = run(name)
    assert done.exit_code == 0
    for part in set(Algorithm.model_fields) - {"name"}:
        assert part in done.stdout
    for number in TABLE[name].algorithm.loss.params.values():
        assert str(number) in done.stdout


def test_json_is_the_algorithm() -> None:
    rows = json.loads(run("--json").stdout)
    assert [Algorithm.model_validate(row["algorithm"]) for row in rows] == [
        row.algorithm for row in TABLE.values()
    ]
    (dapo,) = json.loads(run("dapo", "--json").stdout)
    assert dapo["papers"] == ["2503.14476"] and dapo["algorithm"]["overlong"]["band"] == 4096


def test_an_unknown_name_lists_the_known_ones() -> None:
    done = run("gsop")
    assert done.exit_code == 2
    assert "did you mean 'gspo'" in done.stderr and "art, cispo, grpo" in done.stderr
