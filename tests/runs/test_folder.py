"""What has been done of a run is read from its folder."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

import art
from art.client.options.learning_rates import LORA_RATE, Leg
from art.errors import ConfigurationError
from art.runs.environment_run import EnvironmentSettings
from art.runs.folder import JudgedRunFolder, RunSettings, StepRow
from art.types import TrainResult
from art_extensions.scenarios.autorl import AutoRLSettings
from art_extensions.scenarios.mcp_rl.settings import TrainSettings


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


KINDS = (EnvironmentSettings, TrainSettings, AutoRLSettings)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_begins_with_the_rate_of_its_base_model(kind: type[RunSettings], tmp_path: Path) -> None:
    def rate(base_model: str, **given: float | None) -> float:
        return JudgedRunFolder(tmp_path).settings(kind, base_model, given).learning_rate

    assert rate("Qwen/Qwen3-4B") == rate("art/smollm2", learning_rate=None) == LORA_RATE
    assert rate("art/nano-mcp") == 3e-3 and rate("art/nano-mcp#4bit", learning_rate=1e-4) == 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_of_an_older_release_goes_on_with_its_own_rate(kind: type[RunSettings], tmp_path: Path) -> None:
    folder, now = JudgedRunFolder(tmp_path / "run"), {"base_model": "art/nano-words"}
    folder.open(now, kind.from_options({"learning_rate": 1e-5}))
    resumed = folder.settings(kind, "art/nano-words", {"learning_rate": None, "steps": 9})
    assert folder.open(now, resumed) and resumed.learning_rate == 1e-5 and resumed.steps == 9
    other = folder.settings(kind, "art/nano-words", {"learning_rate": 7e-4})
    with pytest.raises(ConfigurationError, match="the run was started with 1e-05"):
        folder.open(now, other)


def test_a_run_with_older_names_of_settings_goes_on(tmp_path: Path) -> None:
    folder = JudgedRunFolder(tmp_path / "run")
    older = {**TrainSettings().to_dict(), "test_attempts": 3, "difficulty_attempts": 1}
    del older["eval_group_size"], older["difficulty_rollouts"]
    folder.save_run({"settings": older})
    again = folder.settings(TrainSettings, "art/nano-mcp", {"test_attempts": 3, "difficulty_rollouts": 1})
    assert folder.open({}, again) and (again.eval_group_size, again.difficulty_rollouts) == (3, 1)


def test_a_step_that_trained_nothing_says_0_and_without_a_sheet_nobody_knows() -> None:
    fates = {"data/sheet/started_rollouts": 8.0, "data/sheet/zero_advantage_rollouts": 8.0}
    assert row(1).with_result(TrainResult(1, fates), seconds=1.0).trained == 0
    some = {**fates, "data/sheet/trained_rollouts": 3.0}
    assert row(1).with_result(TrainResult(1, some), seconds=1.0).trained == 3
    assert row(1).with_result(TrainResult(1, {}), seconds=1.0).trained is None


def test_a_run_goes_on_as_it_began(tmp_path: Path) -> None:
    folder, settings = JudgedRunFolder(tmp_path / "run"), AutoRLSettings()
    assert not folder.open({"of": "x"}, settings)
    folder.save_run({**(folder.run() or {}), "prepared": "abc"})
    more = AutoRLSettings(epochs=9, steps=100, concurrency=1, max_failed=0.0, timeout=1.0)
    assert folder.open({"of": "x"}, more)
    run = folder.run() or {}
    assert run["prepared"] == "abc" and run["settings"]["epochs"] == 9
    with pytest.raises(ConfigurationError, match="has of='x', not 'y'; give this one another name"):
        folder.open({"of": "y"}, settings)
    with pytest.raises(ConfigurationError, match="group_size=5, but the run was started with 4"):
        folder.open({"of": "x"}, AutoRLSettings(group_size=5))


def test_a_run_that_is_given_more_steps_goes_on_at_the_rate_it_had_reached(tmp_path: Path) -> None:
    folder, settings = JudgedRunFolder(tmp_path / "run"), AutoRLSettings(warmup_steps=2, final_share=0.1)
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
