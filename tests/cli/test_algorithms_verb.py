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
