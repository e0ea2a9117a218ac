"""A mixture whose experts are adapted: registered, where engine and trainer must agree, sampled, trained,
served, and exported as a whole model that computes the same.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Qwen3MoeConfig

import art
from art.engine import nano_models
from art_extensions.publish.merge_messages import MergeRequest
from art_extensions.publish.merging.merge import merge

LORA = {"rank": 4, "alpha": 8, "target_modules": ["all-linear", "experts"]}


def mixture(folder: Path) -> Path:
    """A random mixture with the tokenizer of a small model."""
    nano = Path(str(nano_models.resolve("art/nano")))
    vocabulary = json.loads((nano / "config.json").read_text())["vocab_size"]
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=32,
        moe_intermediate_size=16,
        num_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=512,
        eos_token_id=json.loads((nano / "config.json").read_text())["eos_token_id"],
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(nano / name, folder / name)
    return folder


@pytest.mark.slow
async def test_experts_are_trained_served_and_exported(tmp_path: Path) -> None:
    base = mixture(tmp_path / "base")
    model = art.TrainableModel(name="mixed", project="flow", base_model=str(base), lora_config=LORA)
    async with art.LocalBackend(path=tmp_path / "data") as backend:
        await model.register(backend)
        client = model.openai_client()
        for step in range(2):
            rollouts = []
            for number in range(4):
                question = [{"role": "user", "content": "dog cat"}]
                reply = await client.chat.completions.create(
                    model=model.get_inference_name(), messages=question, max_tokens=6, seed=number
                )
                choice = reply.choices[0]
                assert choice.model_extra is not None and choice.model_extra["step"] == step
                rollouts.append(
                    art.Trajectory(messages_and_choices=[*question, choice], reward=float(number % 2))
                )
            result = await backend.train(model, [art.TrajectoryGroup(rollouts)], learning_rate=1e-2)
            # The first update is of the policy that sampled: engine and trainer agree on each token.
            assert abs(result.metrics["loss/ratio_max"] - 1) < 1e-3
    checkpoint = tmp_path / "data" / "flow" / "models" / "mixed" / "checkpoints" / "0002"
    factors = load_file(checkpoint / "adapter_model.safetensors")
    ups = [one for name, one in factors.items() if ".experts." in name and "lora_B" in name]
    assert len(ups) == 4 and all(bool(one.any()) for one in ups), "B began at zero"
    asked = MergeRequest(checkpoint=str(checkpoint), base_model=str(base), to=str(tmp_path / "merged"))
    merged = await asyncio.to_thread(merge, asked)
    assert merged.error is None and merged.difference is not None and merged.difference < 1e-5
