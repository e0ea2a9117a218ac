"""A job of preferences whose server or trainer is killed between its updates gives the same step."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2] / "faults"))

from server_process import ServerProcess, running_server
from tiny_base import build_base

from waiting import eventually

pytestmark = pytest.mark.slow

UPDATES = 24


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_base(tmp_path_factory.mktemp("base") / "tiny")


@pytest.fixture
def server(tmp_path: Path, base: Path) -> Iterator[ServerProcess]:
    with running_server(tmp_path / "data", base) as running:
        yield running


def job() -> dict[str, Any]:
    """Labelled replies: each update scores mismatched ones before it moves the weights."""

    def conversation(number: int) -> dict[str, Any]:
        said = [("user", f"hello {number}"), ("assistant", f"ok {number}")]
        messages = [{"role": role, "content": text} for role, text in said]
        return {"name": f"c{number}", "messages": messages}

    return {
        "job_id": "learn",
        "job": "kto",
        "conversations": [conversation(number) for number in range(6)],
        "batches": [[number % 6, (number + 1) % 6, (number + 3) % 6] for number in range(UPDATES)],
        "learning_rates": [1e-3 * (number + 1) / UPDATES for number in range(UPDATES)],
        "optimizer": {"learning_rate": None},
        "algorithm": {
            "name": "kto",
            "advantage": {"kind": "none"},
            "loss": {"name": "kto", "params": {"beta": 0.5}},
            "aggregation": {"kind": "constant", "length": 1},
            "kl": {"coefficient": 0.5, "place": "term"},
            "zero_advantage": "count",
        },
        "options": {"desirable": [0, 2, 3]},
    }


def submit(server: ServerProcess, body: dict[str, Any]) -> None:
    reply = server.http.post("/art/models/games/player/train_extension", json=body)
    assert reply.status_code == 200, reply.text


def digest(server: ServerProcess) -> list[str]:
    step = server.data_dir / "games" / "models" / "player" / "checkpoints" / "0001"
    files = (step / name for name in ("adapter_model.safetensors", "optimizer.safetensors"))
    return [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]


@pytest.mark.parametrize("who", ["server", "trainer"])
def test_a_killed_job_gives_the_same_step(
    server: ServerProcess, tmp_path: Path, base: Path, who: str
) -> None:
    submit(server, job())

    def in_the_middle() -> bool:
        done = [one["done"] for one in server.events("learn", most=8) if one.get("phase") == "training"]
        return bool(done) and done[-1] >= 2

    eventually(in_the_middle)
    assert server.model()["step"] == 0, "killed too late"
    if who == "server":
        server.kill()
        server.start()
        server.register()
    else:
        server.workers()["trainer"].kill()
    result = server.result("learn")
    assert result["step"] == 1 and result["metrics"]["data/step_num_gradient_steps"] == UPDATES
    with running_server(tmp_path / "straight", base) as other:
        submit(other, job())
        assert other.result("learn")["step"] == 1
        assert digest(other) == digest(server)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"job": "kot"}, "no extension gives the job 'kot': did you mean 'kto'"),
    ({"job": "dpo"}, "its loss is 'preference', not 'kto'"),
    ({"batches": [[0], [1, 2]]}, "batch 0 has one conversation"),
    ({"options": {"desirable": [9]}}, "conversation 9 of 6 is desirable"),
    ({"options": {}}, "desirable: Field required"),
    (
        {"options": {"desirable": [0], "desirable_weight": 0}},
        "desirable_weight: Input should be greater than 0",
    ),
]


def test_a_job_that_does_not_fit_itself_fails_by_name(server: ServerProcess) -> None:
    for number, (change, problem) in enumerate(WRONG):
        body = {**job(), **change, "job_id": f"wrong-{number}"}
        body["learning_rates"] = [1e-3] * len(body["batches"])
        submit(server, body)
        assert problem in server.events(f"wrong-{number}")[-1]["error"]
    assert server.model()["step"] == 0
