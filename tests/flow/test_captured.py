"""What was captured from other people's clients trains like what `model.openai_client()` gave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

import art
from art.client.capture import auto_trajectory, capture_auto_trajectory

ASK = [{"role": "user", "content": "yes, no or maybe?"}]
UNKNOWN = [{"role": "user", "content": "Summarize this protocol"}]
"""Words that the base was never taught: its server warns of them."""


async def over_openai(model: art.TrainableModel, **options: Any) -> None:
    """The user's own client, two turns, the second one streamed."""
    client = openai.AsyncOpenAI(base_url=model.inference_base_url, api_key=model.inference_api_key)
    reply = await client.chat.completions.create(model=model.get_inference_name(), messages=ASK, **options)
    said = {"role": "assistant", "content": reply.choices[0].message.content}
    stream = await client.chat.completions.create(
        model=model.get_inference_name(), messages=[*ASK, said, *ASK], stream=True, **options
    )
    async for _ in stream:
        pass


async def over_httpx(model: art.TrainableModel, **options: Any) -> None:
    """No client library at all, several choices."""
    headers = {"authorization": f"Bearer {model.inference_api_key}"}
    async with httpx.AsyncClient(
        base_url=str(model.inference_base_url), headers=headers, timeout=240
    ) as http:
        body = {"model": model.get_inference_name(), "messages": ASK, "n": 2, **options}
        (await http.post("chat/completions", json=body)).raise_for_status()


async def over_ours(model: art.TrainableModel, **options: Any) -> None:
    """The short way, and a stream that is left early: it is no sample."""
    create = model.openai_client().chat.completions.create
    await create(model=model.get_inference_name(), messages=ASK, **options)
    stream = await create(model=model.get_inference_name(), messages=ASK, stream=True, **options)
    await anext(aiter(stream))
    await stream.close()


@pytest.mark.slow
async def test_captured_trajectories_train_and_notes_of_the_server_reach_the_program(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = art.TrainableModel(name="heard", project="flow", base_model="art/nano")

    async def rollout(way: Any, reward: float) -> None:
        await way(model, max_tokens=6)
        auto_trajectory(required=True).reward = reward

    async with art.LocalBackend(path=str(tmp_path)) as backend:
        await model.register(backend)
        await model.openai_client().chat.completions.create(
            model=model.get_inference_name(), messages=UNKNOWN, max_tokens=1
        )
        groups = await art.gather_trajectory_groups(
            art.TrajectoryGroup(capture_auto_trajectory(rollout(way, reward)) for reward in (0.0, 1.0, 3.0))
            for way in (over_openai, over_httpx, over_ours)
        )
        turns = [len(sampled(trajectory)) for group in groups for trajectory in group]
        assert turns == [2] * 6 + [1] * 3
        result = await backend.train(model, groups, learning_rate=1e-4)
    assert result.step == 1
    fates = {name: result.metrics[f"data/sheet/{name}_rollouts"] for name in ("started", "trained")}
    assert fates == {"started": 9, "trained": 9}
    assert sum("it was never taught 'Summarize'" in one for one in caplog.messages) == 1


def sampled(trajectory: art.Trajectory) -> list[str]:
    histories = [trajectory, *trajectory.additional_histories]
    items = [item for history in histories for item in history.messages_and_choices]
    return [item.model_extra["sample_id"] for item in items if not isinstance(item, dict)]
