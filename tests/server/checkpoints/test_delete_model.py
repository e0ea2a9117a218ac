"""A model that is deleted is gone at once, whole, and never while it is trained."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tenants_world import World, run_world

from art.errors import NotFoundError, RequestError
from art.rendering.library import LibraryRenderer
from art.server.checkpoints.checkpoints import Checkpoints, file_of, manifest_of
from art.server.checkpoints.registered_models import RegisteredModels
from art.server.data_folder import DataLayout
from art.server.jobs.job_table import TrainingJob
from art.wire.jobs import BalanceSheet, TrainResultInfo
from art.wire.models import RegisterRequest
from art.wire.training import LoraSpec

MODEL = "/art/models/games/player"
JOB = {"groups": [], "optimizer": {"learning_rate": 1.0}}


@pytest.fixture
async def world(tmp_path: Path, renderer: LibraryRenderer) -> AsyncIterator[World]:
    async with run_world(tmp_path, renderer) as running:
        yield running


async def test_a_deleted_model_is_gone_and_its_name_begins_anew(world: World, tmp_path: Path) -> None:
    alice, folder = world.clients["alice"], tmp_path / "alice~games" / "models" / "player"
    history = folder / "history.jsonl"
    history.write_text("{}\n")
    (folder / "steps" / "0003").mkdir(parents=True)
    (folder / "steps" / "0003" / "tokens.safetensors").write_bytes(b"of the model that is deleted")
    reply = await alice.delete(MODEL)
    assert reply.json() == {"project": "games", "name": "player"}
    for asked in (
        await alice.get(MODEL),
        await alice.delete(MODEL),
        await alice.get(f"{MODEL}/checkpoints/3/files"),
    ):
        assert asked.status_code == 404
    assert {path.name for path in folder.iterdir()} == {"history.jsonl", ".removals"}
    for who in ("bob", "operator"):
        assert (await world.clients[who].get(MODEL)).json()["step"] == 3

    models = RegisteredModels(world.control.layout)
    assert [model.key for model in models.list_models()] == ["bob~games/player", "games/player"]
    request = RegisterRequest(project="alice~games", name="player", base_model="tiny", lora=LoraSpec(r=2))
    assert models.register(request, "tiny").removals == 1


async def test_a_model_with_an_unfinished_job_is_kept(world: World) -> None:
    finish = asyncio.Event()

    async def run(job: TrainingJob, progress: object) -> TrainResultInfo:
        await finish.wait()
        return TrainResultInfo(step=4, metrics={}, sheet=BalanceSheet())

    world.control.jobs._run = run
    alice = world.clients["alice"]
    assert (await alice.post(f"{MODEL}/train", json={"job_id": "slow", **JOB})).json()["job_id"] == "slow"
    refused = await alice.delete(MODEL)
    assert refused.status_code == 409 and refused.json()["error"]["code"] == "model_busy"
    assert "alice" not in refused.text
    assert (await world.clients["bob"].delete(MODEL)).status_code == 200
    finish.set()
    events = (await alice.get("/art/jobs/slow/events")).text
    assert json.loads(events.splitlines()[-1])["type"] == "result"
    assert (await alice.delete(MODEL)).status_code == 200


async def test_two_tenants_may_choose_one_job_id(world: World) -> None:
    async def run(job: TrainingJob, progress: object) -> TrainResultInfo:
        return TrainResultInfo(step=len(job.job_id), metrics={}, sheet=BalanceSheet())

    world.control.jobs._run = run
    for who, other in (("alice", {}), ("bob", {"expected_step": 3}), ("operator", {"expected_step": 9})):
        body = {"job_id": "same", **JOB, **other}
        assert (await world.clients[who].post(f"{MODEL}/train", json=body)).status_code == 200
        assert (await world.clients[who].get("/art/jobs/same/events")).status_code == 200
    refused = await world.clients["operator"].post(f"{MODEL}/train", json={"job_id": "alice~same", **JOB})
    assert refused.status_code == 400 and "may not hold" in refused.text


async def test_what_a_crash_left_of_a_removed_model_goes_at_the_start(world: World, tmp_path: Path) -> None:
    left = tmp_path / "alice~games" / "models" / "player" / ".removed-1"
    left.mkdir()
    (left / "file").write_text("x")
    await world.control.start()
    assert not left.exists()


# The files of a step


async def test_a_step_is_taken_home_file_by_file(world: World, tmp_path: Path) -> None:
    listed = (await world.clients["alice"].get(f"{MODEL}/checkpoints/3/files")).json()["files"]
    assert set(listed) == {"manifest.json"}
    step = tmp_path / "alice~games" / "models" / "player" / "checkpoints" / "0003"
    (step / "manifest.json").unlink()
    listed = (await world.clients["alice"].get(f"{MODEL}/checkpoints/3/files")).json()["files"]
    assert set(listed) == {"adapter_model.safetensors"}
    reply = await world.clients["alice"].get(f"{MODEL}/checkpoints/3/files/adapter_model.safetensors")
    assert (
        reply.text == "aliceswordofpower"
        and len(reply.content) == listed["adapter_model.safetensors"]["size"]
    )
    for name in ("job.json", "..", "%2e%2e", "..%2f..%2fregistration.json", "nothing"):
        asked = await world.clients["alice"].get(f"{MODEL}/checkpoints/3/files/{name}")
        assert asked.status_code == 404, name
    assert (await world.clients["alice"].get(f"{MODEL}/checkpoints/2/files")).status_code == 404


def test_a_manifest_leads_nowhere_else(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    step = checkpoints.path(1)
    step.mkdir(parents=True)
    (tmp_path / "secret").write_text("x")
    (step / "link").symlink_to(tmp_path / "secret")
    entry = {"sha256": "0" * 64, "size": 1}
    names = {name: entry for name in ("link", "../../secret", str(tmp_path / "secret"))}
    (step / "manifest.json").write_text(json.dumps({"files": names}))
    assert set(manifest_of(checkpoints, 1).files) == {*names, "manifest.json"}
    for name in names:
        with pytest.raises(NotFoundError, match="has no file"):
            file_of(checkpoints, 1, name)


def test_names_from_outside_stay_without_a_tenant(tmp_path: Path) -> None:
    layout = DataLayout(tmp_path)
    assert layout.model_dir("alice~games", "m") == tmp_path / "alice~games" / "models" / "m"
    for project in ("alice~", "~games", "a~b~c", "../x", "alice~../x", "alice~server"):
        with pytest.raises(RequestError, match="name"):
            layout.model_dir(project, "m")
