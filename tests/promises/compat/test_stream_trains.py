"""A streamed reply, put together by `art.openai`, can be trained like a whole one."""

from __future__ import annotations

from pathlib import Path

import pytest

import art
from art.openai import consume_chat_completion_stream


@pytest.mark.slow
async def test_what_was_streamed_is_trained(tmp_path: Path) -> None:
    model = art.TrainableModel(name="agent", project="p", base_model="art/nano")

    async def rollout(reward: float) -> art.Trajectory:
        question = {"role": "user", "content": "Say something."}
        stream = await model.openai_client().chat.completions.create(
            model=model.get_inference_name(),
            messages=[question],  # type: ignore[list-item]
            max_tokens=5,
            logprobs=True,
            stream=True,
            extra_body={"return_token_ids": True, "min_tokens": 5},
        )
        completion = await consume_chat_completion_stream(stream)
        choice = completion.choices[0]
        assert choice.finish_reason is not None and choice.logprobs is not None
        assert choice.logprobs.content is not None
        assert choice.model_extra is not None
        assert len(choice.model_extra["token_ids"]) == len(choice.logprobs.content) == 5
        return art.Trajectory(messages_and_choices=[question, choice], reward=reward)  # type: ignore[list-item]

    async with art.LocalBackend(path=str(tmp_path)) as backend:
        await model.register(backend)
        groups = await art.gather_trajectory_groups(
            [art.TrajectoryGroup(rollout(reward) for reward in (0.0, 1.0))], pbar_desc=None
        )
        result = await backend.train(model, groups, learning_rate=1e-4)
    assert result.step == 1 and result.metrics["data/sheet/trained_rollouts"] == 2
    assert isinstance(result, art.LocalTrainResult) and result.checkpoint_path is not None
