"""Environments of verifiers, run where the library is installed: prints JSON.

python verifiers_rollouts.py scripted BASE_URL KEY      a model that is a function: refusals and failures
python verifiers_rollouts.py trained BASE_URL KEY       a server of ours: rollouts, a step, SFT, an evaluation
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import play_hub
import verifiers as vf

import art
from art.environments.adapters.registry import find_environment
from art.errors import ARTError
from art_extensions.environments.verifiers import sft_rows
from art_extensions.evaluation.checkpoint_scores import RolloutSource, evaluate

HUB = "verifiers:play-hub"
MAIL = "art/nano-tools"
KINDS = ("single", "multi", "tasks", "tools", "stateful", "several")


def record(one: art.Trajectory) -> dict[str, Any]:
    reward = one.reward.reason if isinstance(one.reward, art.Unscored) else one.reward
    return {
        "reward": reward,
        "metrics": one.metrics,
        "show": one.metadata["show"],
        "messages": one.messages(),
        "stop": one.metadata["stop_condition"],
    }


async def failure(model: art.Model, **options: Any) -> str:
    try:
        environment = find_environment(HUB, **options)
        one = await environment.rollout(model, environment.scenarios("train")[0], max_tokens=5)
    except Exception as error:  # noqa: BLE001  # the test looks at it
        return f"{type(error).__name__}: {error}"
    return f"reward {one.reward}"


def refused(name: str, **options: Any) -> str:
    try:
        find_environment(name, **options)
    except ARTError as error:
        return f"{type(error).__name__}: {error}"
    return "made"


async def blocked(model: art.Model) -> str:
    """Returns the name of the metric that a rollout got whose environment blocked its event loop."""
    environment = find_environment(HUB, kind="multi", fault="block")
    job = asyncio.create_task(environment.rollout(model, environment.scenarios("train")[0]))
    await asyncio.to_thread(play_hub.BLOCKED.wait, 60)
    play_hub.UNBLOCK.set()
    return "right" if "right" in (await job).metrics else "nothing"


async def cancelled(model: art.Model) -> bool:
    """Returns whether the environment's own work ended when the rollout was cancelled."""
    environment = find_environment(HUB, kind="multi", fault="hang")
    job = asyncio.create_task(environment.rollout(model, environment.scenarios("train")[0]))
    await asyncio.to_thread(play_hub.HANGS.wait, 60)
    job.cancel()
    await asyncio.wait([job])
    return job.cancelled() and await asyncio.to_thread(play_hub.ENDED.wait, 60)


def player(name: str, base_url: str, key: str) -> art.Model:
    return art.Model(
        name=name,
        project="p",
        inference_model_name=name,
        inference_base_url=base_url,
        inference_api_key=key,
    )


async def scripted(base_url: str, key: str) -> dict[str, Any]:
    model = player("right", base_url, key)
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    told: dict[str, Any] = {}
    for fault in ("reward", "metric"):
        environment = find_environment(HUB, fault=fault)
        told[fault] = record(await environment.rollout(model, environment.scenarios("val")[0]))
    told["handlers"] = before == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    silent, guessing = player("silent", base_url, key), find_environment(HUB, kind="multi")
    told["silent"] = record(await guessing.rollout(silent, guessing.scenarios("train")[0]))
    told["step"] = await failure(model, kind="multi", fault="step")
    told["cancelled"] = await cancelled(model)
    told["hang"] = await failure(model, kind="multi", fault="hang", deadline_s=0.2)
    told["ended"] = await failure(model, kind="multi", timeout_seconds=0.0)
    told["loop went on"] = await blocked(model)
    told["group"] = refused(HUB, fault="group")
    told["kind"] = refused(HUB, kind="chess")
    told["name"] = refused("verifiers:no-such-game")
    in_thread: list[str] = []
    thread = threading.Thread(target=lambda: in_thread.append(refused(HUB)))
    thread.start()
    thread.join()
    told["thread"] = in_thread[0]
    own = find_environment(HUB, held_out=False, fault="repeated", arguments={"kind": "single"})
    told["rows"] = {split: [one.id for one in own.scenarios(split)] for split in ("train", "val")}
    evaluated = find_environment(HUB, val=7)
    told["held out"] = [dict(one.data) for one in evaluated.scenarios("val")]
    merged = find_environment(
        HUB,
        request={"stop": ["!"], "extra_body": {"top_k": 3}},
        sampling_args={"top_p": 0.5, "max_tokens": 9},
    )
    await merged.rollout(model, merged.scenarios("train")[0], temperature=0.25)
    return told


async def ledger(model: art.TrainableModel, one: art.Trajectory) -> list[str]:
    """The ids of the samples that the server has of a rollout."""
    headers = {"authorization": f"Bearer {model.inference_api_key}"}
    async with httpx.AsyncClient(headers=headers, timeout=240) as http:
        reply = await http.get(f"{model.inference_base_url}/rollouts/{one.rollout_id}")
    return [sample["sample_id"] for sample in reply.json()["samples"]]


def named_samples(one: art.Trajectory) -> list[str]:
    turns = [turn for history in (one, *one.additional_histories) for turn in history.messages_and_choices]
    return [turn.model_extra["sample_id"] for turn in turns if not isinstance(turn, dict)]


async def learned(backend: art.RemoteBackend, kind: str) -> dict[str, Any]:
    """Two groups of rollouts, and a step with them."""
    model = art.TrainableModel(name=kind, project="hub", base_model=MAIL)
    await model.register(backend)
    environment = find_environment(HUB, kind=kind)
    groups = await art.gather_trajectory_groups(
        [
            art.TrajectoryGroup(environment.rollout(model, one, seed=n, max_tokens=40) for n in range(3))
            for one in environment.scenarios("train")[: 4 if kind == "several" else 2]
        ],
        pbar_desc=None,
    )
    every = [one for group in groups for one in group]
    found = {
        "rollouts": [record(one) for one in every],
        "rows": [len(environment.scenarios(split)) for split in ("train", "val")],
        "samples": [named_samples(one) for one in every],
        "ledger": [await ledger(model, one) for one in every],
        "policy": [[one.initial_policy_version, one.final_policy_version] for one in every],
    }
    for number, one in enumerate(every):
        one.reward = float(number % 2)  # whatever the model did: each is trained
    result = await model.train(groups, config=art.TrainConfig(learning_rate=1e-5))
    found["sheet"] = {name: value for name, value in result.metrics.items() if "sheet" in name}
    if kind == "single":
        source = RolloutSource.of_environment(HUB)
        found["too long"] = await failure(model, system_prompt="word " * 3000)
        longer = find_environment(HUB, kind="multi", fault="longer", max_turns=20)
        one = await longer.rollout(model, longer.scenarios("train")[0], max_tokens=5)
        found["longer"] = {**record(one), "samples": len(named_samples(one))}
        async with backend.adapter_lease(model, 0):
            score, scored = await evaluate(
                model, source, rollouts=12, temperature=1.0, concurrency=4, seed=0, each=4, title=None
            )
        found["pass_at"] = score.pass_at
        found["evaluated"] = [[len(group), len(group.exceptions)] for group in scored]
        found["steps"] = sorted({one.final_policy_version for group in scored for one in group})
    await environment.close()
    return found


async def stepped(backend: art.RemoteBackend) -> dict[str, Any]:
    """Rollouts whose steps have rewards, and a step of an algorithm of turns; then those without rewards."""
    model = art.TrainableModel(name="stepped", project="hub", base_model=MAIL)
    await model.register(backend)
    environment = find_environment(HUB, kind="multi", fault="stepped", turn_rewards=True)
    (scenario, *_) = environment.scenarios("train")
    group = await art.trajectory_group(
        environment.rollout(model, scenario, seed=n, max_tokens=5) for n in range(4)
    )
    result = await model.train([group], algorithm="turn_rloo", learning_rate=1e-5)
    plain = find_environment(HUB, kind="multi", fault="stepped")
    unrewarded = await plain.rollout(model, scenario, max_tokens=5)
    warned: list[str] = []
    logging.disable(logging.NOTSET)
    handler = logging.Handler()
    handler.emit = lambda line: warned.append(line.getMessage())  # type: ignore[method-assign]
    logging.getLogger("art_extensions.environments.verifiers").addHandler(handler)
    without = find_environment(HUB, kind="several", turn_rewards=True)
    for row in without.scenarios("train")[:2]:
        await without.rollout(model, row, max_tokens=5)
    logging.disable()
    for one in (environment, plain, without):
        await one.close()
    return {
        "rollouts": [
            {**record(one), "turns": one.turn_rewards, "samples": named_samples(one)} for one in group
        ],
        "plain": unrewarded.turn_rewards,
        "step": result.step,
        "trained": result.metrics["data/sheet/trained_rollouts"],
        "warned": warned,
    }


async def taught(backend: art.RemoteBackend, folder: Path) -> dict[str, Any]:
    """Verifiers' own results of a teacher become a step of supervised training."""
    model = art.TrainableModel(name="student", project="hub", base_model=MAIL)
    await model.register(backend)
    world = vf.load_environment("play-hub", kind="stateful")
    client = vf.OpenAIChatCompletionsClient(model.openai_client())
    rows = world.get_dataset()  # all forty: a model of the form alone reads the right mail in one of eight
    made = await world.generate(
        rows, client, model.get_inference_name(), {"max_tokens": 40}, results_path=folder, save_results=True
    )
    outputs = made["outputs"]
    saved = folder / "results.jsonl"
    kept = sft_rows(saved, least=0.25)
    result = await model.train_sft(kept, art.TrainSFTConfig(learning_rate=1e-4))
    return {
        "good": sum(one["reward"] >= 0.25 for one in outputs),
        "kept": kept,
        "same": kept == sft_rows(outputs, least=0.25),
        "none": sft_rows(outputs, least=9.0),
        "step": result.step,
        "loss": result.metrics["loss/train"],
    }


async def trained(base_url: str, key: str, folder: str) -> dict[str, Any]:
    backend = art.RemoteBackend(base_url, key)
    told: dict[str, Any] = {kind: await learned(backend, kind) for kind in KINDS}
    told["stepped"] = await stepped(backend)
    told["sft"] = await taught(backend, Path(folder))
    await backend.close()
    return told


if __name__ == "__main__":
    logging.disable()
    told = asyncio.run({"scripted": scripted, "trained": trained}[sys.argv[1]](*sys.argv[2:]))
    sys.stdout.write("\n" + json.dumps(told))
