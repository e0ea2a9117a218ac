"""What has been done of a run is read from its folder."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

import art
from art.client.options.learning_rates import Leg
from art.runs.environment_run import EnvironmentSettings
from art.runs.folder import JudgedRunFolder, StepRow
from art.types import TrainResult


def row(step: int) -> StepRow:
    return StepRow(
        step=step,
        reward=None,
        rollouts=8,
        failed=1,
        unscored=8,
        trained=0,
        learning_rate=1e-5,
        seconds_rollouts=1.0,
        seconds_training=1.0,
        figures={"success": 0.5},
        judge={"judge/agreement": 1.0},
    )


def test_a_folder_keeps_what_was_done(tmp_path: Path) -> None:
    folder = JudgedRunFolder(tmp_path / "run")
    assert folder.run() is None
    folder.save_run({"a": 1})
    rows = [row(step) for step in (1, 2, 2)]
    for one in rows:
        folder.add_step(one)
    assert folder.steps() == rows[:2] and folder.run() == {"a": 1}
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Hi"}}
    whole = art.Trajectory(
        messages_and_choices=[{"role": "user", "content": "Hello"}, choice], metrics={"num_turns": 1}
    )
    folder.save_evaluation(3, [[whole], []])
    kept = folder.evaluation(3)
    assert kept is not None and kept[1] == [] and kept[0][0].messages() == whole.messages()
    assert folder.evaluation(4) is None


def test_a_row_is_added_without_writing_those_before_it(tmp_path: Path) -> None:
    folder = JudgedRunFolder(tmp_path / "run")
    folder.add_step(row(1))
    file = folder.path / "steps.jsonl"
    before, inode = file.read_bytes(), file.stat().st_ino
    folder.add_step(row(2))
    assert file.read_bytes().startswith(before) and file.stat().st_ino == inode


def test_a_step_that_is_repeated_replaces_those_after_it_and_a_torn_row_is_none(tmp_path: Path) -> None:
    folder = JudgedRunFolder(tmp_path / "run")
    for step in (1, 2, 3, 4, 2, 3):
        folder.add_step(row(step))
    assert folder.steps() == [row(1), row(2), row(3)]
    with (folder.path / "steps.jsonl").open("ab") as file:
        file.write(b'{"step": 4, "rew')  # killed within
    assert folder.steps() == [row(1), row(2), row(3)]
    folder.add_step(row(4))
    assert folder.steps() == [row(1), row(2), row(3), row(4)]


def test_a_step_that_trained_nothing_says_0_and_without_a_sheet_nobody_knows() -> None:
    fates = {"data/sheet/started_rollouts": 8.0, "data/sheet/zero_advantage_rollouts": 8.0}
    assert row(1).with_result(TrainResult(1, fates), seconds=1.0).trained == 0
    some = {**fates, "data/sheet/trained_rollouts": 3.0}
    assert row(1).with_result(TrainResult(1, some), seconds=1.0).trained == 3
    assert row(1).with_result(TrainResult(1, {}), seconds=1.0).trained is None


def test_a_run_that_is_given_more_steps_goes_on_at_the_rate_it_had_reached(tmp_path: Path) -> None:
    folder, settings = JudgedRunFolder(tmp_path / "run"), EnvironmentSettings(warmup_steps=2, final_share=0.1)
    folder.open({"of": "x"}, settings)
    planned = folder.schedule(10, done=0)
    assert folder.schedule(10, done=4) == planned, "resuming it as it was changes nothing"
    assert folder.open({"of": "x"}, settings)
    longer = JudgedRunFolder(folder.path).schedule(30, done=6)
    assert JudgedRunFolder(folder.path).schedule(30, done=8) == longer, "it is recorded with the run"

    def rates(legs: Sequence[Leg], steps: range) -> list[float]:
        return [settings.rate_at(step, legs) for step in steps]

    assert rates(longer, range(7)) == rates(planned, range(7))
    falling = rates(longer, range(5, 31))
    assert all(one > two for one, two in pairwise(falling))
    assert falling[-1] == pytest.approx(settings.learning_rate * 0.1)
