from __future__ import annotations

import json
import subprocess
import sys

import polars
import pytest
from openai.types.chat.chat_completion import Choice
from polars.testing import assert_frame_equal

import art
from art.tracking.trajectory_log import append_groups
from art.utils.benchmarking.load_trajectories import load_trajectories

COLUMNS = {
    "model": polars.String(),
    "split": polars.String(),
    "step": polars.Int64(),
    "reward": polars.Float64(),
    "group_number": polars.Int64(),
    "messages": polars.List(
        polars.Struct(
            {
                "role": polars.String(),
                "content": polars.String(),
                "tool_calls": polars.String(),
                "trainable": polars.Boolean(),
            }
        )
    ),
    "logs": polars.List(polars.String()),
}


def path_of(root, model, split, step):
    return root / "p" / "models" / model / "trajectories" / split / f"{step:04d}.parquet"


async def test_one_row_a_trajectory(tmp_path):
    said = Choice.construct(index=0, finish_reason="stop", message={"role": "assistant", "content": "hi"})
    first = art.Trajectory(
        messages_and_choices=[{"role": "user", "content": "x"}, said],
        reward=0.5,
        metrics={"won": True, "turns": 3},
        metadata={"scenario_id": "a", "hard": False, "none": None},
        logs=["l"],
    )
    second = art.Trajectory(reward=art.Unscored("?"), metrics={"won": False})
    groups = [
        art.TrajectoryGroup([first, second], metadata={"level": 2}, metrics={"judge": 0.25}),
        art.TrajectoryGroup([ValueError("x")]),
        art.TrajectoryGroup([second]),
    ]
    append_groups(path_of(tmp_path, "a", "val", 12), groups)
    append_groups(path_of(tmp_path, "b", "train", 3), groups[:1])
    df = await load_trajectories("p", art_path=str(tmp_path))
    assert dict(list(df.schema.items())[:7]) == COLUMNS
    assert df.select("model", "split", "step", "group_number").rows() == [
        ("a", "val", 12, 0),
        ("a", "val", 12, 0),
        ("a", "val", 12, 1),
        ("b", "train", 3, 2),
        ("b", "train", 3, 2),
    ]
    assert df["reward"].to_list() == [0.5, None, None, 0.5, None]
    assert df.row(0, named=True)["messages"] == [
        {"role": "user", "content": "x", "tool_calls": None, "trainable": False},
        {"role": "assistant", "content": "hi", "tool_calls": None, "trainable": True},
    ]
    assert df["logs"].to_list()[:2] == [["l"], None]
    assert df["metric_won"].to_list() == [1.0, 0.0, 0.0, 1.0, 0.0]
    assert df["metric_turns"].to_list() == [3.0, None, None, 3.0, None]
    assert df["metadata_scenario_id"].to_list() == ["a", None, None, "a", None]
    assert df["metadata_hard"].to_list()[0] == "False" and df["metadata_none"].to_list()[0] is None
    assert df["group_metadata_level"].to_list() == ["2", "2", None, "2", "2"]
    assert df["group_metric_judge"].to_list() == [0.25, 0.25, None, 0.25, 0.25]
    assert df.schema["group_metric_judge"] == df.schema["metric_won"] == polars.Float64()

    assert (await load_trajectories("p", models=["b"], art_path=tmp_path))["step"].to_list() == [3, 3]


@pytest.mark.parametrize("project", ["p", "nowhere"])
async def test_without_logs_the_table_is_empty(tmp_path, project):
    (tmp_path / "p" / "models" / "a").mkdir(parents=True)
    df = await load_trajectories(project, art_path=tmp_path)
    assert df.is_empty() and dict(df.schema) == COLUMNS


async def test_older_formats_give_the_same_rows(tmp_path):
    trajectory = {
        "reward": 1.0,
        "metrics": {"won": 1},
        "metadata": {"k": "v"},
        "logs": ["l"],
        "messages_and_choices": [
            {"role": "user", "content": "x"},
            {"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": "hi"}},
        ],
    }
    lines = path_of(tmp_path, "lines", "val", 1).with_suffix(".jsonl")
    lines.parent.mkdir(parents=True)
    lines.write_text(json.dumps({"trajectories": [trajectory, trajectory]}) + "\n")
    turn = {"tool_calls": None, "tool_call_id": None}
    messages = [
        {"role": "user", "content": "x", "trainable": False, **turn},
        {"role": "assistant", "content": "hi", "trainable": True, **turn},
    ]
    row = {"group_index": 0, "reward": 1.0, "metrics": '{"won": 1}', "metadata": '{"k": "v"}', "logs": ["l"]}
    old = path_of(tmp_path, "old", "val", 1)
    old.parent.mkdir(parents=True)
    polars.DataFrame([row | {"messages": messages}] * 2).write_parquet(old)
    append_groups(
        path_of(tmp_path, "new", "val", 1),
        [art.TrajectoryGroup([art.Trajectory(**trajectory), art.Trajectory(**trajectory)])],
    )
    tables = [
        await load_trajectories("p", models=[name], art_path=tmp_path) for name in ("lines", "old", "new")
    ]
    assert tables[0].height == 2
    for other in tables[1:]:
        assert_frame_equal(tables[0].drop("model"), other.drop("model"))


async def test_a_migrated_file_counts_once(tmp_path):
    path = path_of(tmp_path, "a", "val", 1)
    append_groups(path, [art.TrajectoryGroup([art.Trajectory(reward=1.0)])])
    for ending in (".jsonl", ".jsonl.migrated"):
        path.with_name("0001" + ending).write_text('{"trajectories": [{"reward": 0.0}]}\n')
    assert (await load_trajectories("p", art_path=tmp_path))["reward"].to_list() == [1.0]


async def test_what_cannot_be_read_is_left_out_and_named(tmp_path, caplog):
    good = path_of(tmp_path, "a", "val", 1)
    append_groups(good, [art.TrajectoryGroup([art.Trajectory(reward=1.0)])])
    good.with_name("0002.parquet").write_bytes(b"torn")
    good.with_name("0003.jsonl").write_text("{torn\n")
    good.with_name("0004.yaml").write_text("- {}")
    good.with_name("final.parquet").write_bytes(good.read_bytes())
    polars.read_parquet(good).with_columns(metrics=polars.lit("{torn")).write_parquet(
        good.with_name("0005.parquet")
    )
    df = await load_trajectories("p", models=["a", "no-such-model"], art_path=tmp_path)
    assert df["step"].to_list() == [1]
    warned = [record.getMessage() for record in caplog.records]
    for name in ("0002.parquet", "0003.jsonl", "0004.yaml", "final.parquet", "0005.parquet", "no-such-model"):
        assert sum(name in message for message in warned) == 1, name


@pytest.mark.slow
def test_importing_makes_no_folder_and_loads_no_polars(tmp_path):
    program = (
        "import os, sys, art.utils.benchmarking\n"
        "import art.utils.trajectory_logging, art.utils.trajectory_migration\n"
        "print(os.listdir('.'), [name for name in ('polars', 'matplotlib', 'wandb', 'fsspec', 'openai') "
        "if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=True
    )
    assert done.stdout.strip() == "[] []"
