"""Steps that come from elsewhere: a fork begins where another model stands, and nothing is half there."""

from __future__ import annotations

import hashlib
import json
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from art.errors import CheckpointError, ConfigurationError, NotFoundError, RequestError
from art.server.checkpoints.checkpoints import Checkpoints, JobNote, leaves_open, read_shape
from art.server.checkpoints.registered_models import RegisteredModels, adapter_folder, base_of_adapter
from art.server.data_folder import DataLayout
from art.server.promotion.checkpoint_imports import CheckpointImports, choose_step
from art.wire.jobs import TrainResultInfo
from art.wire.models import AdoptRequest, ForkRequest, RegisterRequest
from art.wire.training import LoraSpec

LORA = {"r": 4, "alpha": 8.0, "dropout": 0.0, "targets": ["q_proj", "v_proj"], "use_rslora": False}


def write_step(folder: Path, step: int, weights: bytes = b"weights", lora: dict | None = LORA) -> None:
    """What the trainer writes, as far as the server reads it."""
    folder.mkdir(parents=True)
    state = json.dumps({"step": step, "base_model": "org/base", "lora": lora}).encode()
    files = {"adapter_model.safetensors": weights, "trainer_state.json": state}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    entries = {
        name: {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
        for name, content in files.items()
    }
    (folder / "manifest.json").write_text(json.dumps({"files": entries}))


def trained(data: Path, project: str, name: str, steps: tuple[int, ...]) -> Checkpoints:
    """A model that jobs brought to these steps."""
    checkpoints = Checkpoints(data / project / "models" / name / "checkpoints")
    for step in steps:
        write_step(checkpoints.fresh_folder(step), step, f"{name}@{step}".encode())
        note = JobNote(job_id=f"job-{step}", result=TrainResultInfo(step=step, metrics={}, sheet={}))
        checkpoints.commit(step, note if step else None)
    return checkpoints


@asynccontextmanager
async def _not_served(model):
    yield None


def arrivals(data: Path) -> tuple[CheckpointImports, RegisteredModels]:
    models = RegisteredModels(DataLayout(data))
    return CheckpointImports(
        models, outside_training=_not_served, rows=lambda model: [[1, 2]], wait=0.2
    ), models


def fork_of(name: str, **which: object) -> ForkRequest:
    return ForkRequest.model_validate({"from_name": name, **which})


@pytest.mark.parametrize(
    ("which", "step"), [({}, 7), ({"not_after": 6}, 5), ({"not_after": 5}, 5), ({"step": 0}, 0)]
)
def test_which_step_a_fork_takes(which: dict, step: int) -> None:
    assert choose_step([0, 5, 7], fork_of("a", **which), "games/a") == step


@pytest.mark.parametrize(
    ("steps", "which", "text", "code"),
    [
        ([], {}, "No checkpoints found for model games/a", "no_checkpoints"),
        ([3, 4], {"not_after": 2}, r"not after step 2\. Available steps: \[3, 4\]", "step_missing"),
        ([3, 4], {"step": 5}, r"of step 5 found\. Available steps: \[3, 4\]", "step_missing"),
    ],
)
def test_a_step_that_is_not_there(steps: list[int], which: dict, text: str, code: str) -> None:
    with pytest.raises(NotFoundError, match=text) as missing:
        choose_step(steps, fork_of("a", **which), "games/a")
    assert missing.value.code == code


async def test_a_fork_keeps_number_and_files_and_shares_their_bytes(tmp_path: Path) -> None:
    source = trained(tmp_path, "games", "old", (0, 1, 2))
    forks, models = arrivals(tmp_path)
    reply = await forks.fork("other", "new", fork_of("old", from_project="games", not_after=1))
    made = models.checkpoints_of("other", "new")
    assert reply.step == 1 and reply.checkpoint_path == str(made.path(1)) and made.steps() == [1]
    names = sorted(path.name for path in made.path(1).iterdir())
    assert names == ["adapter_model.safetensors", "manifest.json", "trainer_state.json"]  # no job.json
    for name in names:
        assert (made.path(1) / name).samefile(source.path(1) / name)
    assert made.made_by("job-1") is None


async def test_a_fork_that_is_asked_for_twice_is_made_once(tmp_path: Path) -> None:
    trained(tmp_path, "games", "old", (0, 1))
    forks, models = arrivals(tmp_path)
    assert await forks.fork("games", "new", fork_of("old")) == await forks.fork(
        "games", "new", fork_of("old")
    )
    assert models.checkpoints_of("games", "new").steps() == [1]


async def test_the_registration_says_where_a_model_was_forked_from(tmp_path: Path) -> None:
    trained(tmp_path, "games", "old", (0, 1))
    forks, models = arrivals(tmp_path)
    request = RegisterRequest(project="games", name="early", base_model="org/base", lora=LoraSpec(**LORA))
    assert models.register(request, "org/base").origin is None
    await forks.fork("games", "early", fork_of("old"))
    await forks.fork("games", "late", fork_of("old"))
    models.register(request.model_copy(update={"name": "late"}), "org/base")
    reread = RegisteredModels(DataLayout(tmp_path))
    assert {one.name: one.origin for one in reread.list_models()} == {
        "early": "games/old@1",
        "late": "games/old@1",
    }
    steps = tmp_path / "games/models/late/steps/0001"
    steps.mkdir(parents=True)
    doomed = reread.forget(reread.get("games", "late"))
    assert doomed is not None and sorted(path.name for path in doomed.iterdir()) == ["0001", "steps"]
    assert not steps.exists()
    again = RegisteredModels(DataLayout(tmp_path)).register(
        request.model_copy(update={"name": "late"}), "org/base"
    )
    assert again.origin is None and again.removals == 1


async def test_a_fork_survives_the_deletion_of_its_source(tmp_path: Path) -> None:
    source = trained(tmp_path, "games", "old", (0, 1))
    forks, models = arrivals(tmp_path)
    await forks.fork("games", "new", fork_of("old"))
    source.delete(1)
    assert (
        models.checkpoints_of("games", "new").path(1) / "adapter_model.safetensors"
    ).read_bytes() == b"old@1"


async def test_a_model_with_steps_of_its_own_is_refused(tmp_path: Path) -> None:
    trained(tmp_path, "games", "old", (0, 1))
    trained(tmp_path, "games", "new", (0, 1))
    forks, _ = arrivals(tmp_path)
    with pytest.raises(RequestError, match=r"games/new has steps of its own: \[0, 1\].*another name") as no:
        await forks.fork("games", "new", fork_of("old"))
    assert no.value.status == 409
    with pytest.raises(RequestError, match="has steps of its own"):
        await forks.fork("games", "old", fork_of("old", step=0))


async def test_only_an_untouched_step_0_gives_way(tmp_path: Path) -> None:
    trained(tmp_path, "games", "old", (0,))
    new = trained(tmp_path, "games", "new", (0,))
    forks, _ = arrivals(tmp_path)
    await forks.fork("games", "new", fork_of("old"))
    assert (new.path(0) / "adapter_model.safetensors").read_bytes() == b"old@0" and new.rejections(0) == 1


async def test_names_are_confined_to_the_data_folder(tmp_path: Path) -> None:
    forks, _ = arrivals(tmp_path)
    for request in (fork_of(".."), fork_of("x", from_project="../etc")):
        with pytest.raises(RequestError, match="is not a name"):
            await forks.fork("games", "new", request)


async def test_a_link_in_a_checkpoint_is_not_followed(tmp_path: Path) -> None:
    source = trained(tmp_path, "games", "old", (1,))
    (source.path(1) / "secret").symlink_to("/etc/passwd")
    forks, models = arrivals(tmp_path)
    with pytest.raises(CheckpointError, match="no plain file"):
        await forks.fork("games", "new", fork_of("old"))
    assert models.checkpoints_of("games", "new").steps() == []


async def test_a_new_model_takes_the_shape_of_the_checkpoint_that_waits_for_it(tmp_path: Path) -> None:
    trained(tmp_path, "games", "old", (0, 1))
    forks, _ = arrivals(tmp_path)
    await forks.fork("games", "new", fork_of("old"))
    asked = RegisterRequest(project="games", name="new", base_model="org/base")
    assert forks.shaped(asked).lora == LoraSpec.model_validate(LORA)
    with pytest.raises(RequestError, match=r"checkpoint .*0001 holds the LoRA"):
        forks.shaped(asked.model_copy(update={"lora": LoraSpec(r=8)}))
    with pytest.raises(RequestError, match="the model all weights"):
        forks.shaped(asked.model_copy(update={"lora": None}))


async def test_a_registered_model_refuses_another_shape_and_keeps_what_it_had(tmp_path: Path) -> None:
    trained(tmp_path, "games", "old", (0, 1))
    new = trained(tmp_path, "games", "new", (0,))
    forks, models = arrivals(tmp_path)
    models.register(
        RegisterRequest(project="games", name="new", base_model="org/base", lora=LoraSpec(r=8)), "org/base"
    )
    with pytest.raises(RequestError, match="holds the LoRA"):
        await forks.fork("games", "new", fork_of("old"))
    assert new.steps() == [0] and [path.name for path in new.folder.iterdir()] == ["0000"]


def test_what_a_request_leaves_open() -> None:
    spelled = LoraSpec(r=8, targets=["q_proj", "v_proj"])
    assert leaves_open(spelled, LoraSpec()) and leaves_open(spelled, LoraSpec(r=8))
    assert leaves_open(spelled, LoraSpec(targets=["v_proj", "q_proj"]))
    assert not leaves_open(spelled, LoraSpec(r=4)) and not leaves_open(spelled, LoraSpec(targets=["o_proj"]))
    assert not leaves_open(LoraSpec(), LoraSpec(targets=["o_proj"]))
    assert leaves_open(None, None) and not leaves_open(None, LoraSpec()) and not leaves_open(spelled, None)


def plain_adapter(folder: Path, **changes: object) -> Path:
    """What PEFT writes."""
    prefix = "base_model.model.model.layers.0.self_attn"
    tensors = {
        f"{prefix}.{target}.lora_{half}.weight": np.ones((8, 8), dtype=np.float32)
        for target in ("q_proj", "v_proj")
        for half in "AB"
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "r": 8,
        "lora_alpha": 16,
        "target_modules": r".*(q_proj|v_proj)",  # a pattern, as Unsloth writes it
        "base_model_name_or_path": "org/base",
        **changes,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def test_a_plain_peft_folder_has_a_shape_too(tmp_path: Path) -> None:
    shape = read_shape(plain_adapter(tmp_path))
    assert shape.plain and shape.base_model == "org/base"
    assert shape.lora == LoraSpec(r=8, alpha=16, targets=["q_proj", "v_proj"])
    with pytest.raises(CheckpointError, match=r"'LOHA'.*only LoRA"):
        read_shape(plain_adapter(tmp_path, peft_type="LOHA"))
    plain_adapter(tmp_path)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"cut")
    with pytest.raises(CheckpointError, match=r"adapter_model\.safetensors cannot be read"):
        read_shape(tmp_path)
    (tmp_path / "adapter_config.json").unlink()
    with pytest.raises(CheckpointError, match=r"adapter_config\.json cannot be read"):
        read_shape(tmp_path)


def test_a_base_model_may_be_a_lora_folder(tmp_path: Path) -> None:
    assert adapter_folder("org/base") is None and adapter_folder(str(tmp_path)) is None
    folder = plain_adapter(tmp_path / "sft")
    assert adapter_folder(str(folder)) == folder and base_of_adapter(folder) == "org/base"
    (tmp_path / "whole").mkdir()
    assert base_of_adapter(plain_adapter(folder, base_model_name_or_path="whole")) == str(tmp_path / "whole")
    with pytest.raises(ConfigurationError, match="set it to the base model"):
        base_of_adapter(plain_adapter(folder, base_model_name_or_path=None))
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(ConfigurationError, match="safe_serialization"):
        base_of_adapter(folder)
    (folder / "config.json").write_text("{}")
    assert adapter_folder(str(folder)) is None  # a whole model


async def test_a_lora_folder_becomes_step_0_once(tmp_path: Path) -> None:
    forks, models = arrivals(tmp_path / "data")
    folder = plain_adapter(tmp_path / "sft")
    for _ in range(2):
        await forks.begin("games", "new", folder)
    made = models.checkpoints_of("games", "new")
    assert made.steps() == [0] and made.rejections(0) == 0
    asked = RegisterRequest(project="games", name="new", base_model="org/base")
    assert forks.shaped(asked).lora == LoraSpec(r=8, alpha=16, targets=["q_proj", "v_proj"])
    (folder / "adapter_model.safetensors").write_bytes(
        (made.path(0) / "adapter_model.safetensors").read_bytes()[:-1] + b"x"
    )
    with pytest.raises(RequestError, match="began with other weights"):
        await forks.begin("games", "new", folder)


# Steps that were pulled


def arriving(data: Path, step: int, weights: bytes) -> None:
    write_step(data / "games" / "models" / "new" / ".arriving" / f"{step:04d}", step, weights)


async def test_pulled_steps_are_committed(tmp_path: Path) -> None:
    adopting, models = arrivals(tmp_path)
    for step in (3, 4):
        arriving(tmp_path, step, b"far")
    reply = await adopting.adopt("games", "new", AdoptRequest(steps=[4, 3]))
    assert reply.adopted == [3, 4] and models.checkpoints_of("games", "new").steps() == [3, 4]
    assert (await adopting.adopt("games", "new", AdoptRequest(steps=[4, 3]))).adopted == [3, 4]  # asked twice
    with pytest.raises(NotFoundError, match=r"steps \[5\] are not in .*pull again"):
        await adopting.adopt("games", "new", AdoptRequest(steps=[3, 5]))


async def test_a_committed_step_is_overwritten_only_where_it_was_said_to_give_way(tmp_path: Path) -> None:
    new = trained(tmp_path, "games", "new", (0, 1, 2))
    adopting, _ = arrivals(tmp_path)
    arriving(tmp_path, 1, b"far")
    with pytest.raises(RequestError, match=r"has steps \[1\] already"):
        await adopting.adopt("games", "new", AdoptRequest(steps=[1]))
    await adopting.adopt("games", "new", AdoptRequest(steps=[1], set_aside=[1, 2]))
    assert new.steps() == [0, 1] and new.rejections(1) == new.rejections(2) == 1
    assert (new.path(1) / "adapter_model.safetensors").read_bytes() == b"far"


async def test_two_arrivals_wait_for_each_other_and_not_for_ever(tmp_path: Path) -> None:
    trained(tmp_path, "games", "old", (0, 1))
    forks, _ = arrivals(tmp_path)
    async with forks.exclusive("games", "new"):
        with pytest.raises(RequestError, match=r"in use for 0\.2 s") as busy:
            await forks.fork("games", "new", fork_of("old"))
    assert busy.value.code == "model_busy"
    await forks.fork("games", "new", fork_of("old"))
