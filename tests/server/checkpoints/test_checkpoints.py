"""A step is on disk whole or not at all, under its number, with the name of the job that made it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from art.errors import CheckpointError
from art.server.checkpoints.checkpoints import Checkpoints, JobNote
from art.wire.jobs import TrainResultInfo


def note(job_id: str, step: int) -> JobNote:
    return JobNote(job_id=job_id, result=TrainResultInfo(step=step, metrics={}, sheet={}))


def write(checkpoints: Checkpoints, step: int, weights: bytes = b"weights") -> None:
    """What the trainer writes."""
    folder = checkpoints.fresh_folder(step)
    folder.mkdir()
    state = json.dumps({"step": step, "rng": {"cpu": "00"}}).encode()
    files = {"adapter_model.safetensors": weights, "trainer_state.json": state}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    entries = {
        name: {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
        for name, content in files.items()
    }
    (folder / "manifest.json").write_text(json.dumps({"files": entries}))


def test_a_folder_is_no_step_until_it_is_committed(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    assert checkpoints.newest() is None
    write(checkpoints, 0)
    assert checkpoints.steps() == []
    assert checkpoints.commit(0) == tmp_path / "checkpoints" / "0000"
    write(checkpoints, 1)
    checkpoints.commit(1, note("job-1", 1))
    assert checkpoints.steps() == [0, 1] and checkpoints.newest() == 1


def test_a_committed_step_is_never_overwritten(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    write(checkpoints, 0, b"first")
    checkpoints.commit(0)
    write(checkpoints, 0, b"second")
    with pytest.raises(CheckpointError, match="never overwritten"):
        checkpoints.commit(0)
    assert (tmp_path / "0000" / "adapter_model.safetensors").read_bytes() == b"first"


def test_a_step_knows_its_job(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for step, made in ((0, None), (1, note("job-1", 1)), (2, note("job-2", 2))):
        write(checkpoints, step)
        checkpoints.commit(step, made)
    found = checkpoints.made_by("job-1")
    assert found is not None and found.result.step == 1
    assert checkpoints.made_by("job-3") is None
    (tmp_path / "0002" / "job.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"job\.json cannot be read"):
        checkpoints.made_by("job-1")


def test_what_a_crash_left_behind_is_swept_away(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    write(checkpoints, 0)
    checkpoints.commit(0)
    write(checkpoints, 1)
    (tmp_path / "..0001.saving.ab12.partial").mkdir()
    (tmp_path / ".0007.deleting").mkdir()
    checkpoints.sweep()
    assert [path.name for path in tmp_path.iterdir()] == ["0000"]


def test_carrying_forward_copies_no_weights(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    write(checkpoints, 4)
    checkpoints.commit(4, note("job-4", 4))
    checkpoints.carry_forward(4)
    checkpoints.commit(5, note("job-5", 5))
    old, new = (tmp_path / step / "adapter_model.safetensors" for step in ("0004", "0005"))
    assert old.stat().st_ino == new.stat().st_ino
    state = (tmp_path / "0005" / "trainer_state.json").read_bytes()
    assert json.loads(state) == {"step": 5, "rng": {"cpu": "00"}}
    entry = json.loads((tmp_path / "0005" / "manifest.json").read_text())["files"]["trainer_state.json"]
    assert entry == {"sha256": hashlib.sha256(state).hexdigest(), "size": len(state)}
    assert json.loads((tmp_path / "0004" / "trainer_state.json").read_text())["step"] == 4
    assert checkpoints.made_by("job-4") == note("job-4", 4)


def test_an_incomplete_step_cannot_be_carried_forward(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    write(checkpoints, 0)
    checkpoints.commit(0)
    (tmp_path / "0000" / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"incomplete.*manifest\.json"):
        checkpoints.carry_forward(0)
    checkpoints.sweep()
    assert checkpoints.steps() == [0]


def test_a_rejected_step_is_kept_aside_and_its_number_is_free(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    write(checkpoints, 1)
    checkpoints.commit(1)
    aside = checkpoints.reject(1)
    assert aside.is_dir() and checkpoints.steps() == [] and checkpoints.rejections(1) == 1
    write(checkpoints, 1)
    checkpoints.commit(1)
    assert checkpoints.reject(1) != aside
    checkpoints.sweep()
    assert checkpoints.rejections(1) == 2


def test_a_deleted_step_is_gone(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    write(checkpoints, 3)
    checkpoints.commit(3)
    checkpoints.delete(3)
    assert list(tmp_path.iterdir()) == []
