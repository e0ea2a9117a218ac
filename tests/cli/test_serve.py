"""`art serve` answers for what its command line names."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import art
from art.process.running_server import RunningServer, find_server
from starting import StartedProgram
from waiting import eventually

pytestmark = pytest.mark.slow


@contextmanager
def served(folder: Path, *options: str) -> Iterator[tuple[RunningServer, httpx.Client]]:
    command = [
        str(Path(sys.executable).with_name("art")),
        "serve",
        "--port",
        "0",
        "--data-dir",
        str(folder),
        *options,
    ]
    with StartedProgram(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ART serves http://127.0.0.1:")
        server = find_server(folder / "server")
        assert server is not None and server.pid == process.pid
        headers = {"authorization": f"Bearer {server.key}"}
        with httpx.Client(base_url=server.url, headers=headers, timeout=240) as client:
            yield server, client
        process.send_signal(signal.SIGTERM)
        assert process.wait(240) == 0


def names(client: httpx.Client) -> list[str]:
    return [row["id"] for row in client.get("/v1/models").json()["data"]]


def answers(client: httpx.Client, model: str) -> bool:
    body = {"model": model, "messages": [{"role": "user", "content": "yes, no or maybe?"}], "max_tokens": 4}
    return client.post("/v1/chat/completions", json=body).status_code == 200


async def test_a_base_model_is_served_at_once_and_later_one_trained_model_alone(tmp_path: Path) -> None:
    with served(tmp_path, "--base-model", "art/nano-games") as (server, client):
        eventually(lambda: "art/nano-games" in names(client))
        assert answers(client, "art/nano-games")
        for name in ("wanted", "other"):
            async with art.LocalBackend(path=tmp_path) as backend:
                await backend.register(
                    art.TrainableModel(name=name, project="games", base_model="art/nano-games")
                )
                assert backend._server.pid == server.pid, "a program attaches to what runs by hand, too"
    with served(tmp_path, "--model", "games/wanted") as (_, client):
        eventually(lambda: "wanted" in names(client))
        assert "other" not in names(client) and answers(client, "wanted")


async def test_the_whole_requests_of_the_newest_steps_are_kept_for_replays(tmp_path: Path) -> None:
    model = art.TrainableModel(name="player", project="games", base_model="art/nano-games")
    with served(tmp_path, "--keep-replay", "1"):
        async with art.LocalBackend(path=tmp_path) as backend:
            await model.register(backend)
            for _ in range(2):
                await backend.train(model, [await play_group(model)], learning_rate=1e-3)
    steps = tmp_path / "games" / "models" / "player" / "steps"
    assert sorted(path.parent.name for path in steps.glob("*/computed.json")) == ["0001", "0002"]
    assert [path.parent.name for path in steps.glob("*/request.json.gz")] == ["0002"]


async def play_group(model: art.TrainableModel[Any, Any]) -> art.TrajectoryGroup:
    ask, rollouts = {"role": "user", "content": "yes, no or maybe?"}, []
    for number in range(2):
        completion = await model.openai_client().chat.completions.create(
            model=model.get_inference_name(), messages=[ask], max_tokens=4, seed=number
        )
        said = [ask, completion.choices[0]]
        rollouts.append(art.Trajectory(messages_and_choices=said, reward=float(number)))
    return art.TrajectoryGroup(rollouts)


def test_a_name_that_is_no_model_s_ends_it_with_the_names_that_are(tmp_path: Path) -> None:
    for options, said in (
        (["--model", "games/none"], "'games/none' is no model of"),
        (["--base-model", "art/nanoo"], "art/nano"),
    ):
        command = [
            str(Path(sys.executable).with_name("art")),
            "serve",
            "--port",
            "0",
            "--data-dir",
            str(tmp_path),
        ]
        done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=240)
        assert done.returncode == 1 and said in done.stderr.splitlines()[-1], done.stderr
