"""Several policies in one environment: who is trained, on whose tokens, with which rewards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from repeat_game import RepeatGame, word

import art
from art.errors import ConfigurationError, EnvironmentFailedError, EnvironmentTimeoutError
from art.tracking.folders import ModelPaths
from art.tracking.step_record import read_rollouts
from art_extensions.policies.roles import (
    RoleEnvironment,
    frozen_at,
    gather_roles,
    train_policies,
)
from art_extensions.testing import LlmServer

OPTIONS: dict[str, Any] = {
    "groups_per_step": 4,
    "group_size": 4,
    "config": art.TrainConfig(learning_rate=1e-3),
}


def learner(name: str) -> art.TrainableModel[Any, Any]:
    return art.TrainableModel(name=name, project="roles", base_model="art/nano-games")


def fixed(server: LlmServer, name: str) -> art.Model[Any, Any]:
    return art.Model(
        name=name,
        project="roles",
        inference_model_name=name,
        inference_base_url=server.base_url,
        inference_api_key=server.key,
    )


def recorded(model: art.TrainableModel[Any, Any], step: int) -> list[Any]:
    return read_rollouts(ModelPaths.of_model(model).path, step)


@pytest.mark.slow
async def test_each_learner_is_trained_on_its_own_roles_alone(tmp_path: Path) -> None:
    game = RepeatGame()
    red, blue = learner("red"), learner("blue")
    async with art.LocalBackend(path=str(tmp_path)) as backend:
        await red.register(backend)
        await blue.register(backend)
        policies = {"red": red, "blue": blue}
        (first,) = await train_policies(game, policies, steps=1, **OPTIONS)
        assert sorted(first.trained) == ["blue", "red"] and first.failed == 0 and first.step == 1
        assert [await red.get_step(), await blue.get_step()] == [1, 1]
        assert [[*one.reward_parts] for one in recorded(red, 1)] == [["maybe"]] * 16
        assert [[*one.reward_parts] for one in recorded(blue, 1)] == [["repeated"]] * 16
        found = {role: [float(one.reward) for one in recorded(policies[role], 1)] for role in game.roles}
        means = {role: sum(rewards) / len(rewards) for role, rewards in found.items()}
        assert means == pytest.approx(dict(first.rewards))

        assert await train_policies(game, policies, steps=1, **OPTIONS) == [], "it is done already"
        (second,) = await train_policies(game, policies, steps=2, frozen={"red"}, **OPTIONS)
        assert second.trained == ["blue"]
        assert [await red.get_step(), await blue.get_step()] == [1, 2]
        (caught_up,) = await train_policies(game, policies, steps=2, **OPTIONS)
        assert caught_up.trained == ["red"], "blue has made the step already"

        past = frozen_at(red, 1)
        assert past.get_inference_name().endswith("@1") and not past.trainable
        own = RoleEnvironment(game, "blue", {"red": past})
        one = await own.rollout(blue, own.scenarios("val")[0], seed=3)
        assert one.metadata["role"] == "blue" and own.name == "repeat/blue"
        sizes = {"steps": 1, "groups_per_step": 2, "group_size": 2, "eval_scenarios": 2}
        report = await art.train_environment(own, learner("solo"), backend=backend, path=tmp_path, **sizes)
        assert report.step == 1 and report.environment == "repeat/blue" and game.closed


@pytest.mark.slow
async def test_two_policies_learn_together_and_one_against_the_frozen_other(tmp_path: Path) -> None:
    """Red learns which word is worth most, and blue to repeat red's."""
    game, red, blue, alone = RepeatGame(), learner("red"), learner("blue"), learner("alone")
    sizes = {"groups_per_step": 6, "group_size": 16, "config": art.TrainConfig(learning_rate=2e-3)}
    async with art.LocalBackend(path=str(tmp_path)) as backend:
        for model in (red, blue, alone):
            await model.register(backend)
        steps = await train_policies(game, {"red": red, "blue": blue}, steps=8, **sizes)
        against = await train_policies(
            game, {"red": frozen_at(red, 0), "blue": alone}, steps=8, seed=1, **sizes
        )
    for made, role in ((steps, "red"), (steps, "blue"), (against, "blue")):
        curve = [float(one.rewards[role] or 0) for one in made]
        assert sum(curve[-2:]) / 2 > curve[0] + 0.2, (role, curve)
    untrained = [float(one.rewards["red"] or 0) for one in against]
    assert max(untrained) < 0.75, "the frozen red goes on as it began"
    assert against[0].trained == ["alone"] and all(one.trained in (["alone"], []) for one in against)


@pytest.mark.slow
async def test_one_model_may_have_several_roles(tmp_path: Path) -> None:
    both = learner("both")
    async with art.LocalBackend(path=str(tmp_path)) as backend:
        await both.register(backend)
        (step,) = await train_policies(RepeatGame(), {"red": both, "blue": both}, steps=1, **OPTIONS)
        assert step.trained == ["both"] and await both.get_step() == 1
        parts = [part for one in recorded(both, 1) for part in one.reward_parts]
        assert sorted(parts) == ["maybe"] * 16 + ["repeated"] * 16
        alike = RepeatGame("equal")
        (second,) = await train_policies(alike, {"red": both, "blue": both}, steps=2, **OPTIONS)
        assert second.trained == [] and await both.get_step() == 2, "the step is made, and nothing is trained"


def answer(body: Any) -> str:
    """Red says maybe; blue repeats, or is wrong where its name is."""
    asked = str(body["messages"][-1]["content"])
    if asked.startswith("just"):
        return asked.split()[3] if body["model"] != "wrong" else "what?"
    return "maybe"


async def test_the_groups_of_a_role_have_its_own_rewards() -> None:
    game = RepeatGame()
    with LlmServer(answer) as server:
        policies = {"red": fixed(server, "right"), "blue": fixed(server, "wrong")}
        scenarios = game.scenarios("train")[:3]
        groups = await gather_roles(game, policies, scenarios, group_size=2, seed=1)
        again = await gather_roles(game, {**policies, "blue": policies["red"]}, scenarios, group_size=2)
    assert [[one.reward for one in group] for group in groups["red"]] == [[1.0, 1.0]] * 3
    assert [[one.reward for one in group] for group in groups["blue"]] == [[0.0, 0.0]] * 3
    assert [[one.reward for one in group] for group in again["blue"]] == [[1.0, 1.0]] * 3
    assert [group.metadata["scenario_id"] for group in groups["red"]] == [one.id for one in scenarios]
    assert {one.metadata["role"] for group in groups["blue"] for one in group} == {"blue"}
    assert word("'Maybe.") == "maybe"


async def test_a_failed_episode_is_a_failed_rollout_of_each_role() -> None:
    with LlmServer(answer) as server:
        policies = {"red": fixed(server, "right"), "blue": fixed(server, "right")}
        game = RepeatGame("fails")
        scenarios = game.scenarios("train")[:2]
        groups = await gather_roles(game, policies, scenarios, group_size=2, max_exceptions=2)
        with pytest.raises(RuntimeError, match="no board"):
            await gather_roles(game, policies, scenarios, group_size=2, max_exceptions=1)
        with pytest.raises(EnvironmentFailedError, match=r"gave trajectories of \['red'\], and its"):
            await gather_roles(RepeatGame("half"), policies, scenarios, group_size=1)
        with pytest.raises(EnvironmentTimeoutError, match=r"'repeat': a rollout did not end within 0\.01 s"):
            await gather_roles(RepeatGame("hangs"), policies, scenarios[:1], group_size=1, deadline_s=0.01)
    for role in game.roles:
        assert [len(group.exceptions) for group in groups[role]] == [2, 0]
        assert [len(group) for group in groups[role]] == [0, 2]


async def test_policies_that_do_not_fit_are_refused() -> None:
    game = RepeatGame()
    red, blue = learner("red"), learner("blue")
    fake = art.Model(name="fixed", project="roles")
    with pytest.raises(ConfigurationError, match="role 'blue' has no model"):
        await train_policies(game, {"red": red}, steps=1)
    with pytest.raises(ConfigurationError, match=r"no role 'bleu': did you mean 'blue'"):
        await train_policies(game, {"red": red, "bleu": blue}, steps=1)
    with pytest.raises(ConfigurationError, match="no role 'green'"):
        await train_policies(game, {"red": red, "blue": blue}, steps=1, frozen={"green"})
    with pytest.raises(ConfigurationError, match="no role is trained"):
        await train_policies(game, {"red": red, "blue": fake}, steps=1, frozen={"red"})
    with pytest.raises(ConfigurationError, match=r"frozen, and its model 'red' learns.*frozen_at"):
        await train_policies(game, {"red": red, "blue": red}, steps=1, frozen={"red"})
    with pytest.raises(ConfigurationError, match="'blue' is the one that is trained"):
        RoleEnvironment(game, "blue", {"red": fake, "blue": blue})
    with pytest.raises(ConfigurationError, match="role 'red' has no model"):
        RoleEnvironment(game, "blue", {})
