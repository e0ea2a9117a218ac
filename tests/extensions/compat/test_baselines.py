from __future__ import annotations

import pytest

import art
from art.errors import ConfigurationError
from art.utils.benchmarking import log_constant_metrics_wandb, pull_model_trajectories
from art.utils.trajectory_logging import append_groups, read_trajectory_groups_parquet


@pytest.fixture
def model(tmp_path):
    return art.Model(name="gpt", project="p", base_path=str(tmp_path / "here"))


async def test_logs_are_pulled_from_a_bucket(tmp_path, model, monkeypatch):
    there = tmp_path / "bucket" / "p" / "models" / "gpt"
    groups = [art.TrajectoryGroup([art.Trajectory(reward=1.0)])]
    for name in ("0001.parquet", "0002.parquet"):
        append_groups(there / "trajectories" / "val" / name, groups)
    (there / "state.json").write_text("{}")
    monkeypatch.setenv("BACKUP_BUCKET", (tmp_path / "bucket").as_uri())
    paths = ["trajectories/val/0001.parquet", "trajectories/val/0002.parquet"]
    assert await pull_model_trajectories(model) == paths
    here = tmp_path / "here" / "p" / "models" / "gpt"
    assert read_trajectory_groups_parquet(here / paths[0]) == groups
    assert sorted(path.name for path in here.iterdir()) == ["trajectories"]
    append_groups(there / paths[1], groups)
    assert await pull_model_trajectories(model) == paths[1:]
    assert len(read_trajectory_groups_parquet(here / paths[1])) == 2


async def test_a_pull_needs_a_bucket(model, monkeypatch):
    monkeypatch.delenv("BACKUP_BUCKET", raising=False)
    with pytest.raises(ConfigurationError, match="BACKUP_BUCKET"):
        await pull_model_trajectories(model)


def test_a_baseline_needs_numbers(model):
    for steps, metrics in ((0, {"val": {"reward": 1.0}}), (3, {}), (3, {"val": {}})):
        with pytest.raises(ConfigurationError, match="nothing to log"):
            log_constant_metrics_wandb(model, steps, metrics)
