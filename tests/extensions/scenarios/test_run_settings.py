"""The settings of a run that goes on, of each kind of run."""

from __future__ import annotations

from pathlib import Path

import pytest

from art.client.options.learning_rates import LORA_RATE
from art.errors import ConfigurationError
from art.runs.environment_run import EnvironmentSettings
from art.runs.folder import JudgedRunFolder, RunSettings
from art_extensions.scenarios.autorl import AutoRLSettings
from art_extensions.scenarios.mcp_rl.settings import TrainSettings

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


def test_a_run_goes_on_as_it_began(tmp_path: Path) -> None:
    folder, settings = JudgedRunFolder(tmp_path / "run"), AutoRLSettings()
    assert not folder.open({"of": "x"}, settings)
    folder.save_run({**(folder.run() or {}), "prepared": "abc"})
    more = AutoRLSettings(epochs=9, steps=100, concurrency=1, max_failed=0.0, timeout=1.0)
    assert folder.open({"of": "x"}, more)
    run = folder.run() or {}
    assert run["prepared"] == "abc" and run["settings"]["epochs"] == 9
    with pytest.raises(ConfigurationError, match="has of='x', not 'y'; give the run another name"):
        folder.open({"of": "y"}, settings)
    with pytest.raises(ConfigurationError, match="group_size=5, but the run was started with 4"):
        folder.open({"of": "x"}, AutoRLSettings(group_size=5))
