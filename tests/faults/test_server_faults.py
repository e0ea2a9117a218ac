"""kill -9 of the server at any point of a job: no committed step is lost, nothing is trained twice."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from server_process import ServerProcess, running_server

from waiting import eventually

pytestmark = pytest.mark.slow


def checkpoints(server: ServerProcess) -> Path:
    return server.data_dir / "games" / "models" / "player" / "checkpoints"


def weights(server: ServerProcess, step: int) -> str:
    file = checkpoints(server) / f"{step:04d}" / "adapter_model.safetensors"
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.mark.parametrize("phase", ["queued", "training", "committed", "told"])
def test_a_job_is_finished_after_the_server_was_killed(server: ServerProcess, phase: str) -> None:
    assert server.train("first")["step"] == 1
    first = weights(server, 1)
    trainer = server.workers()["trainer"]
    job = server.job("second")
    if phase in {"queued", "training"}:
        trainer.suspend()
    server.submit(job)
    if phase == "training":
        eventually(lambda: len(server.events("second", most=2)) == 2)
    elif phase == "committed":
        eventually((checkpoints(server) / "0002").exists)
    elif phase == "told":
        assert server.events("second")[-1]["type"] == "result"
    made = weights(server, 2) if phase in {"committed", "told"} else None
    seen = 1
    server.kill()

    server.start()
    rest = server.events("second", after=seen)
    assert rest[0]["number"] == seen + 1 and rest[-1]["type"] == "result"
    assert rest[-1]["result"]["step"] == 2
    server.register()
    assert server.model()["checkpoints"] == [0, 1, 2]
    assert weights(server, 1) == first
    assert made is None or weights(server, 2) == made, "a committed step is not trained again"
    assert json.loads((checkpoints(server) / "0002" / "job.json").read_text())["job_id"] == "second"
    assert server.submit(job)["result"]["step"] == 2, "sent again, it is the same job"
    assert server.choice()["step"] == 2
    assert server.train("third")["step"] == 3


def test_a_resumed_run_computes_what_an_uninterrupted_one_does(tmp_path: Path, base: Path) -> None:
    """The same samples trained with and without a kill between two steps give the same weights."""
    with running_server(tmp_path / "data", base) as server:
        server.train("first", seed=1)
        second = server.job("second", seed=2)
        server.kill()
        shutil.copytree(server.data_dir, tmp_path / "copy")
        server.start()
        server.register()
        server.submit(second)
        server.events("second")
        resumed = weights(server, 2)
    with running_server(tmp_path / "copy", base) as server:
        server.submit(second)
        server.events("second")
        assert weights(server, 2) == resumed


def test_a_half_written_checkpoint_is_no_step(server: ServerProcess) -> None:
    server.train("first")
    server.kill()
    shutil.copytree(checkpoints(server) / "0001", checkpoints(server) / ".0002.saving")
    server.start()
    server.register()
    assert server.model()["step"] == 1 and not (checkpoints(server) / ".0002.saving").exists()
    assert server.train("second")["step"] == 2


@pytest.mark.parametrize("damage", ["truncated", "missing"])
def test_a_damaged_newest_checkpoint_is_refused_with_the_remedy(server: ServerProcess, damage: str) -> None:
    server.train("first")
    server.kill()
    file = checkpoints(server) / "0001" / "optimizer.safetensors"
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-7])
    server.start()
    body = {
        "project": "games",
        "name": "player",
        "base_model": str(server.base),
        "lora": {"r": 4, "alpha": 8},
    }
    refused = server.http.post("/art/models", json=body)
    message = refused.json()["error"]["message"]
    assert (
        refused.status_code == 409 and "optimizer.safetensors" in message and "remove that folder" in message
    )
    shutil.rmtree(checkpoints(server) / "0001")
    server.register()
    assert server.model()["step"] == 0, "the remedy works"


def test_a_model_whose_folder_is_gone_does_not_begin_anew(server: ServerProcess) -> None:
    """The data folder is moved while the server runs: nothing is trained beside it; it goes on when back."""
    server.train("first")
    first, moved = weights(server, 1), server.data_dir.with_name("moved")
    server.data_dir.rename(moved)
    server.submit(server.job("second"))
    failed = server.events("second")[-1]
    assert failed["type"] == "error" and "has no checkpoint any more" in failed["error"]
    assert not checkpoints(server).exists(), "no second run grows there"
    shutil.rmtree(server.data_dir, ignore_errors=True)
    moved.rename(server.data_dir)
    assert server.train("third")["step"] == 2 and weights(server, 1) == first


def test_a_second_server_over_the_same_folder_is_refused(server: ServerProcess, base: Path) -> None:
    second = ServerProcess(server.data_dir, base)
    with pytest.raises(AssertionError, match="ready"):
        second.start()
    assert second.process is not None
    second.process.communicate()
    second.http.close()


def sft_job(job_id: str, updates: int) -> dict[str, Any]:
    """A supervised job of many small updates, each at a rate of its own."""
    conversations = [
        {
            "name": f"c{number}",
            "messages": [
                {"role": "user", "content": f"hello {number}"},
                {"role": "assistant", "content": f"ok {number}"},
            ],
        }
        for number in range(6)
    ]
    return {
        "job_id": job_id,
        "conversations": conversations,
        "batches": [[number % 6, (number + 1) % 6] for number in range(updates)],
        "learning_rates": [1e-3 * (number + 1) / updates for number in range(updates)],
        "optimizer": {"learning_rate": None},
    }


def submit_sft(server: ServerProcess, job: dict[str, Any]) -> None:
    reply = server.http.post("/art/models/games/player/train_sft", json=job)
    assert reply.status_code == 200, reply.text


@pytest.mark.parametrize("who", ["server", "trainer"])
def test_a_supervised_job_killed_between_its_updates_gives_the_same_step(
    server: ServerProcess, tmp_path: Path, base: Path, who: str
) -> None:
    """Nothing of the updates before is kept: the job begins anew from the committed step."""
    updates = 40
    job = sft_job("learn", updates)
    submit_sft(server, job)

    def in_the_middle() -> bool:
        done = [one["done"] for one in server.events("learn", most=8) if one.get("phase") == "training"]
        return bool(done) and done[-1] >= 3

    eventually(in_the_middle)
    assert server.model()["step"] == 0, "killed too late"
    if who == "server":
        server.kill()
        server.start()
        server.register()
    else:
        server.workers()["trainer"].kill()
    result = server.result("learn")
    assert result["step"] == 1 and result["metrics"]["data/step_num_gradient_steps"] == updates
    assert server.model()["checkpoints"] == [0, 1]
    with running_server(tmp_path / "straight", base) as other:
        submit_sft(other, job)
        assert other.result("learn")["step"] == 1
        assert weights(other, 1) == weights(server, 1)
        moments = "optimizer.safetensors"
        one, two = (checkpoints(each) / "0001" / moments for each in (server, other))
        assert one.read_bytes() == two.read_bytes()


def test_a_supervised_job_that_is_too_large_is_refused_with_advice(server: ServerProcess) -> None:
    def body() -> Iterator[bytes]:
        yield b'{"job_id": "' + b"x" * 1024 * 1024
        for _ in range(300):
            yield b"x" * 1024 * 1024

    try:
        refused = server.http.post("/art/models/games/player/train_sft", content=body())
    except httpx.TransportError:
        return  # it did not even read it
    assert refused.status_code == 413
    assert "one for each chunk of create_sft_dataset_iterator" in refused.json()["error"]["message"]


def test_a_supervised_job_that_does_not_fit_itself_is_refused(server: ServerProcess) -> None:
    job = {**sft_job("odd", 3), "learning_rates": [1e-3]}
    refused = server.http.post("/art/models/games/player/train_sft", json=job)
    assert (
        refused.status_code == 400 and "1 learning rates for 3 batches" in refused.json()["error"]["message"]
    )
    job = {**sft_job("odd", 3), "batches": [[0], [9], [1]]}
    refused = server.http.post("/art/models/games/player/train_sft", json=job)
    assert "batch 1 names conversation 9 of 6" in refused.json()["error"]["message"]
