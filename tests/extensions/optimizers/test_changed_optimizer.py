"""A model keeps its optimizer; a fork of its weights alone may have another."""

from __future__ import annotations

from pathlib import Path

import pytest

import art
from art.errors import ConfigurationError

CONFIG = {"peft_args": {"r": 4, "lora_alpha": 8}}


def trainable(name: str) -> art.TrainableModel:
    return art.TrainableModel(name=name, project="flow", base_model="art/nano", _internal_config=CONFIG)


async def train(backend: art.LocalBackend, model: art.TrainableModel, optimizer: str) -> int:
    """One step from two replies of different rewards."""
    client, question = model.openai_client(), [{"role": "user", "content": "dog cat"}]
    rollouts = []
    for reward in (0.0, 1.0):
        reply = await client.chat.completions.create(
            model=model.get_inference_name(), messages=question, max_tokens=5
        )
        rollouts.append(art.Trajectory(messages_and_choices=[*question, reply.choices[0]], reward=reward))
    group = art.TrajectoryGroup(rollouts)
    return (await backend.train(model, [group], learning_rate=1e-4, optimizer=optimizer)).step


@pytest.mark.slow
async def test_a_fork_of_the_weights_may_have_another_optimizer(tmp_path: Path) -> None:
    model, other = trainable("agent"), trainable("other")
    async with art.LocalBackend(path=tmp_path) as backend:
        await model.register(backend)
        assert await train(backend, model, "muon") == 1
        with pytest.raises(ConfigurationError, match=r"is of 'muon', and this step asks for 'adamw'"):
            await train(backend, model, "adamw")
        assert await train(backend, model, "muon") == 2
        await backend.fork_checkpoint(other, "agent", weights_only=True)
        await other.register(backend)
        assert await train(backend, other, "adamw_8bit") == 3
