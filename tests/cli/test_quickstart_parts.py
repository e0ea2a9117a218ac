"""The quick start's own bookkeeping: settings, the run's folder, evaluations, the chart."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import pytest

from art.environments import tasks
from art.errors import ConfigurationError
from art.runs.quickstart import (
    Evaluation,
    QuickstartChoices,
    QuickstartFolder,
    QuickstartSettings,
    QuickstartStep,
    existing_folder,
    new_folder,
    resolve_settings,
    resumed_settings,
)
from art.runs.quickstart_report import draw_reward_curve, running_mean


def test_means_and_standard_errors() -> None:
    evaluation = Evaluation.from_rows([{"reward": 1.0}, {"reward": 0.0}, {"reward": 1.0}, {"reward": 0.0}])
    assert evaluation.rollouts == 4
    assert evaluation.means == {"reward": 0.5}
    assert evaluation.errors["reward"] == pytest.approx(0.25)


def test_an_evaluation_survives_json() -> None:
    evaluation = Evaluation.from_rows([{"reward": 1.0, "won": 1.0}, {"reward": -1.0, "won": 0.0}])
    assert Evaluation.from_json(json.loads(json.dumps(evaluation.to_json()))) == evaluation


def test_an_empty_evaluation_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Evaluation.from_rows([])


def test_running_mean_grows_into_its_window() -> None:
    assert running_mean([2.0, 4.0, 6.0, 8.0], window=3) == [2.0, 3.0, 4.0, 6.0]


def test_the_chart_is_a_png(tmp_path: Path) -> None:
    draw_reward_curve([0.1, 0.5, 0.4], tmp_path / "reward.png", title="a run")
    assert (tmp_path / "reward.png").read_bytes().startswith(b"\x89PNG")


def test_unchosen_settings_come_from_the_task() -> None:
    settings = resolve_settings(QuickstartChoices(task="tic-tac-toe", group_size=4))
    assert settings.group_size == 4
    assert settings.base_model.startswith("art/nano")
    assert settings.steps > 0 and settings.learning_rate > 0


def test_a_real_model_has_settings_of_its_own() -> None:
    name = tasks.task_of("art/smollm2")
    real = resolve_settings(QuickstartChoices(task=name, base_model="art/smollm2"))
    nano = resolve_settings(QuickstartChoices(task=name))
    assert real.base_model == "art/smollm2" and nano.base_model.startswith("art/nano")
    assert real.learning_rate < nano.learning_rate and real.evaluation_games < nano.evaluation_games
    assert tasks.task_of("my/model") == name and tasks.task_of("art/nano-games") == "tic-tac-toe"


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_a_learning_rate_that_is_not_above_0_is_refused(rate: float) -> None:
    with pytest.raises(ConfigurationError, match=r"--learning-rate .*: it is a number above 0"):
        resolve_settings(QuickstartChoices(task="tic-tac-toe", learning_rate=rate))


def test_an_unknown_task_lists_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match="tic-tac-toe"):
        resolve_settings(QuickstartChoices(task="chess"))


def test_settings_survive_the_disk(tmp_path: Path) -> None:
    settings = resolve_settings(QuickstartChoices(task="mail", seed=3))
    settings.save(tmp_path)
    assert QuickstartSettings.load(tmp_path) == settings


def test_resuming_may_raise_the_steps_and_nothing_else() -> None:
    saved = resolve_settings(QuickstartChoices(task="tic-tac-toe"))
    assert resumed_settings(saved, QuickstartChoices(task="tic-tac-toe", steps=99), done=3).steps == 99
    assert resumed_settings(saved, QuickstartChoices(task="tic-tac-toe"), done=3) == saved
    with pytest.raises(ConfigurationError, match="--group-size"):
        resumed_settings(
            saved, QuickstartChoices(task="tic-tac-toe", group_size=saved.group_size + 1), done=3
        )
    with pytest.raises(ConfigurationError, match="tic-tac-toe"):
        resumed_settings(saved, QuickstartChoices(task="mail"), done=3)


@pytest.mark.parametrize("done", [3, 20, 50])
def test_more_steps_do_not_make_the_learning_rate_jump(tmp_path: Path, done: int) -> None:
    """Interrupted in the rise, in the fall, and finished; then given 100 steps, and later 150."""
    task = tasks.find("tic-tac-toe")
    first = resolve_settings(QuickstartChoices(task="tic-tac-toe", steps=50))

    def rates(settings: QuickstartSettings, steps: range) -> list[float]:
        return [task.DEFAULTS.rate_at(step, legs=settings.schedule) for step in steps]

    first.save(tmp_path)
    assert QuickstartSettings.load(tmp_path) == first
    longer = resumed_settings(first, QuickstartChoices(task="tic-tac-toe", steps=100), done=done)
    longer.save(tmp_path)
    longest = resumed_settings(
        QuickstartSettings.load(tmp_path), QuickstartChoices(task="tic-tac-toe", steps=150), done=done + 40
    )
    before, after = rates(first, range(done)), rates(longest, range(done, 151))
    assert rates(longest, range(done)) == before, "what was trained is not another schedule afterwards"
    assert after[0] == rates(first, range(done, done + 1))[0], "the rate that would have come next"
    # Beyond the rise no rate is above the one before it, and none falls faster than the first plan's.
    risen = [*before, *after][task.DEFAULTS.warmup_steps :]
    steepest = first.learning_rate * (1 - task.DEFAULTS.final_share) / 50
    assert all(-1e-12 <= one - two <= steepest * 1.001 for one, two in pairwise(risen))
    assert after[-1] == pytest.approx(first.learning_rate * task.DEFAULTS.final_share)


def test_a_run_of_an_earlier_version_is_resumed(tmp_path: Path) -> None:
    saved = resolve_settings(QuickstartChoices(task="mail"))
    plain = {name: value for name, value in asdict(saved).items() if name != "legs"}
    (tmp_path / "settings.json").write_text(json.dumps(plain))
    assert QuickstartSettings.load(tmp_path) == saved


def test_a_folder_with_a_run_is_not_overwritten(tmp_path: Path) -> None:
    folder = new_folder(tmp_path / "run", task="tic-tac-toe")
    resolve_settings(QuickstartChoices(task="tic-tac-toe")).save(folder.path)
    with pytest.raises(ConfigurationError, match="--resume"):
        new_folder(tmp_path / "run", task="tic-tac-toe")


def test_resume_finds_the_newest_unfinished_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = resolve_settings(QuickstartChoices(task="tic-tac-toe"))
    with pytest.raises(ConfigurationError, match="no unfinished run"):
        existing_folder(None, task="tic-tac-toe")
    for name in ("tic-tac-toe-1", "tic-tac-toe-2"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        settings.save(tmp_path / "runs" / name)
    (tmp_path / "runs" / "tic-tac-toe-2" / "result.json").write_text("{}")
    assert existing_folder(None, task="tic-tac-toe").path == Path("runs/tic-tac-toe-1")


def test_a_step_written_twice_counts_once(tmp_path: Path) -> None:
    folder = QuickstartFolder(tmp_path)
    row = QuickstartStep(step=1, reward=0.1, score=0.5, trained=8, seconds_rollouts=1.0, seconds_training=0.5)
    folder.add_step(row)
    folder.add_step(row)
    assert folder.steps() == [row]
