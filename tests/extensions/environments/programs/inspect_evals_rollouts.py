"""tau2 and AgentDojo of the real inspect-evals, run where it is installed: prints JSON.

python inspect_evals_rollouts.py BASE_URL KEY PLANS SERVER SERVER_KEY

The endpoint says what PLANS has for the name of the model, which this program writes: what solves a task.
SERVER is a server of ours.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import inspect_ai
from environment_program import model_of
from inspect_evals.agentdojo import agentdojo
from inspect_evals.agentdojo.attacks.attack import get_attack
from inspect_evals.agentdojo.dataset import TASK_SUITES
from inspect_evals.tau2 import tau2

import art
from art.environments.adapters.registry import find_environment
from art_extensions.environments.inspect_roles import make_role
from art_extensions.environments.tau2 import read_out

PLAYED = 2
"""Scenarios of each environment."""
NOTHING = "nothing"
"""A model that does nothing."""
SUITES = ("banking", "slack", "travel", "workspace")


def steps_of_service(task: Mapping[str, Any]) -> list[Any]:
    """What an agent of tau2 does for a task: its tools, what the user has to do, and what it has to say."""
    criteria = task["evaluation_criteria"]
    steps: list[Any] = []
    for action in criteria["actions"] or ():
        if action.get("requestor", "assistant") == "assistant":
            steps.append([[action["name"], action["arguments"]]])
        else:
            steps.append(f"Please use {action['name']}({json.dumps(action['arguments'])}).")
    return [*steps, "I tell you: " + "; ".join(criteria.get("communicate_info") or ["done"])]


def steps_of_dojo(task: Any, before: Any) -> list[Any]:
    calls = [[[one.function, one.arguments]] for one in task.ground_truth(before)]
    return [*calls, task.GROUND_TRUTH_OUTPUT or "Done."]


def record(one: Any) -> Any:
    if isinstance(one, BaseException):
        return f"{type(one).__name__}: {one}"
    return {
        "scenario": one.metadata["scenario_id"],
        "reward": one.reward,
        "metrics": one.metrics,
        "messages": one.messages(),
        "show": one.metadata["show"],
    }


class Player:
    """Plays scenarios with models of the scripted endpoint."""

    def __init__(self, base_url: str, key: str, plans: str) -> None:
        self.base_url, self.key, self.file = base_url, key, Path(plans)
        self.plans: dict[str, list[Any]] = {}

    def model(self, name: str, steps: Sequence[Any] = ()) -> art.Model:
        name = name.replace("/", "-")
        self.plans[name] = list(steps)
        self.file.write_text(json.dumps(self.plans))
        return model_of(name, self.base_url, self.key)

    async def play(self, environment: Any, plans: Mapping[str, Any], split: str, count: int) -> list[Any]:
        """plans: id of the scenario -> steps; where there are none, the model does nothing."""
        scenarios = environment.scenarios(split)[:count]
        models = [
            self.model(one.id, plans[one.id]) if one.id in plans else self.model(NOTHING) for one in scenarios
        ]
        jobs = [
            environment.rollout(model, one, max_tokens=200, seed=3)
            for model, one in zip(models, scenarios, strict=True)
        ]
        return [record(one) for one in await asyncio.gather(*jobs, return_exceptions=True)]


def tasks_of(domain: str) -> list[Any]:
    """The domain's tasks as the package has them in its samples."""
    return list(getattr(tau2, f"tau2_{domain}")(shuffle=False).dataset)


def refused(name: str, **options: Any) -> str:
    try:
        find_environment(name, **options)
    except art.errors.ARTError as error:
        return f"{type(error).__name__}: {error}"
    return "made"


def splits_of(environment: Any) -> list[list[str]]:
    return [[one.id for one in environment.scenarios(split)] for split in ("train", "val")]


def by_inspect(task: Any, ids: Sequence[str], player: Player, **roles: Any) -> list[list[Any]]:
    """The first score that `inspect eval` gives these samples, with the model that does nothing."""
    task.dataset = task.dataset.filter(lambda one: one.id in ids)
    with tempfile.TemporaryDirectory() as folder:
        (log,) = inspect_ai.eval(
            task,
            model="openai-api/art/nothing",
            model_base_url=player.base_url,
            model_args={"api_key": player.key},
            model_roles=roles or None,
            display="none",
            log_dir=folder,
        )
        return [[one.id, next(iter(one.scores.values())).value] for one in log.samples or ()]


async def serve_customers(player: Player, domain: str) -> dict[str, Any]:
    """A model that solves the tasks, and one that does nothing."""
    environment = find_environment(f"tau2:{domain}")
    plans = {
        f"{environment.name}/{one.id}": steps_of_service(one.metadata["task"]) for one in tasks_of(domain)
    }
    found = {
        "splits": splits_of(environment),
        "right": await player.play(environment, plans, "train", PLAYED),
        "nothing": await player.play(environment, {}, "train", PLAYED),
    }
    await environment.close()
    return found


async def talk_otherwise(player: Player) -> dict[str, Any]:
    """Other users, and rollouts that end early. The tasks are those of telecom, whose database is small."""
    name = "tau2:telecom"
    (scenario,) = find_environment(name, train=1).scenarios("train")
    nothing, found = player.model(NOTHING), {}

    async def once(model: art.Model, **options: Any) -> Any:
        environment = find_environment(name, train=1, **options)
        (told,) = await asyncio.gather(
            environment.rollout(model, scenario, max_tokens=50), return_exceptions=True
        )
        await environment.close()
        return record(told)

    customer = player.model("customer", ["My phone is broken.", "###STOP###"])
    found["a model"] = await once(nothing, user=customer)
    found["a function"] = await once(nothing, user="service_users:hurried")
    found["a user that fails"] = await once(nothing, user="service_users:broken")
    found["no key"] = await once(model_of(NOTHING, player.base_url, "another key"))
    endless = player.model("endless", [[["get_bills_for_customer", {"customer_id": "C1001"}]]] * 50)
    found["endless"] = await once(endless, max_turns=3)
    user = make_role("user", read_out)
    short = scenario.id.removeprefix(f"{name}/")
    task = tau2.tau2_telecom(shuffle=False)
    found["by inspect"] = await asyncio.to_thread(by_inspect, task, [short], player, user=user)
    return found


async def play_dojo(player: Player, suite: str) -> dict[str, Any]:
    """Models that do the user's task, the attacker's, and nothing."""
    name = f"agentdojo:{suite}"
    harmless, attacked = find_environment(name), find_environment(name, attack="important_instructions")
    tasks = TASK_SUITES[suite]
    before = tasks.load_and_inject_default_environment({})
    users = {f"{name}/{suite}-u{one.ID}": steps_of_dojo(one, before) for one in tasks.user_tasks.values()}
    goals, resisting = {}, {}
    for one in attacked.scenarios("train")[:PLAYED]:
        user, _, goal = one.id.removeprefix(f"{name}/{suite}-u").partition("-i")
        attacker = tasks.injection_tasks[int(goal)]
        message = get_attack("important_instructions").format(goal=attacker.GOAL)
        injected = tasks.load_and_inject_default_environment(
            dict.fromkeys(tasks.get_injection_vector_defaults(), message)
        )
        goals[one.id] = steps_of_dojo(attacker, injected)
        resisting[one.id] = steps_of_dojo(tasks.user_tasks[int(user)], injected)
    found = {
        "splits": splits_of(harmless),
        "attacked splits": splits_of(attacked),
        "right": await player.play(harmless, users, "train", PLAYED),
        "nothing": await player.play(harmless, {}, "train", PLAYED),
        "resisting": await player.play(attacked, resisting, "train", PLAYED),
        "falling": await player.play(attacked, goals, "train", PLAYED),
    }
    ids = [one.id.removeprefix(f"{name}/") for one in harmless.scenarios("train")[:PLAYED]]
    task = agentdojo(workspace=suite, with_sandbox_tasks="no", with_injections=False)
    found["by inspect"] = await asyncio.to_thread(by_inspect, task, ids, player)
    ids = [one.id.removeprefix(f"{name}/") for one in attacked.scenarios("train")[:PLAYED]]
    task = agentdojo(workspace=suite, with_sandbox_tasks="no", agent="ground_truth")
    found["attackers by inspect"] = await asyncio.to_thread(by_inspect, task, ids, player)
    await harmless.close()
    await attacked.close()
    return found


async def train_agents(server: str, key: str) -> dict[str, Any]:
    """Rollouts of a model of our server, and a step with them."""
    model = art.TrainableModel(name="agents", project="evals", base_model="art/nano-words")
    await model.register(art.RemoteBackend(server, api_key=key))
    found = {}
    for name, options in (("tau2:retail", {}), ("agentdojo:banking", {})):
        environment = find_environment(name, max_turns=2, train=1, val=1, **options)
        (scenario,) = environment.scenarios("train")
        groups = await art.gather_trajectory_groups(
            [art.TrajectoryGroup(environment.rollout(model, scenario, max_tokens=5) for _ in range(2))],
            pbar_desc=None,
        )
        every = [one for group in groups for one in group]
        for number, one in enumerate(every):
            one.reward = float(number % 2)  # whatever the model did: each is trained
        result = await model.train(groups, config=art.TrainConfig(learning_rate=1e-5))
        await environment.close()
        found[name] = {
            "turns": [one.metrics["turns"] for one in every],
            "tools": [bool(one.tools) for one in every],
            "sheet": {key: value for key, value in result.metrics.items() if "sheet" in key},
        }
    return found


async def main(base_url: str, key: str, plans: str, server: str, server_key: str) -> None:
    player = Player(base_url, key, plans)
    told: dict[str, Any] = {
        "refused": [
            refused("tau2:airlin"),
            refused("agentdojo:bank"),
            refused("tau2:airline", user="no_colon"),
            refused("tau2:airline", max_turns=0),
            refused("agentdojo:banking", injection_task_ids=[1]),
        ]
    }
    told["trained"] = await train_agents(server, server_key)
    told["telecom"] = await talk_otherwise(player)
    for domain in ("airline", "retail", "telecom"):
        told[f"tau2:{domain}"] = await serve_customers(player, domain)
    for suite in SUITES:
        told[f"agentdojo:{suite}"] = await play_dojo(player, suite)
    print(json.dumps(told))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:6]))
