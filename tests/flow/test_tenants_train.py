"""Several tenants on one real server, with the same project and model names, through `ServerlessBackend`."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import pytest

import art
from art.client.backends.local_server import ServerProcess
from art.client.backends.serverless_backend import ServerlessBackend
from art.errors import AuthenticationError, CheckpointMissingError, NotFoundError, StepMissingError
from art.server.tenants import TENANTS_FILE, Tenants
from art.types import ServerlessTrainResult
from waiting import until

pytestmark = pytest.mark.slow


@dataclass
class Server:
    url: str
    tenants: Tenants
    folder: Path

    def backend(self, name: str) -> ServerlessBackend:
        """A new tenant's."""
        return ServerlessBackend(api_key=self.tenants.create(name), base_url=self.url)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    process = ServerProcess(folder, {})
    process.ensure_running()
    try:
        tenants = Tenants(folder / "server" / TENANTS_FILE)
        yield Server(f"http://127.0.0.1:{process.port}", tenants, folder)
    finally:
        process.stop()


def player(seed: int, base_path: Path) -> art.TrainableModel:
    """Everybody's has the same name."""
    return art.TrainableModel(
        name="player",
        project="games",
        base_model="art/nano",
        base_path=str(base_path),
        _internal_config={"init_args": {"random_state": seed}},
    )


@dataclass
class Learned:
    """What a run of two steps came to."""

    said: list[str]
    metrics: list[dict[str, float]]
    names: list[str | None]


async def learn(backend: ServerlessBackend, model: art.TrainableModel, seed: int) -> Learned:
    """Two steps, one request at a time with a seed each: nothing is left to chance."""
    await model.register(backend)
    learned, client = Learned([], [], []), model.openai_client()
    for step in range(2):
        group = []
        for attempt in range(6):
            trajectory = art.Trajectory(
                messages_and_choices=[{"role": "user", "content": f"yes, no or maybe? {attempt % 2}"}]
            )
            completion = await client.chat.completions.create(
                model=model.get_inference_name(),
                messages=trajectory.messages(),
                max_tokens=8,
                seed=1000 * seed + 10 * step + attempt,
            )
            choice = completion.choices[0]
            trajectory.messages_and_choices.append(choice)
            trajectory.reward = float(len(choice.message.content or "") + attempt)
            learned.said.append(choice.message.content or "")
            group.append(trajectory)
        result = await backend.train(model, [art.TrajectoryGroup(group)], learning_rate=1e-3)
        assert isinstance(result, ServerlessTrainResult) and result.checkpoint_path is None
        assert result.step == step + 1 == await model.get_step()
        learned.metrics.append(result.metrics)
        learned.names.append(result.artifact_name)
    return learned


def same(one: Learned, other: Learned) -> None:
    assert one.said == other.said
    for mine, theirs in zip(one.metrics, other.metrics, strict=True):
        compared = {name for name in mine if name.startswith(("loss/", "data/"))}
        assert len(compared) > 5
        for name in compared:
            # How far the engine is from the trainer is rounding alone, and differs with who shares a batch.
            rounding = 1e-5 if "logprob_difference" in name else 1e-6
            assert mine[name] == pytest.approx(theirs[name], rel=1e-4, abs=rounding), name


async def test_two_train_side_by_side_as_if_alone(server: Server, tmp_path: Path) -> None:
    alice, bob = server.backend("alice"), server.backend("bob")
    models = {name: player(seed, tmp_path / name) for name, seed in (("alice", 1), ("bob", 2))}
    together = await asyncio.gather(learn(alice, models["alice"], 1), learn(bob, models["bob"], 2))
    assert models["alice"].id == "alice/games/player" and models["alice"].run_id == "player"
    assert models["alice"].entity is None
    assert together[0].names == ["games/player:step1", "games/player:step2"]
    assert together[0].said != together[1].said

    async with server.backend("carol") as carol, server.backend("dave") as dave:
        same(together[0], await learn(carol, player(1, tmp_path / "carol"), 1))
        same(together[1], await learn(dave, player(2, tmp_path / "dave"), 2))

    # A key of nobody's models sees none.
    async with server.backend("erin") as erin:
        stranger = player(1, tmp_path / "erin")
        with pytest.raises(NotFoundError, match="games/player is not registered"):
            await erin.get_step(stranger)
        with pytest.raises(NotFoundError):
            await erin.pull_checkpoint(stranger, step=1)

    # What bob trained on is nothing that alice could train on: to her it does not exist.
    choice = (
        await models["bob"]
        .openai_client()
        .chat.completions.create(
            model=models["bob"].get_inference_name(),
            messages=[{"role": "user", "content": "x"}],
            max_tokens=2,
        )
    ).choices[0]
    stolen = [
        art.Trajectory(messages_and_choices=[{"role": "user", "content": "x"}, choice], reward=reward)
        for reward in (0.0, 1.0)
    ]
    with pytest.raises(NotFoundError, match="no such sample"):
        await alice.train(
            models["alice"], [art.TrajectoryGroup([stolen[0]]), art.TrajectoryGroup([stolen[1]])]
        )

    server.tenants.revoke("bob")

    async def ask() -> None:
        await bob.get_step(models["bob"])

    with pytest.raises(AuthenticationError):
        await until(ask)
    assert await alice.get_step(models["alice"]) == 2
    await alice.close()
    await bob.close()


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


async def test_a_checkpoint_comes_home_and_the_model_goes(server: Server, tmp_path: Path) -> None:
    async with server.backend("frank") as backend:
        model = player(3, tmp_path / "frank")
        await model.register(backend)
        with pytest.raises(CheckpointMissingError):
            await backend.pull_checkpoint(model)
        learned = await learn(backend, model, 3)
        folder = Path(await backend._experimental_pull_model_checkpoint(model, step="latest"))
        assert folder == tmp_path / "frank" / "games" / "models" / "player" / "checkpoints" / "0002"
        there = server.folder / "frank~games" / "models" / "player" / "checkpoints" / "0002"
        files = names_in(there) - {"job.json"}
        assert names_in(folder) == files and "adapter_model.safetensors" in files
        for name in files:
            assert digest(folder / name) == digest(there / name)
        before = written_at(folder)
        (told,) = [one for one in await backend.list_models() if one.key == "games/player"]
        rewards = [len(said) + number % 6 for number, said in enumerate(learned.said)]
        assert told.rewards == pytest.approx({1: fmean(rewards[:6]), 2: fmean(rewards[6:])})
        assert await backend.pull_checkpoint(model, step=2) == str(folder)
        assert written_at(folder) == before
        other = await backend.pull_checkpoint(model, step=1, local_path=tmp_path / "one")
        assert step_of(Path(other)) == 1
        with pytest.raises(StepMissingError, match="Available steps"):
            await backend.pull_checkpoint(model, step=9)

        await backend._delete_checkpoint_files(model, [2])
        with pytest.raises(StepMissingError):
            await backend.pull_checkpoint(model, step=1)

        # A model that begins where another stands, then one that is removed and made again.
        fork = art.TrainableModel(name="fork", project="games", base_model="art/nano")
        await backend._experimental_fork_checkpoint(fork, "player")
        await fork.register(backend)
        assert await fork.get_step() == 2
        await backend.delete(fork)
        with pytest.raises(NotFoundError):
            await backend.delete(fork)
        again = player(3, tmp_path / "again")
        await backend.delete(model)
        with pytest.raises(NotFoundError):
            await model.get_step()
        assert not names_in(server.folder / "frank~games" / "models" / "player") - {".removals"}
        await learn(backend, again, 4)
        assert await again.get_step() == 2


def written_at(folder: Path) -> int:
    return (folder / "adapter_model.safetensors").stat().st_mtime_ns


def step_of(folder: Path) -> int:
    return json.loads((folder / "trainer_state.json").read_text())["step"]


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
