"""What environments do, as JSON: run in the test's process, or where their libraries are installed.

python environment_program.py < ORDER
    {"base_url", "key", "rollouts", "server": {"url", "key", "folder", "steps"} or null,
     "cases": [{"name", "options", "scripted", "learner"}]}
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from library_rewards import library_reward

import art
from art.environments.adapters.environment import NamedEnvironment, Scenario
from art.environments.adapters.registry import find_environment

PLAYERS = ("right", "wrong")
"""Names of models, for which the endpoint answers well or badly."""
ROLLOUTS = 3
"""Scenarios of a split that each player plays."""

GROUPS, GROUP_SIZE = 2, 2
ROLLOUTS_OF_A_STEP = GROUPS * GROUP_SIZE


def model_of(player: str, base_url: str, key: str) -> art.Model:
    return art.Model(
        name=player,
        project="contracts",
        inference_model_name=player,
        inference_base_url=base_url,
        inference_api_key=key,
    )


def listed(scenarios: Sequence[Scenario]) -> list[Any]:
    return [[one.id, one.data] for one in scenarios]


async def asked_of_library(
    case: Mapping[str, Any], scenario: Scenario, player: str, one: Mapping[str, Any], **to: str
) -> float | str | None:
    """Returns the library's own reward of a rollout; the words of its error where it has none."""
    replies = [str(turn["content"]) for turn in one["messages"] if turn["role"] == "assistant"]
    try:
        return await library_reward(
            case["name"], case["options"], scenario.data, model_of(player, **to), replies
        )
    except Exception as error:  # noqa: BLE001  # the test looks at it
        return f"{type(error).__name__}: {error}"


async def played(environment: NamedEnvironment, scenario: Scenario, model: art.Model) -> dict[str, Any]:
    """One rollout of a scenario that came through JSON."""
    copy = Scenario(**json.loads(json.dumps({"id": scenario.id, "data": dict(scenario.data)})))
    one = await environment.rollout(model, copy, seed=5, temperature=0.5, max_tokens=7)
    return {
        "scenario": scenario.id,
        "reward": None if isinstance(one.reward, art.Unscored) else one.reward,
        "metrics": one.metrics,
        "metadata": one.metadata,
        "messages": one.messages(),
        "choices": sum(hasattr(item, "finish_reason") for item in one.messages_and_choices),
    }


async def learned(case: Mapping[str, Any], server: Mapping[str, Any]) -> dict[str, Any]:
    """Trains up to a step, with few rollouts. A run that is there goes on."""
    model = art.TrainableModel(
        name=case["learner"], project="matrix", base_model="art/nano-words", base_path=server["folder"]
    )
    report = await art.train_environment(
        case["name"],
        model,
        environment_options=case["options"],
        backend=art.RemoteBackend(server["url"], api_key=server["key"]),
        steps=server["steps"],
        groups_per_step=GROUPS,
        group_size=GROUP_SIZE,
        eval_scenarios=1,
        max_tokens=4,
        learning_rate=1e-4,
    )
    return {"step": report.step, "steps": [row.step for row in report.steps], "folder": str(report.folder)}


async def examine(
    case: Mapping[str, Any],
    base_url: str,
    key: str,
    *,
    rollouts: bool,
    server: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    try:
        environment = find_environment(case["name"], **case["options"])
    except Exception as error:  # noqa: BLE001  # the test looks at it
        return {"refused": f"{type(error).__name__}: {error}"}
    found: dict[str, Any] = {split: listed(environment.scenarios(split)) for split in ("train", "val")}
    if server is not None and case.get("learner"):
        try:
            found["learned"] = await learned(case, server)
        except Exception as error:  # noqa: BLE001  # the test looks at it
            found["learned"] = {"error": f"{type(error).__name__}: {error}"}
    if rollouts and case["scripted"]:
        scenarios = environment.scenarios("train")[:ROLLOUTS]
        for player in PLAYERS:
            model = model_of(player, base_url, key)
            jobs = [played(environment, one, model) for one in scenarios]
            found[player] = await asyncio.gather(*jobs)
            for one, scenario in zip(found[player], scenarios, strict=True):
                if case["learner"]:
                    theirs = asked_of_library(case, scenario, player, one, base_url=base_url, key=key)
                    one["library"] = await theirs
        again = model_of("right", base_url, key)
        found["again"] = [await played(environment, scenarios[0], again)]
        try:
            await played(environment, scenarios[0], model_of("right", base_url, "another key"))
        except Exception as error:  # noqa: BLE001  # the test looks at it
            found["without the key"] = type(error).__name__
    await environment.close()
    return found


async def main() -> None:
    order = json.load(sys.stdin)
    told = [
        await examine(
            case, order["base_url"], order["key"], rollouts=order["rollouts"], server=order.get("server")
        )
        for case in order["cases"]
    ]
    json.dump(told, sys.stdout)


if __name__ == "__main__":
    logging.disable()
    asyncio.run(main())
