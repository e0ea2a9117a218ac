"""The rewards of an environment's steps are those of the turns, and are trained by an algorithm of turns."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

import art
from art.environments.adapters.environment import Scenario
from art.environments.adapters.registry import find_environment
from art.errors import ConfigurationError
from art.tracking.folders import ModelPaths
from art.tracking.step_record import read_rollouts
from art.types import sample_id

PROGRAMS = Path(__file__).parent / "programs"


@asynccontextmanager
async def played(
    folder: Path, world: str
) -> AsyncIterator[tuple[art.LocalBackend, art.TrainableModel, Scenario, art.TrajectoryGroup]]:
    """A model and eight of its rollouts of the first scenario of a world, whose steps reward the turns."""
    model = art.TrainableModel(name="turns", project="words", base_model="art/nano-games")
    async with art.LocalBackend(path=str(folder)) as backend:
        await model.register(backend)
        environment = find_environment(f"gymnasium:turned_world:{world}", turn_rewards=True)
        (scenario, *_) = environment.scenarios("train")
        group = await art.trajectory_group(environment.rollout(model, scenario) for _ in range(8))
        yield backend, model, scenario, group


@pytest.mark.slow
async def test_steps_of_a_world_reward_the_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PROGRAMS))
    async with played(tmp_path, "World") as (backend, model, scenario, group):
        for one in group:
            turns = [sample_id(item) for item in one.messages_and_choices if not isinstance(item, dict)]
            assert [*one.turn_rewards] == turns and len(turns) == 2
            assert one.reward == pytest.approx(sum(one.turn_rewards.values()))
        with pytest.raises(ConfigurationError, match="ignore: choose an algorithm of turns"):
            await backend.train(model, [group], algorithm="grpo", learning_rate=1e-4)
        assert await model.get_step() == 0, "nothing was trained"
        result = await backend.train(model, [group], algorithm="turn_rloo", learning_rate=1e-4)
        plain = find_environment("gymnasium:turned_world:World")
        assert (await plain.rollout(model, scenario)).turn_rewards == {}
        records = read_rollouts(ModelPaths.of_model(model).path, 1)
    assert result.step == 1 and result.metrics["data/sheet/trained_rollouts"] == 8
    assert [one.turn_rewards for one in records] == [[*one.turn_rewards.values()] for one in group]
    returns = [one.turn_returns for one in records]
    assert returns == [[pytest.approx(sum(r.turn_rewards)), r.turn_rewards[1]] for r in records]
    others = [np.array(returns)[np.arange(8) != place].mean(0) for place in range(8)]
    advantages = [one.turn_advantages for one in records]
    assert np.allclose(advantages, np.array(returns) - others)
    assert result.metrics["reward/turn_return_mean"] == pytest.approx(np.mean(returns))


@pytest.mark.slow
async def test_a_world_names_its_states_and_gives_reasons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gigpo compares the turns of one name, whose prompts differ."""
    monkeypatch.syspath_prepend(str(PROGRAMS))
    async with played(tmp_path, "Rooms") as (backend, model, _, group):
        prompts = {one.messages()[2]["content"] for one in group}
        named = [[*one.turn_states.values()] for one in group]
        reasons = [[*one.turn_reasons.values()] for one in group]
        earned = np.array([[*one.turn_rewards.values()] for one in group])
        result = await backend.train(model, [group], algorithm="gigpo", learning_rate=1e-4)
        records = read_rollouts(ModelPaths.of_model(model).path, 1)
    assert len(prompts) == 8 and named == [["door", "room"]] * 8
    assert [[*one.turn_reasons.items()] for one in records] == [
        [*zip(one.samples, why, strict=True)] for one, why in zip(records, reasons, strict=True)
    ]
    assert reasons == [[f"step {k} is {reward:g}" for k, reward in enumerate(one, 1)] for one in earned]
    assert result.metrics["data/sheet/trained_rollouts"] == 8
    returns = np.stack([earned[:, 0] + 0.95 * earned[:, 1], earned[:, 1]], axis=1)

    def normalized(values: np.ndarray) -> np.ndarray:
        return (values - values.mean(0)) / (values.std(0, ddof=0) + 1e-6)

    assert (earned.std(0) > 0).all(), "nothing to compare"
    advantages = np.array([one.turn_advantages for one in records])
    assert np.allclose(advantages, normalized(earned.sum(1))[:, None] + normalized(returns), atol=1e-4)
