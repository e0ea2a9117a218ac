"""Checkpoints of the older layout of a bucket are moved below `checkpoints/`."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from model_folders import contents, write_step

from art.errors import StorageError
from art.utils.benchmarking.load_trajectories import load_trajectories, pull_model_trajectories
from art.utils.s3_checkpoint_utils import migrate_s3_checkpoints_to_new_structure
from art_extensions.buckets.bucket_pull import Wanted, commit_here, pull_model
from art_extensions.buckets.bucket_push import local_steps
from art_extensions.buckets.store import Store, model_url


@pytest.fixture
def bucket(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Path:
    caplog.set_level(logging.INFO, "art")
    return tmp_path / "bucket"


def older(bucket: Path, *steps: int, prefix: str = "") -> Path:
    """A model's folder in the bucket, with checkpoints directly below it."""
    folder = bucket / prefix / "games" / "models" / "agent"
    for step in steps:
        write_step(folder, step).rename(folder / f"{step:04d}")
        (folder / f"{step:04d}" / "tokenizer").mkdir()
        (folder / f"{step:04d}" / "tokenizer" / "vocab.json").write_text(f"{step}")
    (folder / "history.jsonl").write_text('{"step": 2}\n')
    return folder


async def test_steps_are_moved_and_pulled(
    bucket: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = older(bucket, 1, 12, prefix="runs")
    before, url = contents(folder), f"file://{bucket}"
    await migrate_s3_checkpoints_to_new_structure("agent", "games", url, "runs", dry_run=True)
    assert contents(folder) == before and "would move 0001 to checkpoints/0001" in caplog.text
    await migrate_s3_checkpoints_to_new_structure(
        model_name="agent", project="games", s3_bucket=url, prefix="runs", dry_run=False
    )
    moved = {f"checkpoints/{path}" if path[0].isdigit() else path: data for path, data in before.items()}
    assert contents(folder) == moved and "moved 0012 to checkpoints/0012" in caplog.text
    here = tmp_path / "here" / "games" / "models" / "agent"
    pull_model(
        Store(model_url("games", "agent", bucket=url, prefix="runs")),
        here,
        Wanted(newest=True, side_files=False, exclude=("*/tokenizer/*",)),
        commit=commit_here(here),
    )
    assert list(local_steps(here)) == [12]
    caplog.clear()
    await migrate_s3_checkpoints_to_new_structure("agent", "games", url, "runs")
    assert contents(folder) == moved and "no checkpoints of the older layout" in caplog.text


async def test_an_interrupted_move_goes_on_and_loses_nothing(
    bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = older(bucket, 1)
    before, url, copy = contents(folder), f"file://{bucket}", Store.copy

    def tear(store: Store, path: str, target: str) -> None:
        if path.endswith("adapter_model.safetensors"):
            store.write(target, b"torn")
        else:
            copy(store, path, target)

    with monkeypatch.context() as torn:
        torn.setattr(Store, "copy", tear)
        with pytest.raises(StorageError, match=r"adapter_model.safetensors .* was not copied completely"):
            await migrate_s3_checkpoints_to_new_structure("agent", "games", url)
    assert before.items() <= contents(folder).items()
    (folder / "checkpoints" / "0001" / "adapter_model.safetensors").unlink()
    await migrate_s3_checkpoints_to_new_structure("agent", "games", url)
    assert not (folder / "0001" / "adapter_model.safetensors").exists()
    assert (folder / "checkpoints/0001/adapter_model.safetensors").read_bytes() == (
        before["0001/adapter_model.safetensors"]
    )


async def test_a_step_that_is_another_one_stays(bucket: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = older(bucket, 1, 2)
    write_step(folder, 1, weights=b"of another training")
    (folder / "checkpoints" / "0002").mkdir()
    (folder / "checkpoints" / "0002" / "more.txt").write_text("not in the older one")
    before = contents(folder)
    await migrate_s3_checkpoints_to_new_structure("agent", "games", f"file://{bucket}")
    assert contents(folder) == before
    assert caplog.text.count("stays where it is") == 2


def test_the_path_of_an_older_release_has_both_names() -> None:
    assert load_trajectories.__name__ == "load_trajectories"
    assert pull_model_trajectories.__name__ == "pull_model_trajectories"
