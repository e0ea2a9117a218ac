"""Tasksets of verifiers 0.4, run where it is installed, on a server of ours: prints JSON.

python taskset_rollouts.py BASE_URL KEY TOKENIZER [PYTHON_OF_NEMO_GYM]
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import verifiers.v1 as vf
from counting_proxy import CountingProxy
from verifiers.v1.clients import ModelContext
from verifiers.v1.configs.client import EvalClientConfig, TrainClientConfig
from verifiers.v1.utils.loaders import load_environment, resolve_env_config

import art
from art.environments.adapters.registry import find_environment
from art.errors import ARTError
from art.extensions import ROLES, load_extension
from art.process.environment import variable_set
from art_extensions.environments.nemo_gym_process import ResourceServer

NAME = "verifiers:say_words"
CHOICES = {"A": "yes", "B": "no", "C": "maybe", "D": "blue", "E": "red", "F": "green"}


async def samples_of(model: art.TrainableModel, rollout: str) -> list[dict[str, Any]]:
    """The samples that the ledger has of a rollout."""
    headers = {"authorization": f"Bearer {model.inference_api_key}"}
    async with httpx.AsyncClient(headers=headers, timeout=240) as http:
        reply = await http.get(f"{model.inference_base_url}/rollouts/{rollout}")
    return list(reply.json()["samples"])


async def played(model: art.TrainableModel, harness: str, **options: Any) -> dict[str, Any]:
    environment = find_environment(NAME, harness=harness, **options)
    scenario = environment.scenarios("train")[0]
    found: dict[str, Any] = {}
    try:
        one = await environment.rollout(model, scenario, max_tokens=40, seed=3)
    except ARTError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    samples = await samples_of(model, str(one.rollout_id))
    turns = [turn for part in (one, *one.additional_histories) for turn in part.messages_and_choices]
    found["reward"] = one.reward.reason if isinstance(one.reward, art.Unscored) else one.reward
    found["metrics"] = one.metrics
    found["metadata"] = {name: one.metadata[name] for name in ("harness", "stop_condition", "scenario_id")}
    found["named"] = [turn.model_extra["sample_id"] for turn in turns if not isinstance(turn, dict)]
    found["ledger"] = [one["sample_id"] for one in samples]
    found["tokens"] = sum(len(one["completion_ids"]) for one in samples)
    found["counted"] = sum(
        turn.model_extra["completion_tokens"] for turn in turns if not isinstance(turn, dict)
    )
    return found


async def counted(base_url: str, key: str) -> dict[str, Any]:
    """The ids that pass a proxy between verifiers and the server, and those of the ledger."""
    found: dict[str, Any] = {}
    with CountingProxy(base_url.removesuffix("/v1")) as proxy:
        backend = art.RemoteBackend(proxy.url, api_key=key)
        model = art.TrainableModel(name="counted", project="tasksets", base_model="art/nano-tools")
        await model.register(backend)
        for harness, turns in (("null", 1), ("bash", 3)):
            environment = find_environment(NAME, harness=harness, max_turns=turns)
            one = await environment.rollout(model, environment.scenarios("train")[0], max_tokens=40, seed=3)
            await environment.close()
            samples = await samples_of(model, str(one.rollout_id))
            parts = [turn for part in (one, *one.additional_histories) for turn in part.messages_and_choices]
            found[harness] = {
                "wire": [*proxy.counted],
                "ledger": [(sample["sample_id"], sample["completion_ids"]) for sample in samples],
                "trained": [turn.model_extra["sample_id"] for turn in parts if not isinstance(turn, dict)],
            }
            proxy.counted.clear()
        await backend.close()
    return found


async def rendered(model: art.TrainableModel, tokenizer: str) -> dict[str, Any]:
    """A rollout with verifiers' own train client, which renders the prompt and asks for ids by ids."""
    environment = find_environment(NAME, harness="null")
    task = environment._tasks[environment.scenarios("train")[0].data["task"]]
    async with art.rollout(model) as scope:
        with variable_set("TRAIN_API_KEY", str(scope.api_key)):
            client = TrainClientConfig(
                base_url=scope.base_url, api_key_var="TRAIN_API_KEY", renderer_model_name=tokenizer
            )
            sampling = {"temperature": 1.0, "max_tokens": 8}
            config = vf.AgentConfig(
                harness={"id": "null"},
                runtime={"type": "subprocess"},
                model=scope.model_name,
                client=client,
                sampling=sampling,
            )
            trace = await vf.Agent(config).run(task)
    (sample,) = await samples_of(model, str(scope.rollout_id))
    return {
        "errors": [str(one) for one in trace.errors],
        "ids": [one for node in trace.nodes for one in node.token_ids],
        "logprobs": [one for node in trace.nodes for one in node.logprobs or ()],
        "sample": {name: sample[name] for name in ("prompt_ids", "completion_ids", "completion_logprobs")},
        "named": [turn.model_extra["sample_id"] for turn in scope.trajectory.messages_and_choices[1:]],
        "sample_id": sample["sample_id"],
    }


async def compared(model: art.TrainableModel) -> dict[str, Any]:
    """The reward of each task here and by verifiers alone, for the greedy reply of one model."""
    environment = find_environment(NAME, harness="null")
    found: dict[str, Any] = {}
    with variable_set("EVAL_API_KEY", str(model.inference_api_key)):
        client = EvalClientConfig(base_url=str(model.inference_base_url), api_key_var="EVAL_API_KEY")
        config = vf.AgentConfig(
            harness={"id": "null"},
            runtime={"type": "subprocess"},
            model=model.get_inference_name(),
            client=client,
            sampling={"temperature": 0.0, "max_tokens": 40},
        )
        for scenario in (*environment.scenarios("train"), *environment.scenarios("val")):
            task = environment._tasks[scenario.data["task"]]
            trace = await vf.Agent(config).run(task)
            ours = await environment.rollout(model, scenario, temperature=0.0, max_tokens=40)
            found[task.data.word] = {
                "ours": None if isinstance(ours.reward, art.Unscored) else ours.reward,
                "said": ours.messages()[-1]["content"],
                "library": None if trace.errors else trace.reward,
                "library_said": trace.last_reply,
            }
    return found


async def one_seat(model: art.TrainableModel) -> dict[str, Any]:
    """Episodes of an environment's own class with one agent, which is started once for all of them."""
    settings = {"fails_at": "red"}
    environment = find_environment("verifiers:one_seat", taskset=settings)
    told: dict[str, Any] = {"played": {}}
    for split in ("train", "val"):
        for scenario in environment.scenarios(split):
            one = await environment.rollout(model, scenario, max_tokens=10, temperature=2.0, seed=5)
            samples = await samples_of(model, str(one.rollout_id))
            told["played"][environment._tasks[scenario.data["task"]].data.word] = {
                "reward": one.reward.reason if isinstance(one.reward, art.Unscored) else one.reward,
                "metrics": one.metrics,
                "said": [turn["content"] for turn in one.messages() if turn["role"] == "assistant"],
                "asked": [turn["content"] for turn in one.messages() if turn["role"] == "user"],
                "samples": [sample["sample_id"] for sample in samples],
                "named": [
                    turn.model_extra["sample_id"]
                    for turn in one.messages_and_choices
                    if not isinstance(turn, dict)
                ],
                "branches": len(one.additional_histories),
                "temperatures": [sample["sampling"]["temperature"] for sample in samples],
            }
    await environment.close()
    (task, *_) = environment._tasks.values()
    told["started_after"] = task.config.started
    return told


async def nemo_gym(model: art.TrainableModel, python: str) -> dict[str, Any]:
    """Tasks of verifiers' own taskset `nemo_gym`, scored by a real server of NeMo-Gym, here and by verifiers
    alone, each for the greedy reply of one model.
    """
    server = ResourceServer("nemo-gym:mcqa", "mcqa", python, {})
    with TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.jsonl"
        rows.write_text("".join(f"{json.dumps(question(word))}\n" for word in CHOICES.values()))
        settings = {"dataset": str(rows), "task": {"resources_url": await server.start()}}
        try:
            return await both(model, "nemo_gym", settings)
        finally:
            server.stop()


def question(word: str) -> dict[str, Any]:
    """A row of the server `mcqa`, which looks for one of the words in the reply."""
    (letter,) = (letter for letter, other in CHOICES.items() if other == word)
    asked = {"role": "user", "content": f"respond with {word}, {word} or {word}"}
    return {
        "responses_create_params": {"input": [asked]},
        "options": [{letter: word} for letter, word in CHOICES.items()],
        "expected_answer": letter,
        "template_metadata": {"output_regex": f"({'|'.join(CHOICES.values())})"},
    }


async def both(model: art.TrainableModel, name: str, settings: dict[str, Any]) -> dict[str, Any]:
    environment = find_environment(f"verifiers:{name}", harness="null", taskset=settings)
    agent = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
    alone = load_environment(resolve_env_config({"taskset": {"id": name, **settings}, "agent": agent}))
    found: dict[str, Any] = {}
    with variable_set("EVAL_API_KEY", str(model.inference_api_key)):
        asked = ModelContext(
            model=model.get_inference_name(),
            client=EvalClientConfig(base_url=str(model.inference_base_url), api_key_var="EVAL_API_KEY"),
            sampling=vf.SamplingConfig(temperature=0.0, max_tokens=40),
        )
        async with alone.serving():
            for scenario in (*environment.scenarios("train"), *environment.scenarios("val")):
                ours = await environment.rollout(model, scenario, temperature=0.0, max_tokens=40)
                task = environment._tasks[scenario.data["task"]]
                (trace,) = (await alone.run_episode(task, asked)).traces
                found[task.data.row["expected_answer"]] = {
                    "ours": ours.reward.reason if isinstance(ours.reward, art.Unscored) else ours.reward,
                    "said": ours.messages()[-1]["content"],
                    "metrics": ours.metrics,
                    "library": None if trace.errors else trace.reward,
                    "library_said": trace.last_reply,
                }
    await environment.close()
    return found


async def learned(model: art.TrainableModel) -> dict[str, Any]:
    environment = find_environment(NAME, harness="null")
    scenarios = environment.scenarios("train")[:2]
    groups = await art.gather_trajectory_groups(
        [
            art.TrajectoryGroup(environment.rollout(model, one, max_tokens=20) for _ in range(2))
            for one in scenarios
        ],
        pbar_desc=None,
    )
    for group in groups:
        for number, one in enumerate(group):
            one.reward = float(number)
    result = await model.train(groups, config=art.TrainConfig(learning_rate=1e-4))
    return {name: value for name, value in result.metrics.items() if "sheet" in name}


async def agents(backend: Any) -> dict[str, Any]:
    """Episodes of two agents, each with a model of its own, which is trained on them."""
    environment = load_extension(ROLES, "verifiers")("two_agents")
    policies = {
        role: art.TrainableModel(name=role, project="tasksets", base_model="art/nano-games")
        for role in environment.roles
    }
    for model in policies.values():
        await model.register(backend)
    (scenario, *_) = environment.scenarios("train")
    episodes = [
        await environment.play(policies, scenario, max_tokens=4, temperature=2.0, seed=n) for n in range(4)
    ]
    lone = art.Model(name="lone", project="tasksets")
    told: dict[str, Any] = {"scenario": scenario.id, "roles": environment.roles}
    told["lone"] = await failed(environment.play({**policies, "echo": lone}, scenario))
    for role, model in policies.items():
        group = art.TrajectoryGroup([one[role] for one in episodes])
        said = [(one.messages()[-1]["content"] or "").strip() for one in group]
        samples = [len(await samples_of(model, str(one.rollout_id))) for one in group]
        asked = [one.messages()[-2]["content"] for one in group]
        told[role] = {
            "rewards": [one.reward for one in group],
            "said": said,
            "samples": samples,
            "asked": asked,
        }
        told[role]["metadata"] = dict(group.trajectories[0].metadata)
        for number, one in enumerate(group):
            one.reward = float(number)
        result = await model.train([group], config=art.TrainConfig(learning_rate=1e-4))
        told[role] |= {"step": result.step, "trained": result.metrics["data/sheet/trained_rollouts"]}
    await environment.close()
    short = load_extension(ROLES, "verifiers")("two_agents", deadline_s=0.01)
    told["short"] = await failed(short.play(policies, scenario))
    return told


async def failed(work: Any) -> str:
    try:
        await work
    except ARTError as error:
        return f"{type(error).__name__}: {error}"
    return "done"


def refused(name: str, **options: Any) -> str:
    try:
        find_environment(name, **options)
    except ARTError as error:
        return f"{type(error).__name__}: {error}"
    return "made"


def refused_roles(name: str, **options: Any) -> str:
    try:
        load_extension(ROLES, "verifiers")(name, **options)
    except ARTError as error:
        return f"{type(error).__name__}: {error}"
    return "made"


def containers() -> dict[str, str]:
    """What is said of harnesses and tasks that need a container, without Docker and with a command of its
    name.
    """
    docker = {"type": "docker"}
    told = {
        name: refused(NAME, harness=name)
        for name in ("mini_swe_agent", "terminus_2", "claude_code", "codex", "openclaw")
    }
    told["image"] = refused("verifiers:one_seat", taskset={"image": "python:3.12"})
    told["roles"] = refused_roles("two_agents", harness="codex")
    with TemporaryDirectory() as folder, variable_set("PATH", folder):
        told["absent"] = refused(NAME, harness="codex", runtime=docker)
        command = Path(folder) / "docker"
        command.write_text("#!/bin/sh\n")
        command.chmod(0o755)
        told["docker"] = refused(NAME, harness="codex", runtime=docker)
    return told


async def main(base_url: str, key: str, tokenizer: str, python: str = "") -> None:
    backend = art.RemoteBackend(base_url.removesuffix("/v1"), api_key=key)
    model = art.TrainableModel(name="worker", project="tasksets", base_model="art/nano-tools")
    await model.register(backend)
    player = art.TrainableModel(name="player", project="tasksets", base_model="art/nano-games")
    await player.register(backend)
    environment = find_environment(NAME)
    told = {
        "splits": {split: [one.id for one in environment.scenarios(split)] for split in ("train", "val")},
        "null": await played(model, "null"),
        "bash": await played(model, "bash", max_turns=3),
        "counted": await counted(base_url, key),
        "compared": await compared(player),
        "one_seat": await one_seat(player),
        "nemo_gym": await nemo_gym(player, python) if python else None,
        "sheet": await learned(model),
        "rendered": await rendered(model, tokenizer),
        "unknown": refused("verifiers:no_such_taskset"),
        "harness": refused(NAME, harness="no_such_harness"),
        "containers": containers(),
        "runtime": refused(NAME, runtime={"type": "moon"}),
        "agents": await agents(backend),
        "several": refused("verifiers:two_agents"),
        "single": refused_roles("say_words"),
        "short": await played(model, "null", deadline_s=0.5),
        "keys": [name for name in os.environ if name.startswith("ART_ROLLOUT_API_KEY")],
    }
    await backend.close()
    sys.stdout.write(f"\n{json.dumps(told)}\n")


asyncio.run(main(*sys.argv[1:]))
