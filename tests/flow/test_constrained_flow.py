"""Rollouts under constraints and biases train on a real server: sampler and trainer agree on each token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import art

ASK = [{"role": "user", "content": "yes, no or maybe?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "answer",
        "parameters": {
            "type": "object",
            "properties": {"text": {"enum": ["yes", "no", "maybe"]}},
            "required": ["text"],
            "additionalProperties": False,
        },
    },
}
WAYS: list[dict[str, Any]] = [
    {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": {"enum": ["yes", "no"]}},
        }
    },
    {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False},
    {"extra_body": {"guided_regex": "[a-z]{3,8}"}, "temperature": 1.3},
    {"logit_bias": {"40": 3.5, "41": -2}, "max_tokens": 6},
]


@pytest.mark.slow
async def test_constrained_rollouts_train(tmp_path: Path) -> None:
    model = art.TrainableModel(name="held", project="flow", base_model="art/nano-tools")

    async def rollout(way: dict[str, Any], reward: float) -> art.Trajectory:
        create = model.openai_client().chat.completions.create
        reply = await create(model=model.get_inference_name(), messages=ASK, **{"max_tokens": 60, **way})
        return art.Trajectory(
            messages_and_choices=[*ASK, reply.choices[0]], reward=reward, tools=way.get("tools")
        )

    async with art.LocalBackend(path=str(tmp_path)) as backend:
        await model.register(backend)
        for step in (1, 2):
            groups = await art.gather_trajectory_groups(
                art.TrajectoryGroup(rollout(way, reward) for reward in (0.0, 1.0, 3.0)) for way in WAYS
            )
            result = await backend.train(model, groups, learning_rate=1e-3)
            assert result.step == step
            assert result.metrics["data/sheet/trained_rollouts"] == 12
            assert result.metrics["loss/logprob_difference_max"] <= 1e-4
            assert result.metrics["loss/ratio_mean"] == pytest.approx(1.0, abs=1e-4)
            assert result.metrics["loss/grad_norm"] > 0
