"""Rewards of other libraries by their own code, without ART: for a scenario, and what the model replied."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import art
from art.environments.adapters.environment import scenario_seed
from art.process.environment import variable_set

KEY = "CONTRACT_MODEL_KEY"


async def gymnasium_reward(
    name: str, options: Mapping[str, Any], data: Mapping[str, Any], replies: Sequence[str]
) -> float:
    import gymnasium

    module, _, world_id = name.rpartition(":")
    import_module(module)
    world = gymnasium.make(world_id)
    world.reset(seed=data["seed"])
    return float(sum(float(world.step(reply)[1]) for reply in replies))


async def reasoning_gym_reward(
    name: str, options: Mapping[str, Any], data: Mapping[str, Any], replies: Sequence[str]
) -> float:
    import reasoning_gym

    given = {key: value for key, value in options.items() if key not in ("train", "val")}
    seed = scenario_seed(0, data["split"], 0)
    dataset = reasoning_gym.create_dataset(name, seed=seed, size=data["index"] + 1, **given)
    answer = reasoning_gym.utils.extract_answer(replies[0])
    return float(dataset.score_answer(answer, dataset[data["index"]]))


async def textarena_reward(
    name: str, options: Mapping[str, Any], data: Mapping[str, Any], replies: Sequence[str]
) -> float:
    import textarena

    game = textarena.make(name)
    game.reset(num_players=1, seed=data["seed"])
    for reply in replies:
        game.step(reply)
    rewards, _ = game.close()
    return float(rewards[0])


async def skyrl_gym_reward(
    name: str, options: Mapping[str, Any], data: Mapping[str, Any], replies: Sequence[str]
) -> float:
    import skyrl_gym
    from omegaconf import OmegaConf

    extras = {key: value for key, value in data["row"].items() if key not in ("prompt", "env_class")}
    world = skyrl_gym.make(name, env_config=OmegaConf.create({}), extras=extras)
    world.init(data["row"]["prompt"])
    return float(sum(float(world.step(reply)["reward"]) for reply in replies))


async def openenv_reward(
    name: str, options: Mapping[str, Any], data: Mapping[str, Any], replies: Sequence[str]
) -> float:
    from openenv.core import GenericEnvClient

    async with GenericEnvClient(base_url=name) as session:
        await session.reset(seed=data["seed"])
        rewards = [(await session.step({"text": reply})).reward for reply in replies]
    return float(sum(one or 0.0 for one in rewards))


async def verifiers_reward(
    name: str, options: Mapping[str, Any], data: Mapping[str, Any], model: art.Model
) -> float:
    """The library's own rollout of the row, with the same scripted model."""
    import verifiers

    given = {key: value for key, value in options.items() if key not in ("train", "val")}
    world = verifiers.load_environment(name, **given)
    with variable_set(KEY, str(model.inference_api_key)):
        client = verifiers.ClientConfig(api_base_url=str(model.inference_base_url), api_key_var=KEY)
        row = world.get_dataset()[data["row"]]
        done = await world.generate([row], client, model.get_inference_name())
    return float(done["outputs"][0]["reward"])


REPLAYED: Mapping[str, Callable[..., Awaitable[float]]] = {
    "gymnasium": gymnasium_reward,
    "reasoning-gym": reasoning_gym_reward,
    "textarena": textarena_reward,
    "skyrl-gym": skyrl_gym_reward,
    "openenv": openenv_reward,
}


async def library_reward(
    name: str,
    options: Mapping[str, Any],
    data: Mapping[str, Any],
    model: art.Model,
    replies: Sequence[str],
) -> float | None:
    """Returns what the library says of these replies to a scenario; None where nothing here asks it."""
    prefix, _, rest = name.partition(":")
    if prefix == "verifiers":
        return await verifiers_reward(rest, options, data, model)
    if prefix == "gymnasium" and "-v" not in rest:
        return None  # a class of a user's own: there is no library
    ours = REPLAYED.get(prefix)
    return None if ours is None else await ours(rest, options, data, replies)
