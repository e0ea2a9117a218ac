from __future__ import annotations

import sys
from pathlib import Path

import art
from art.utils.trajectory_logging import read_trajectory_groups_parquet

CHILD = (sys.executable, str(Path(__file__).parents[1] / "client" / "wire_double.py"))


async def test_a_local_backend_brings_older_logs_along(tmp_path: Path) -> None:
    model = art.TrainableModel(name="agent", project="words", base_model="art/nano")
    folder = tmp_path / "words" / "models" / "agent"
    old = folder / "trajectories" / "val" / "0002.jsonl"
    old.parent.mkdir(parents=True)
    old.write_text('{"trajectories": [{"reward": 0.25, "messages_and_choices": []}]}\n')
    (folder / "0002").mkdir()
    backend = art.LocalBackend(path=tmp_path)
    backend._server.command = CHILD
    async with backend:
        await model.register(backend)
    [group] = read_trajectory_groups_parquet(old.with_suffix(".parquet"))
    assert group.trajectories[0].reward == 0.25
    assert old.with_name("0002.jsonl.migrated").exists() and (folder / "checkpoints" / "0002").is_dir()
