"""Calls of every dialect, over clients of other people, are recorded, and their samples are trained."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import openai
import pytest
import requests

import art
from art.errors import NoTrajectoryError
from art.types import sample_id
from waiting import DEADLINE_S

ASK = [{"role": "user", "content": "yes, no or maybe?"}]
NAMES = ("chat_completions", "completions", "responses", "messages")
BODIES: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": ASK, "max_tokens": 6},
    "completions": {"prompt": "yes or no?", "max_tokens": 6},
    "responses": {"input": "yes, no or maybe?", "max_output_tokens": 16},
    "messages": {"messages": ASK, "max_tokens": 6},
}


async def over_aiohttp(model: art.TrainableModel, path: str, body: dict[str, Any]) -> None:
    headers = {"authorization": f"Bearer {model.inference_api_key}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(f"{model.inference_base_url}/{path}", json=body) as response,
    ):
        assert response.status == 200, await response.text()
        if body.get("stream"):
            assert [line async for line in response.content]
        else:
            assert (await response.json())["model"]


async def over_requests(model: art.TrainableModel, path: str, body: dict[str, Any]) -> None:
    def post() -> None:
        headers = {"authorization": f"Bearer {model.inference_api_key}"}
        streams = bool(body.get("stream"))
        url = f"{model.inference_base_url}/{path}"
        with requests.post(url, json=body, headers=headers, stream=streams, timeout=DEADLINE_S) as response:
            assert response.ok, response.text
            assert list(response.iter_lines()) if streams else response.json()["model"]

    await asyncio.to_thread(post)


async def over_httpx(model: art.TrainableModel, path: str, body: dict[str, Any]) -> None:
    headers = {"authorization": f"Bearer {model.inference_api_key}"}
    url = f"{model.inference_base_url}/{path}"
    async with httpx.AsyncClient(headers=headers, timeout=120) as http:
        async with http.stream("POST", url, json=body) as response:
            assert response.is_success and [line async for line in response.aiter_lines()]


CLIENTS = {"aiohttp": over_aiohttp, "requests": over_requests, "httpx": over_httpx}


def sampled(trajectory: art.Trajectory) -> list[str | None]:
    histories = [trajectory, *trajectory.additional_histories]
    items = [item for history in histories for item in history.messages_and_choices]
    return [sample_id(item) for item in items if not isinstance(item, dict)]


async def every_dialect(model: art.TrainableModel, client: Any, reward: float) -> None:
    for path, body in BODIES.items():
        for stream in (False, True):
            await client(model, path, {"model": model.get_inference_name(), "stream": stream, **body})
    art.current_trajectory(require=True).reward = reward


async def openai_program(model: art.TrainableModel, reward: float) -> None:
    """Turns of the responses API by `previous_response_id`, and a judge that is no part."""
    client = openai.AsyncOpenAI(base_url=model.inference_base_url, api_key=model.inference_api_key)
    name = model.get_inference_name()
    first = await client.responses.create(model=name, input="yes or no?", max_output_tokens=16)
    async with client.responses.stream(
        model=name, input="again", previous_response_id=first.id, max_output_tokens=16
    ) as stream:
        async for _ in stream:
            pass
    with art.no_capture():
        assert art.current_trajectory() is None
        await client.chat.completions.create(model=name, messages=ASK, max_tokens=6)
    art.current_trajectory(require=True).reward = reward


@pytest.mark.slow
async def test_what_is_captured_over_any_client_and_dialect_is_trained(tmp_path: Path) -> None:
    model = art.TrainableModel(
        name="agent", run_name="agent-001", project="flow", base_model="art/nano", lora_config={"rank": 4}
    )
    async with art.LocalBackend(path=str(tmp_path)) as backend:
        await model.register(backend)
        groups = await art.gather_trajectory_groups(
            art.trajectory_group(
                art.trajectory(every_dialect(model, client, reward)) for reward in (0.0, 1.0)
            )
            for client in CLIENTS.values()
        )
        for group in groups:
            for trajectory in group:
                found = {name: len(getattr(trajectory.exchanges, name)) for name in NAMES}
                assert found == dict.fromkeys(NAMES, 2)
                assert len(set(sampled(trajectory))) == 8 and None not in sampled(trajectory)
                assert trajectory.initial_policy_version == trajectory.final_policy_version == 0
        turns = await art.trajectory_group(
            art.trajectory(openai_program(model, reward)) for reward in (0.0, 1.0)
        )
        for trajectory in turns:
            assert len(trajectory.exchanges) == 2 and not trajectory.additional_histories
            kinds = [isinstance(item, dict) for item in trajectory.messages_and_choices]
            assert kinds == [True, False, True, False]
        # What was dumped is the same trajectory: its samples are trained.
        dumped = [one.model_dump_json() for one in turns]
        again = [art.TrajectoryGroup(map(art.Trajectory.model_validate_json, dumped))]
        assert [sampled(one) for one in again[0]] == [sampled(one) for one in turns]
        result = await backend.train(model, [*groups, *again], learning_rate=1e-4)
    fates = {name: result.metrics[f"data/sheet/{name}_rollouts"] for name in ("started", "trained")}
    assert fates == {"started": 8, "trained": 8}
    assert result.metrics["data/samples"] == 6 * 8 + 2 * 2
    with pytest.raises(NoTrajectoryError, match=r"art\.trajectory"):
        art.current_trajectory(require=True)
