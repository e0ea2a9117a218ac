from __future__ import annotations

import math

import pytest
from logged_rows import log

import art
from art.tracking.model_files import append_history_row
from art_extensions.compat.benchmarking import (
    calculate_step_std_dev,
    load_aggregated_trajectories,
    load_latest_metrics,
)


async def test_mean_of_groups_of_means(tmp_path):
    log(tmp_path, "a", 1, [[1.0], [0.0, 0.0, 0.0]], metrics={"won": 1.0})
    log(tmp_path, "a", 2, [[1.0, art.Unscored("?")]])
    log(tmp_path, "a", 2, [[0.25]], split="train")
    df = await load_aggregated_trajectories("p", art_path=tmp_path)
    assert df.rows() == [
        ("a", "train", 2, 0.25, None),
        ("a", "val", 1, 0.5, 1.0),  # not 0.25: a large group weighs no more than a small one
        ("a", "val", 2, 1.0, None),
    ]
    assert df.columns == ["model", "split", "step", "reward", "metric_won"]
    assert (await load_aggregated_trajectories("p", metrics=["won"], art_path=tmp_path)).columns[3:] == [
        "metric_won"
    ]
    with pytest.raises(ValueError, match="metric_won"):
        await load_aggregated_trajectories("p", metrics=["lost"], art_path=tmp_path)
    assert (await load_aggregated_trajectories("nowhere", ["a"], ["won"], tmp_path)).is_empty()


async def test_the_newest_step_is_the_highest(tmp_path):
    for step in (10, 9, 2):  # written in this order, and "9" sorts after "10"
        log(tmp_path, "a", step, [[step / 10]], metrics={"step_read": step})
    log(tmp_path, "b", 4, [[0.4]])
    log(tmp_path, "b", 50, [[0.0]], split="train")
    df = await load_latest_metrics("p", art_path=tmp_path)
    assert df.select("model", "step", "reward").rows() == [("a", 10, 1.0), ("b", 4, 0.4)]
    one = await load_latest_metrics("p", ["b"], "train", ["reward"], tmp_path)
    assert one.rows() == [("b", "train", 50, 0.0)]


async def test_numbers_of_the_history(tmp_path):
    log(tmp_path, "a", 1, [[1.0]])
    log(tmp_path, "a", 2, [[1.0]])
    log(tmp_path, "b", 1, [[1.0]])
    for row in ({"loss/train": 3.0}, {"loss/train": 2.0, "val/x": 1}):
        append_history_row(
            tmp_path / "p" / "models" / "a" / "history.jsonl", {"step": 2, "recorded_at": "now", **row}
        )
    df = await load_aggregated_trajectories("p", art_path=tmp_path, include_history=True)
    assert df.select("model", "step", "loss/train", "val/x").rows() == [
        ("a", 1, None, None),
        ("a", 2, 2.0, 1.0),
        ("b", 1, None, None),
    ]
    assert "recorded_at" not in df.columns


def test_the_spread_of_a_step():
    groups = [
        art.TrajectoryGroup(art.Trajectory(reward=reward) for reward in rewards)
        for rewards in ([0.0, 1.0], [1.0, 1.0], [5.0], [])
    ]
    assert calculate_step_std_dev(groups) == 0.25
    assert calculate_step_std_dev(groups[2:]) == 0.0
    assert math.isclose(calculate_step_std_dev(groups[:1]), 0.5)
