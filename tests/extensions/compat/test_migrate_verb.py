"""`art migrate`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from art.cli import app
from art.utils.trajectory_logging import read_trajectory_groups_parquet

LINE = json.dumps(
    {"trajectories": [{"reward": 1.0, "messages_and_choices": [{"role": "user", "content": "x"}]}]}
)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["migrate", *map(str, arguments)], env={"COLUMNS": "160"})


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / ".art" / "words" / "models" / "agent" / "trajectories" / "train" / "0001.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text((LINE + "\n") * 100)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("up", [0, 2, 3, 5, 6], ids=["file", "trajectories", "model", "project", "art"])
def test_every_kind_of_path(old: Path, up: int) -> None:
    path = [old, *old.parents][up]
    done = run(path)
    assert done.exit_code == 0, done.output
    assert "files migrated 1" in " ".join(done.stdout.split()) and "smaller" in done.stdout
    assert not old.exists() and len(read_trajectory_groups_parquet(old.with_suffix(".parquet"))) == 100


def test_the_folder_one_stands_in(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(old.parents[4])
    assert run(".").exit_code == 0 and not old.exists()


@pytest.mark.parametrize("option", ["--dry-run", "-n"])
def test_a_dry_run(old: Path, option: str) -> None:
    done = run(old.parents[2], option)
    assert done.exit_code == 0 and "files that would be migrated 1" in " ".join(done.stdout.split())
    assert [path.name for path in old.parent.iterdir()] == ["0001.jsonl"]


@pytest.mark.slow
def test_keeping_the_originals_and_saying_what_became_of_each(old: Path) -> None:
    done = run(old.parents[2], "--keep-jsonl", "-v")
    assert done.exit_code == 0 and f"{old}: {old.stat().st_size} bytes" in done.stdout
    again = run(old.parents[2], "--verbose")
    assert again.exit_code == 0 and "0001.parquet is already there" in again.stdout
    quiet = run(old.parents[2]).stdout
    assert str(old) not in quiet and "--verbose says why" in quiet


def test_what_cannot_be_read_is_an_error_and_stays(old: Path) -> None:
    old.with_name("0002.jsonl").write_text("{torn\n")
    done = run(old.parents[2])
    assert done.exit_code == 1 and "0002.jsonl: line 1" in done.stderr
    assert old.with_name("0002.jsonl").exists() and old.with_suffix(".parquet").exists()


@pytest.mark.parametrize("name", ["no such folder", ""])
def test_a_path_of_no_known_kind(tmp_path: Path, name: str) -> None:
    done = run(tmp_path / name)
    assert done.exit_code == 1 and "Could not determine path type" in done.stderr


def test_help() -> None:
    done = run("--help")
    assert done.exit_code == 0
    assert all(name in done.stdout for name in ("--dry-run", "-n", "--keep-jsonl", "--verbose", "-v"))
