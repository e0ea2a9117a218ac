"""A step whose trajectories are in lines and in Parquet is one step of the older table."""

from __future__ import annotations

from pathlib import Path

import art
from art.tracking.trajectory_lines import append_lines
from art.utils.trajectory_logging import append_groups, read_trajectory_groups
from art.utils.trajectory_migration import auto_migrate_on_register, migrate_jsonl_to_parquet
from art_extensions.compat.benchmarking import load_trajectories


def one(name: str) -> art.TrajectoryGroup:
    return art.TrajectoryGroup([art.Trajectory(reward=1.0, logs=[name])])


def names(path: Path) -> list[str]:
    return [t.logs[0] for group in read_trajectory_groups(path) for t in group]


async def test_both_files_of_a_step_count(tmp_path):
    split = tmp_path / "p" / "models" / "m" / "trajectories" / "val"
    append_groups(split / "0001.parquet", [one("a")])
    append_lines(split / "0001.jsonl", [one("b"), one("c")])
    table = await load_trajectories("p", art_path=tmp_path)
    assert table["logs"].to_list() == [["a"], ["b"], ["c"]] and table["group_number"].to_list() == [0, 1, 2]
    assert names(split / "0001.parquet") == ["a", "b", "c"] and names(split / "0001.jsonl") == ["b", "c"]

    assert migrate_jsonl_to_parquet(split / "0001.jsonl", delete_original=False).files_migrated == 1
    append_groups(split / "0001.parquet", [one("d")])
    append_lines(split / "0001.jsonl", [one("e")])
    table = await load_trajectories("p", art_path=tmp_path)
    assert table["logs"].to_list() == [["a"], ["b"], ["c"], ["d"], ["e"]]
    assert names(split / "0001.parquet") == ["a", "b", "c", "d", "e"]
    assert migrate_jsonl_to_parquet(split / "0001.jsonl", dry_run=True).files_migrated == 1
    assert auto_migrate_on_register(split.parents[1]).files_migrated == 1
    assert names(split / "0001.parquet") == ["a", "b", "c", "d", "e"]
    append_lines(split / "0001.jsonl", [one("f")])
    assert auto_migrate_on_register(split.parents[1]).files_migrated == 1
    assert names(split / "0001.parquet") == ["a", "b", "c", "d", "e", "f"]
    originals = [split / f"0001.jsonl.migrated{number}" for number in ("", "-2")]
    assert [path.read_bytes().count(b"\n") for path in originals] == [3, 1]
