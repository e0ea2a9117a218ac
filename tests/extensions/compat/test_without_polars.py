"""A program in which polars cannot be imported, as where the extra `logs` is not installed."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from made_groups import exact, full_group

import art
from art.errors import install_command
from art.tracking.trajectory_lines import append_lines
from art.utils.trajectory_logging import append_groups, read_trajectory_groups

PROGRAM = """
import asyncio, json, sys
sys.modules["polars"] = None  # every import of it fails now
import art
from pathlib import Path
from typer.testing import CliRunner
from art.cli import app
from art.errors import ConfigurationError
from art.utils.benchmarking import load_aggregated_trajectories, load_latest_metrics, load_trajectories
from art.utils.trajectory_logging import (
    append_groups, read_trajectory_groups, read_trajectory_groups_parquet, write_trajectory_groups_parquet
)
from art.utils.trajectory_migration import auto_migrate_on_register, migrate_jsonl_to_parquet

root = Path(sys.argv[1])
groups = read_trajectory_groups(root / "given.jsonl")
refused = {}

async def main():
    model = art.Model(name="bare", project="p", base_path=str(root), report_metrics=[])
    await model.log(groups, split="val", step=3)
    await model.log(groups[:1], split="val", step=3)
    await model.log([], split="train", step=3)
    log = model._folder() / "trajectories" / "val" / "0003.parquet"
    assert read_trajectory_groups_parquet(log) == groups + groups[:1]
    assert auto_migrate_on_register(model._folder()).errors == []
    for name, call in {
        "load": lambda: load_trajectories("p", art_path=root),
        "aggregate": lambda: load_aggregated_trajectories("p", art_path=root),
        "latest": lambda: load_latest_metrics("p", art_path=root),
    }.items():
        try:
            await call()
        except ConfigurationError as error:
            refused[name] = str(error)

asyncio.run(main())
for name, call in {
    "write": lambda: write_trajectory_groups_parquet(groups, root / "new" / "x.parquet"),
    "append": lambda: append_groups(root / "new" / "x.parquet", groups),
    "read": lambda: read_trajectory_groups(root / "given.parquet"),
}.items():
    try:
        call()
    except ConfigurationError as error:
        refused[name] = str(error)
refused["migrate"] = migrate_jsonl_to_parquet(root / "given.jsonl").errors[0]
done = CliRunner().invoke(app, ["migrate", str(root)])
refused["verb"] = done.stderr if done.exit_code == 1 else ""
print(json.dumps(refused))
"""


@pytest.mark.slow
def test_model_log_keeps_everything_and_parquet_is_refused_by_name(tmp_path: Path) -> None:
    groups = [full_group(), art.TrajectoryGroup([TimeoutError("all failed")], metadata={"k": 1})]
    append_lines(tmp_path / "given.jsonl", groups)
    append_groups(tmp_path / "given.parquet", groups)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr

    refused = json.loads(done.stdout)
    assert set(refused) == {"load", "aggregate", "latest", "write", "append", "read", "migrate", "verb"}
    for name, text in refused.items():
        assert install_command("logs") in text, name
    assert not (tmp_path / "new").exists()
    said = [line for line in done.stderr.splitlines() if line]
    assert len(said) == 1 and "art migrate" in said[0] and "[logs]" in said[0]

    bare, full = (
        art.Model(name=name, project="p", base_path=str(tmp_path), report_metrics=[])
        for name in ("bare", "full")
    )
    for logged, split in ((groups, "val"), (groups[:1], "val"), ([], "train")):
        asyncio.run(full.log(logged, split=split, step=3))
    for split in ("val", "train"):
        paths = [model._folder() / "trajectories" / split / "0003.parquet" for model in (bare, full)]
        assert not paths[0].exists() and paths[0].with_suffix(".jsonl").exists() and paths[1].exists()
        assert exact(read_trajectory_groups(paths[0])) == exact(read_trajectory_groups(paths[1]))
    assert rows(bare) == rows(full)


def rows(model: art.Model) -> list[dict]:
    lines = (model._folder() / "history.jsonl").read_text().splitlines()
    changing = ("recorded_at", "time/wall_clock_sec")
    return [{key: value for key, value in json.loads(line).items() if key not in changing} for line in lines]
