from __future__ import annotations

import json
import resource
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tiny_policies import MODEL, games, llama, policy, qwen3, request, trainer

from art.errors import CheckpointError
from art.training.checkpoint import write_tensors
from art.training.trainer import Trainer
from art.wire.training import LoraSpec

FILES = [
    "adapter_config.json",
    "adapter_model.safetensors",
    "manifest.json",
    "optimizer.safetensors",
    "trainer_state.json",
]
LORA = LoraSpec(r=4, alpha=8)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made, batch = trainer(), games()
    made.train(batch.tree, batch.entries, request(batch))
    path = tmp_path_factory.mktemp("checkpoints") / "0001"
    made.save(MODEL, path)
    return path


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "copy"
    folder.mkdir()
    for file in saved.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def test_a_checkpoint_is_json_and_safetensors_and_nothing_is_left_beside_it(saved: Path) -> None:
    assert sorted(file.name for file in saved.iterdir()) == FILES
    assert [file.name for file in saved.parent.iterdir()] == [saved.name]
    state = json.loads((saved / "trainer_state.json").read_text())
    assert state["step"] == 1 and state["base_model"] == "tiny" and state["lora"]["r"] == 4


def test_a_restored_model_saves_the_same_bytes(saved: Path, tmp_path: Path) -> None:
    other = trainer(seed=99)
    assert other.open(MODEL, LORA, checkpoint=saved) == 1
    other.save(MODEL, tmp_path / "again")
    for name in FILES:
        assert (tmp_path / "again" / name).read_bytes() == (saved / name).read_bytes(), name


def test_a_checkpoint_before_the_first_step(tmp_path: Path) -> None:
    made = trainer(seed=5)
    made.save(MODEL, tmp_path / "0000")
    other = trainer(seed=6)
    assert other.open(MODEL, LORA, checkpoint=tmp_path / "0000") == 0
    one, two = (one._open[MODEL].parameters for one in (made, other))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_folder_is_never_overwritten(saved: Path) -> None:
    before = {file.name: file.read_bytes() for file in saved.iterdir()}
    with pytest.raises(CheckpointError, match="never overwritten"):
        trainer().save(MODEL, saved)
    assert {file.name: file.read_bytes() for file in saved.iterdir()} == before


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match="could not be written"):
        trainer().save(MODEL, tmp_path / "file" / "0001")


def test_a_save_that_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    made, before = trainer(), resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))  # no file may become longer
    try:
        with pytest.raises(CheckpointError, match="could not be written"):
            made.save(MODEL, tmp_path / "0001")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert list(tmp_path.iterdir()) == []
    made.save(MODEL, tmp_path / "0001")


def test_a_model_that_moves_on_does_not_change_the_checkpoint_that_is_finished(
    saved: Path, tmp_path: Path
) -> None:
    made, batch = trainer(), games()
    made.train(batch.tree, batch.entries, request(batch))
    finish = made.begin_save(MODEL, tmp_path / "0001")
    assert not (tmp_path / "0001").exists()  # nothing that could be taken for a checkpoint
    made.train(batch.tree, batch.entries, request(batch, step=1))
    finish()
    for name in FILES:
        assert (tmp_path / "0001" / name).read_bytes() == (saved / name).read_bytes(), name
    assert made.open(MODEL, LORA, checkpoint=tmp_path / "0001") == 1  # read, since memory is further
    made.save(MODEL, tmp_path / "again")
    assert all((tmp_path / "again" / name).read_bytes() == (saved / name).read_bytes() for name in FILES)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_tensors_are_written_as_safetensors_writes_them(dtype: torch.dtype, tmp_path: Path) -> None:
    tensors = {"b.w": torch.randn(3, 5).to(dtype).T, "a.step": torch.tensor(3.0), "c": torch.zeros(0, 2)}
    write_tensors(tmp_path / "ours", tensors, {"format": "pt"})
    plain = {name: one.contiguous() for name, one in tensors.items()}
    save_file(plain, tmp_path / "theirs", metadata={"format": "pt"})
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(copy: Path, name: str) -> None:
    (copy / name).unlink()
    with pytest.raises(CheckpointError, match=name):
        trainer().open(MODEL, LORA, checkpoint=copy)


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_file_is_named(copy: Path, name: str) -> None:
    (copy / name).write_bytes((copy / name).read_bytes()[:-7])
    with pytest.raises(CheckpointError, match=name):
        trainer().open(MODEL, LORA, checkpoint=copy)


@pytest.mark.parametrize("name", [name for name in FILES if name != "manifest.json"])
def test_a_changed_byte_is_found(copy: Path, name: str) -> None:
    content = bytearray((copy / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copy / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=name):
        trainer().open(MODEL, LORA, checkpoint=copy)


def test_a_manifest_cannot_point_elsewhere(copy: Path) -> None:
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["files"]["../saved"] = {"sha256": "0" * 64, "size": 1}
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="saved"):
        trainer().open(MODEL, LORA, checkpoint=copy)


def test_another_base_is_refused(saved: Path) -> None:
    for other in (policy(llama()), policy(qwen3(), seed=1)):
        with pytest.raises(CheckpointError, match="Load it with its own base model"):
            Trainer(other).open(MODEL, LORA, checkpoint=saved)


def test_another_lora_shape_is_refused(saved: Path) -> None:
    with pytest.raises(CheckpointError, match="holds the LoRA r=4"):
        trainer().open(MODEL, LoraSpec(r=8), checkpoint=saved)


def test_a_failed_restore_leaves_the_open_model_alone(copy: Path) -> None:
    made, batch = trainer(), games()
    made.train(batch.tree, batch.entries, request(batch))
    before = {name: p.detach().clone() for name, p in made._open[MODEL].parameters.items()}
    (copy / "adapter_model.safetensors").unlink()
    with pytest.raises(CheckpointError):
        made.open(MODEL, LORA, checkpoint=copy)
    assert made.steps == {MODEL: 1}
    assert all(torch.equal(before[name], p) for name, p in made._open[MODEL].parameters.items())
    made.train(batch.tree, batch.entries, request(batch, 1))
