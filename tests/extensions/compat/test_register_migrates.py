from __future__ import annotations

import sys
from pathlib import Path

import pytest

import art
from art.errors import ConfigurationError
from art.utils.trajectory_logging import read_trajectory_groups_parquet

CHILD = (sys.executable, str(Path(__file__).parents[2] / "client" / "wire_double.py"))


@pytest.mark.slow
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


async def test_nothing_outside_of_the_backends_folder_is_touched(tmp_path: Path) -> None:
    outside = tmp_path / "other" / "models" / "agent" / "trajectories" / "val" / "0001.jsonl"
    outside.parent.mkdir(parents=True)
    outside.write_text("{}\n")
    model = art.TrainableModel(name="agent", project="../other", base_model="art/nano")
    backend = art.LocalBackend(path=tmp_path / "art")
    backend._server.command = CHILD
    async with backend:
        with pytest.raises(ConfigurationError, match="project"):
            await model.register(backend)
    assert [path.name for path in outside.parent.iterdir()] == ["0001.jsonl"]
