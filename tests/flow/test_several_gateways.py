"""Two gateways and a controller over one real Postgres: requests are sampled by each, and by the newest step."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import openai
import pytest

sys.path.append(str(Path(__file__).parents[1] / "server"))

from art_servers import KEY, ArtServers
from homes import Home
from private_postgres import programs, running_postgres

import art
from art.client.remote_backend import RemoteBackend
from waiting import DEADLINE_S, until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ArtServers]:
    """A controller, and two gateways of it."""
    if programs() is None:
        pytest.skip("no Postgres on this machine: sh tests/server/install_postgres.sh")
    with running_postgres() as postgres:
        home = Home(tmp_path_factory.mktemp("art"), postgres.create_database(), postgres)
        started = ArtServers(home)
        try:
            started.start()
            for _ in range(2):
                started.start("--role", "gateway", port=0)
            asyncio.run(started.wait_for("ART serves", 3))
            yield started
        finally:
            started.stop()


@pytest.fixture
async def model(servers: ArtServers, tmp_path: Path) -> AsyncIterator[art.TrainableModel]:
    """Registered and trained through a gateway, which passes that on to the controller."""
    backend = RemoteBackend(base_url=servers.urls()[1], api_key=KEY)
    model = art.TrainableModel(
        name="player", project="games", base_model="art/nano", base_path=str(tmp_path / "client")
    )
    await model.register(backend)
    yield model
    await backend.close()


def client_of(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, timeout=DEADLINE_S)


async def health(url: str) -> dict[str, object]:
    async with httpx.AsyncClient(trust_env=False, timeout=DEADLINE_S) as http:
        return (await http.get(f"{url}/health", headers={"Authorization": f"Bearer {KEY}"})).json()


async def ask(
    url: str, text: str = "yes or no?", *, rollout: str | None = None, name: str = "player"
) -> object:
    headers = {"x-art-rollout": rollout} if rollout else {}
    async with client_of(url) as client:
        return await client.chat.completions.create(
            model=name, messages=[{"role": "user", "content": text}], max_tokens=6, extra_headers=headers
        )


async def test_gateways_sample_by_themselves_and_the_newest_step_reaches_them(
    servers: ArtServers, model: art.TrainableModel
) -> None:
    controller, *gateways = servers.urls()

    async def reached() -> bool:
        return all([(await health(url))["gateway"]["engines"] == {"art/nano-games": 1} for url in gateways])

    await until(reached)
    before = (await health(controller))["stitched"]
    trajectories = []
    for n in range(4):
        choice = (await ask(gateways[n % 2], rollout="r")).choices[0]
        assert choice.model_extra["step"] == 0
        trajectory = art.Trajectory(messages_and_choices=[{"role": "user", "content": "yes or no?"}, choice])
        trajectory.reward = float(n)
        trajectories.append(trajectory)
    assert (await health(controller))["stitched"] == before, "the controller answered none of them"
    backend = model.backend()
    result = await backend.train(model, [art.TrajectoryGroup(trajectories)], learning_rate=1e-3)
    assert result.step == 1

    async def moved() -> bool:
        steps = [(await ask(url)).choices[0].model_extra["step"] for url in gateways]
        assert set(steps) <= {0, 1}
        return steps == [1, 1]

    await until(moved)
    recorded = servers.home.sql(
        "SELECT count(*), count(DISTINCT step) FROM samples WHERE adapter LIKE 'games/%'"
    )
    assert recorded[0][1] == 2
