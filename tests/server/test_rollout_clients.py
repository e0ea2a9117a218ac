"""`r.openai_client()`: clients of many rollouts over one pool of connections."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from typing import Any

import pytest
from live import KEY, Live

import art

ASK: Any = [{"role": "user", "content": "hello there"}]


@pytest.fixture
async def model(live: Live) -> AsyncIterator[art.TrainableModel]:
    known = art.TrainableModel(name="player", project="games", base_model="tiny")
    known.inference_base_url, known.inference_api_key = f"{live.url}/v1", KEY
    backend = art.RemoteBackend(live.url, KEY)
    known._backend = backend
    yield known
    await backend.close()


@pytest.mark.slow
async def test_fifty_rollouts_share_one_pool(
    model: art.TrainableModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[ssl.SSLContext] = []
    create = ssl.create_default_context

    def counted(*given: Any, **more: Any) -> ssl.SSLContext:
        made.append(create(*given, **more))
        return made[-1]

    monkeypatch.setattr(ssl, "create_default_context", counted)
    before, transports = -1, set()
    for number in range(50):
        async with art.rollout(model) as r:
            async with r.openai_client() as client:
                reply = await client.chat.completions.create(model="player", messages=ASK)
                async for _ in await client.chat.completions.create(
                    model="player", messages=ASK, stream=True
                ):
                    pass
                transports.add(id(client._client))
        assert choices(r.trajectory)[0].sample_id == reply.choices[0].sample_id  # type: ignore[attr-defined]
        assert sum(1 for history in (r.trajectory, *r.trajectory.additional_histories)) == 2
        if number == 0:
            before = len(made)
    assert len(transports) == 1 and len(made) == before


def choices(trajectory: art.Trajectory) -> list[Any]:
    return [item for item in trajectory.messages_and_choices if not isinstance(item, dict)]


async def test_plain_requests_take_the_short_way_and_name_their_own_rollout(
    model: art.TrainableModel,
) -> None:
    async with art.rollout(model) as one:
        inner = one.openai_client()
        async with art.rollout(model) as other:
            assert inner.lane is other.openai_client().lane is not None  # type: ignore[attr-defined]
            for client in (inner, other.openai_client()):
                await client.chat.completions.create(model="player", messages=ASK)
    for scope in (one, other):
        assert len(choices(scope.trajectory)) == 1 and not scope.trajectory.additional_histories


async def test_the_pool_ends_with_the_backend(model: art.TrainableModel) -> None:
    async with art.rollout(model) as r:
        client = r.openai_client()
        await client.close()
        assert not client._client.is_closed
    await model._backend.close()  # type: ignore[union-attr]
    assert client._client.is_closed
