"""The names under which older programs call a backend, and programs that bring a backend of their own."""

from __future__ import annotations

import asyncio
import copy
import json
import socket
import sys
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest
from wire_double import Double

import art
from art.errors import ConfigurationError, NotBuiltError, NotRegisteredError, StepMissingError

GROUPS = [art.TrajectoryGroup([art.Trajectory(reward=1.0), art.Trajectory(reward=0.0)])]


async def test_the_name_of_the_newest_step_and_of_a_given_one(
    backend: art.RemoteBackend, model: art.TrainableModel
) -> None:
    await model.register(backend)
    assert backend._model_inference_name(model) == model.get_inference_name() == "agent"
    assert backend._model_inference_name(model, 3) == model.get_inference_name(3) == "agent@3"


async def test_of_two_models_with_one_name_each_is_asked_for_with_its_project(
    backend: art.RemoteBackend, model: art.TrainableModel
) -> None:
    await model.register(backend)
    namesake = art.TrainableModel(name=model.name, project="puzzles", base_model=model.base_model)
    await namesake.register(backend)
    assert model.get_inference_name() == "games/agent" and model.get_inference_name(3) == "games/agent@3"
    assert namesake.get_inference_name() == "puzzles/agent"
    async with backend.adapter_lease(model, 2):
        assert model.get_inference_name() == "games/agent@2"


async def test_a_lease_pins_the_step_in_its_context_alone(
    backend: art.RemoteBackend, model: art.TrainableModel
) -> None:
    await model.register(backend)
    other = copy.copy(model)
    other.name = "other"
    inside, outside = asyncio.Event(), asyncio.Event()

    async def pinned() -> list[str]:
        async with backend.adapter_lease(model, 2):
            inside.set()
            await outside.wait()
            child = await asyncio.create_task(asyncio.sleep(0, model.get_inference_name()))
            async with backend.adapter_lease(model, 1):
                inner = model.get_inference_name()
            named = [model.get_inference_name(), child, inner, model.get_inference_name(7)]
        return [*named, model.get_inference_name()]

    task = asyncio.create_task(pinned())
    await inside.wait()
    assert model.get_inference_name() == "agent"
    outside.set()
    assert await task == ["agent@2", "agent@2", "agent@1", "agent@7", "agent"]


@pytest.mark.extension
async def test_a_leased_step_is_neither_deleted_nor_unloaded(
    backend: art.RemoteBackend, double: Double, model: art.TrainableModel
) -> None:
    await model.register(backend)
    double.step = 5
    async with backend.adapter_lease(model, 2):
        assert await backend.prune_model_adapters(model, retain_steps={4}) == [0, 1, 3]
        assert await backend.delete_checkpoints(model, [4]) == [0, 1, 3]
        await backend._delete_checkpoint_files(model, [4])
    assert await backend.prune_model_adapters(model, retain_steps=set()) == [0, 1, 2, 3, 4]


@pytest.mark.extension
async def test_an_exact_lease_needs_the_step_and_a_retention_lease_pins_nothing(
    backend: art.RemoteBackend, double: Double, model: art.TrainableModel
) -> None:
    await model.register(backend)
    double.step = 5
    async with backend.adapter_retention_lease(model, 2):
        assert model.get_inference_name() == "agent"
        assert await backend.delete_checkpoints(model, [4]) == [0, 1, 3]
    async with backend.exact_adapter_lease(model, 5):
        assert model.get_inference_name() == "agent@5"
        assert await asyncio.create_task(asyncio.sleep(0, model.get_inference_name())) == "agent@5"
        assert await backend.prune_model_adapters(model, retain_steps=set()) == [0, 1, 2, 3, 4]
    with pytest.raises(StepMissingError, match=r"exact_adapter_lease\('agent', 3\).*there are 0, 5"):
        async with backend.exact_adapter_lease(model, 3):
            pytest.fail("the block runs")
    assert model.get_inference_name() == "agent" and not list(backend._in_use)


@pytest.mark.extension
async def test_pins_of_later_releases_name_the_step_in_their_context_alone(
    backend: art.RemoteBackend, model: art.TrainableModel
) -> None:
    from art import adapter_leases as leases
    from art.local.adapter_leases import pin_inference_step

    assert pin_inference_step is leases.pin_inference_step
    prompted = art.Model(name="agent", project="games", inference_model_name="gpt")
    run = art.TrainableModel(name="agent", run_name="r1", project="games", base_model="art/nano")
    await model.register(backend)
    with leases.pin_inference_step("agent", 3) as target:
        assert target == leases.InferenceTarget(3, "agent@3")
        assert model.get_inference_name() == "agent@3" and model.get_inference_name(7) == "agent@7"
        assert prompted.get_inference_name() == "gpt@3"
        async with backend.adapter_lease(run, 4):
            assert leases.pinned_inference_step("agent") == leases.pinned_inference_step("r1") == 4
        with leases.pin_inference_target("agent", step=5, inference_name="mine"):
            assert model.get_inference_name() == leases.pinned_inference_name("agent") == "mine"
            assert leases.pinned_inference_name("agent", 5) == "mine"
            assert leases.pinned_inference_name("agent", 3) is None
        with leases.pin_inference_step("other", 9):
            assert model.get_inference_name() == "agent@3" == leases.pinned_inference_name("agent")
    assert model.get_inference_name() == "agent" and leases.pinned_inference_step("agent") is None
    with pytest.raises(ConfigurationError, match="whole number from 0 on, not -1"):
        leases.pin_inference_step("agent", -1).__enter__()
    with pytest.raises(NotBuiltError, match=r"in_flight_lora_name is not built.*an adapter never changes"):
        leases.in_flight_lora_name("agent")


@pytest.mark.extension
async def test_the_step_and_the_endpoint_by_their_older_names(
    backend: art.RemoteBackend, double: Double, model: art.TrainableModel
) -> None:
    url, key = await backend._prepare_backend_for_training(model, None)
    assert (url, key) == (model.inference_base_url, double.key) and len(double.registered) == 1
    assert await backend._prepare_backend_for_training(model, None) == (url, key)
    assert len(double.registered) == 1
    assert await backend._get_step(model) == 0
    config = art.TrainConfig(learning_rate=1e-3, beta=0.5)
    (metrics,) = [one async for one in backend._train_model(model, GROUPS, config, {"epsilon": 0.3}, False)]
    assert metrics["loss/train"] == 0.5 and await backend._get_step(model) == 1
    (job,) = double.jobs.values()
    assert job["optimizer"]["learning_rate"] == 1e-3 and job["algorithm"]["kl"]["coefficient"] == 0.5


async def test_where_a_remote_server_listens_is_not_for_us_to_say(
    backend: art.RemoteBackend, double: Double, model: art.TrainableModel
) -> None:
    with pytest.raises(ConfigurationError, match=r"gives port, but this server runs already.*LocalBackend"):
        await model.register(backend, _openai_client_config={"server_args": {"port": 1}})
    told = {"engine_args": {"max_model_len": 77}}
    for length in (99, 55):
        model._internal_config = {"init_args": {"max_seq_length": length}}
        await model.register(backend, _openai_client_config=told)
    assert [asked["max_context"] for asked in double.registered] == [77, 55]


def local(tmp_path: Path) -> art.LocalBackend:
    backend = art.LocalBackend(path=str(tmp_path / "art"))
    backend._server.command = (sys.executable, str(Path(__file__).parent / "wire_double.py"))
    return backend


@pytest.mark.slow
async def test_a_local_server_listens_where_it_is_told(tmp_path: Path, model: art.TrainableModel) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    told = {"server_args": {"port": port, "api_key": "a-chosen-key", "host": "0.0.0.0"}}
    async with local(tmp_path) as backend:
        await model.register(backend, _openai_client_config=told)
        assert model.inference_base_url == f"http://127.0.0.1:{port}/v1"
        assert model.inference_api_key == "a-chosen-key"
        await model.register(backend, _openai_client_config=told)
        with pytest.raises(ConfigurationError, match="another api_key, but the server of this backend runs"):
            await model.register(backend, _openai_client_config={"server_args": {"api_key": "another-key"}})
    written = (tmp_path / "art" / "games" / "models" / "agent" / "model.json").read_text()
    assert "a-chosen-key" not in written and "art/nano" in written


class Own:
    """A backend in the style of upstream's protocol, as a program's tests may have it."""

    def __init__(self) -> None:
        self.step = 0
        self.asked: list[tuple[Any, ...]] = []

    async def register(self, model: art.Model) -> None:
        self.asked.append(("register", model.name))

    async def _prepare_backend_for_training(self, model: Any, config: Any) -> tuple[str, str]:
        return "http://127.0.0.1:9/v1", "own-key"

    async def _get_step(self, model: Any) -> int:
        return self.step

    async def _delete_checkpoint_files(self, model: Any, steps_to_keep: list[int]) -> None:
        self.asked.append(("keep", steps_to_keep))

    async def _train_model(
        self, model: Any, groups: Iterable[art.TrajectoryGroup], config: Any, dev_config: Any, verbose: bool
    ) -> AsyncIterator[dict[str, float]]:
        self.asked.append(("train", config.learning_rate, config.kl_penalty_coef, dict(dev_config), verbose))
        for loss in (1.0, 3.0):
            yield {"loss/train": loss}
        self.step += 1


@pytest.mark.extension
async def test_a_program_brings_a_backend_of_its_own(model: art.TrainableModel) -> None:
    own = Own()
    await model.register(own)  # type: ignore[arg-type]
    assert model.backend() is own  # type: ignore[comparison-overlap]
    assert (model.inference_base_url, model.inference_api_key) == ("http://127.0.0.1:9/v1", "own-key")
    assert model.get_inference_name() == "agent" and await model.get_step() == 0
    assert str(model.openai_client().base_url) == "http://127.0.0.1:9/v1/"
    result = await model.train(
        GROUPS, config=art.TrainConfig(learning_rate=1e-3, beta=0.1), _config={"epsilon": 0.2}
    )
    assert (result.step, result.metrics["loss/train"]) == (1, 2.0) and await model.get_step() == 1
    await model.delete_checkpoints()
    assert own.asked == [
        ("register", "agent"),
        ("train", 1e-3, 0.1, {"epsilon": 0.2}, False),
        ("keep", [1]),
    ]
    assert (Path(model.base_path) / "games" / "models" / "agent" / "history.jsonl").exists()


async def test_lists_of_trajectories_are_trained_and_logged_as_groups(
    backend: art.RemoteBackend, model: art.TrainableModel, double: Double
) -> None:
    await model.register(backend)
    lists = [[art.Trajectory(reward=1.0), art.Trajectory(reward=0.0)], [art.Trajectory(reward=0.5)]]
    result = await backend.train(model, lists)  # type: ignore[arg-type]
    await model.log(lists, split="train", metrics=result.metrics, step=result.step)  # type: ignore[arg-type]
    assert (await model.train(lists)).step == 2  # type: ignore[arg-type]
    for job in double.jobs.values():
        assert [[t["reward"] for t in group["trajectories"]] for group in job["groups"]] == [
            [1.0, 0.0],
            [0.5],
        ]
    history = Path(model.base_path) / "games" / "models" / "agent" / "history.jsonl"
    rows = [json.loads(line) for line in history.read_text().splitlines()]
    assert [row["data/step_num_groups_submitted"] for row in rows] == [2, 2]
    assert [row["train/reward_std_dev"] for row in rows] == [0.5, 0.5]


@pytest.mark.extension
async def test_what_an_own_backend_cannot_do_is_said(model: art.TrainableModel) -> None:
    class Nothing:
        pass

    await model.register(Nothing())  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"Nothing.*_get_step"):
        await model.get_step()
    with pytest.raises(ConfigurationError, match=r"Nothing.*_train_model"):
        await model.train(GROUPS)
    with pytest.raises(NotRegisteredError):
        model.openai_client()
