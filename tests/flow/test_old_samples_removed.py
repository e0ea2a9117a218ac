"""A server that keeps the samples of few steps trains on, and says what it no longer has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

import art
from waiting import DEADLINE_S, until

pytestmark = pytest.mark.slow

ASK = {"role": "user", "content": "yes or no?"}


async def play(model: art.TrainableModel, reward: float) -> art.Trajectory:
    client, said = model.openai_client(), art.Trajectory(messages_and_choices=[ASK], reward=reward)
    reply = await client.chat.completions.create(
        model=model.get_inference_name(), messages=said.messages(), max_tokens=4
    )
    said.messages_and_choices.append(reply.choices[0])
    return said


async def played(model: art.TrainableModel) -> art.TrajectoryGroup:
    return await art.TrajectoryGroup([play(model, reward) for reward in (0.0, 1.0)])


def samples_of(group: art.TrajectoryGroup) -> list[str]:
    choices: list[Any] = [trajectory.messages_and_choices[-1] for trajectory in group]
    return [choice.model_extra["sample_id"] for choice in choices]


async def test_old_samples_go_while_the_model_trains(tmp_path: Path) -> None:
    model = art.TrainableModel(name="a", project="p", base_model="art/nano")
    control = {"keep_samples_steps": 1, "max_off_policy_steps": 1}
    async with art.LocalBackend(path=str(tmp_path), server_options={"control": control}) as backend:
        await model.register(backend)
        first, unused = await played(model), await played(model)
        await backend.train(model, [first], learning_rate=1e-4)
        for _ in range(2):
            await backend.train(model, [await played(model)], learning_rate=1e-4)
        assert model.inference_base_url is not None
        headers = {"authorization": f"Bearer {model.inference_api_key}"}
        root = model.inference_base_url.removesuffix("/v1")
        async with httpx.AsyncClient(base_url=root, headers=headers, timeout=DEADLINE_S) as http:
            gone = f"/v1/samples/{samples_of(unused)[0]}"

            async def removed() -> bool:
                return (await http.get(gone)).status_code != 200

            await until(removed)
            reply = await http.get(gone)
            assert reply.status_code == 410 and reply.json()["error"]["code"] == "sample_removed"
            kept = await http.get(f"/v1/samples/{samples_of(first)[0]}")
            assert kept.status_code == 200, "step 1 has a checkpoint, whose record names it"
            ledger = (await http.get("/health")).json()["ledger"]
        assert ledger["removed_samples"] == 2 and ledger["keep_samples_steps"] == 1 and ledger["bytes"] > 0
        result = await backend.train(model, [unused, await played(model)], learning_rate=1e-4)
        assert result.sheet is not None
        assert result.sheet.fates["stale"].rollouts == 2 and result.sheet.fates["trained"].rollouts == 2
