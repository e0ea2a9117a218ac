"""Rollouts of verifiers 0.4 whose harness compacts its history, on a server of ours: prints JSON.

python compacted_rollouts.py BASE_URL KEY

The harness is verifiers' own `bash`: after a turn with a call it asks for a summary, and goes on from that.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import httpx

import art
from art.environments.adapters.registry import find_environment

HARNESS = {"id": "bash", "compaction": {"summarize_at_tokens": 1}}
COMPACTED = 2
"""Rollouts with a call, which the model writes in some."""
MOST_ROLLOUTS = 32
TURNS = 6


async def samples_of(model: art.TrainableModel, rollout: str) -> list[dict[str, Any]]:
    """The samples that the ledger has of a rollout."""
    headers = {"authorization": f"Bearer {model.inference_api_key}"}
    async with httpx.AsyncClient(headers=headers, timeout=240) as http:
        reply = await http.get(f"{model.inference_base_url}/rollouts/{rollout}")
    return list(reply.json()["samples"])


async def record(model: art.TrainableModel, one: art.Trajectory, trace: Any) -> dict[str, Any]:
    parts = [one.messages_and_choices, *(part.messages_and_choices for part in one.additional_histories)]
    samples = await samples_of(model, str(one.rollout_id))
    return {
        "histories": [
            [turn.model_extra["sample_id"] for turn in part if not isinstance(turn, dict)] for part in parts
        ],
        "firsts": [part[1]["content"] for part in parts],
        "ledger": {
            sample["sample_id"]: {
                "prompt": sample["prompt_ids"],
                "completion": sample["completion_ids"],
                "parent": sample["parent_id"],
            }
            for sample in samples
        },
        "branches": len(trace.branches),
        "calls": len(trace.calls),
    }


async def main(base_url: str, key: str) -> None:
    backend = art.RemoteBackend(base_url.removesuffix("/v1"), api_key=key)
    model = art.TrainableModel(name="compacted", project="tasksets", base_model="art/nano-tools")
    await model.register(backend)
    environment: Any = find_environment("verifiers:say_words", harness=HARNESS, max_turns=TURNS)
    traces: dict[str, Any] = {}
    finish = environment._finish

    def note(trajectory: art.Trajectory, scenario: Any, trace: Any, *more: Any) -> art.Trajectory:
        traces[str(trajectory.rollout_id)] = trace
        return finish(trajectory, scenario, trace, *more)

    environment._finish = note
    scenario = environment.scenarios("train")[0]
    played: list[art.Trajectory] = []
    while sum(bool(one.additional_histories) for one in played) < COMPACTED and len(played) < MOST_ROLLOUTS:
        played.append(await environment.rollout(model, scenario, max_tokens=40, seed=len(played)))
    told: dict[str, Any] = {
        "rollouts": [await record(model, one, traces[str(one.rollout_id)]) for one in played]
    }
    for number, one in enumerate(played):
        one.reward = float(number % 2)
    result = await model.train([art.TrajectoryGroup(played)], config=art.TrainConfig(learning_rate=1e-4))
    told["metrics"] = {name: value for name, value in result.metrics.items() if "data/" in name}
    await environment.close()
    await backend.close()
    sys.stdout.write(f"\n{json.dumps(told)}\n")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
