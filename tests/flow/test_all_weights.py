"""Full fine-tuning with a critic through the real server: trained, saved, served, restarted, trained on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import art


async def answer(model: art.TrainableModel) -> art.Trajectory:
    trajectory = art.Trajectory(
        messages_and_choices=[{"role": "user", "content": "yes, no or maybe?"}], reward=0.0
    )
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=trajectory.messages(), max_tokens=6
    )
    trajectory.messages_and_choices.append(completion.choices[0])
    return trajectory


async def train(model: art.TrainableModel, step: int) -> art.TrainResult:
    groups = await art.gather_trajectory_groups([art.TrajectoryGroup(answer(model) for _ in range(4))])
    for reward, trajectory in enumerate(groups[0].trajectories):
        trajectory.reward = float(reward)
        assert trajectory.messages_and_choices[1].model_extra["step"] == step
    kl = {"estimator": "k1", "coefficient": 0.01, "place": "reward"}
    return await model.backend().train(
        model, groups, learning_rate=1e-4, algorithm={"name": "ppo_critic", "kl": kl}
    )


@pytest.mark.slow
async def test_all_weights_are_trained_and_served(tmp_path: Path) -> None:
    def model() -> art.TrainableModel:
        return art.TrainableModel(
            name="whole",
            project="flow",
            base_model="art/nano",
            _internal_config={"init_args": {"full_finetuning": True}},
        )

    first = model()
    async with art.LocalBackend(path=str(tmp_path)) as backend:
        await first.register(backend)
        for step in range(2):
            result = await train(first, step)
            assert result.step == step + 1  # so the canary passed: engine and trainer agree on its weights
            assert result.metrics["loss/value"] > 0
    again = model()
    async with art.LocalBackend(path=str(tmp_path)) as backend:
        await again.register(backend)
        assert await again.get_step() == 2
        assert (await train(again, 2)).step == 3

    checkpoints = tmp_path / "flow" / "models" / "whole" / "checkpoints"
    assert (checkpoints / "0003" / "critic.safetensors").is_file()
    before, after = (
        dict(AutoModelForCausalLM.from_pretrained(checkpoints / step).named_parameters())
        for step in ("0000", "0003")
    )
    # Ids that never occur have no gradient; every matrix and norm has.
    assert all(not torch.equal(before[name], after[name]) for name in before)
