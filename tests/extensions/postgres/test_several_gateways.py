"""Two gateways and a controller over one real Postgres: each samples, and follows the newest step."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from art_servers import KEY, ArtServers
from homes import Home
from private_postgres import programs, running_postgres

import art
from art.client.backends.remote_backend import RemoteBackend
from art.wire.rollouts import ROLLOUT_HEADER
from waiting import DEADLINE_S, until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ArtServers]:
    """A controller, and two gateways of it."""
    if programs() is None:
        pytest.skip("no Postgres on this machine: sh tests/install_programs.sh")
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


@contextlib.contextmanager
def stopped(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """The process does nothing in this block; its workers go on."""
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def client_of(url: str, key: str = KEY) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=DEADLINE_S)


async def health(url: str) -> dict[str, Any]:
    async with httpx.AsyncClient(trust_env=False, timeout=DEADLINE_S) as http:
        return (await http.get(f"{url}/health", headers={"Authorization": f"Bearer {KEY}"})).json()


async def ask(url: str, text: str = "yes or no?", *, rollout: str | None = None, name: str = "player") -> Any:
    headers = {ROLLOUT_HEADER: rollout} if rollout else {}
    async with client_of(url) as client:
        reply = await client.chat.completions.create(
            model=name, messages=[{"role": "user", "content": text}], max_tokens=6, extra_headers=headers
        )
    return reply.choices[0]


async def reach_engines(servers: ArtServers) -> None:
    async def is_reached() -> bool:
        told = [await health(url) for url in servers.urls()[1:]]
        return all(one["gateway"]["engines"] == {"art/nano-games": 1} for one in told)

    await until(is_reached)


async def reach_step(servers: ArtServers, step: int) -> None:
    async def is_reached() -> bool:
        choices = [await ask(url) for url in servers.urls()[1:]]
        return [one.model_extra["step"] for one in choices] == [step, step]

    await until(is_reached)


async def test_gateways_sample_by_themselves_and_the_newest_step_reaches_them(
    servers: ArtServers, model: art.TrainableModel
) -> None:
    await reach_engines(servers)
    gateways, trajectories = servers.urls()[1:], []
    with stopped(servers.running[0]):  # the controller answers none of these
        for n in range(4):
            choice = await ask(gateways[n % 2], rollout="r")
            assert choice.model_extra["step"] == 0
            asked = {"role": "user", "content": "yes or no?"}
            trajectories.append(art.Trajectory(messages_and_choices=[asked, choice], reward=float(n)))
    backend = RemoteBackend(base_url=gateways[0], api_key=KEY)
    result = await backend.train(model, [art.TrajectoryGroup(trajectories)], learning_rate=1e-3)
    assert result.step == 1
    await reach_step(servers, 1)
    await backend.close()


async def test_a_conversation_goes_on_at_another_gateway(
    servers: ArtServers, model: art.TrainableModel
) -> None:
    await reach_engines(servers)
    first, second = servers.urls()[1:]
    choice = await ask(first, "maybe?", rollout="two-gateways")
    asked = {"role": "user", "content": "maybe?"}
    said = {"role": "assistant", "content": choice.message.content}
    async with client_of(second) as client:
        reply = await client.chat.completions.create(
            model="player",
            messages=[asked, said, {"role": "user", "content": "and now?"}],
            max_tokens=6,
            extra_headers={ROLLOUT_HEADER: "two-gateways"},
        )
    sample = reply.choices[0].model_extra["sample_id"]
    ((parent, shared),) = servers.home.sql(
        f"SELECT parent_id, shared FROM samples WHERE sample_id = '{sample}'"
    )
    assert parent == choice.model_extra["sample_id"] and shared > 0, "its ids are the first reply's ids"


async def test_a_scoped_rollout_is_kept_by_the_controller_whichever_gateway_is_asked(
    servers: ArtServers, model: art.TrainableModel
) -> None:
    await reach_engines(servers)
    async with art.rollout(model) as scoped:
        for url in servers.urls()[1:]:
            async with client_of(url, scoped.api_key) as client:
                messages = [{"role": "user", "content": f"yes? {url}"}]
                await client.chat.completions.create(model="player", messages=messages, max_tokens=6)
    assert len(scoped.trajectory.messages_and_choices) + len(scoped.trajectory.additional_histories) >= 3


async def test_a_move_of_which_nobody_was_told_is_found_and_the_sample_says_which_step_drew_it(
    servers: ArtServers, model: art.TrainableModel
) -> None:
    await reach_step(servers, 1)
    servers.home.sql("""UPDATE aliases SET body = replace(body, '"newest":1', '"newest":0')""")
    await reach_step(servers, 0)
    choice = await ask(servers.urls()[1])
    recorded = f"SELECT step FROM samples WHERE sample_id = '{choice.model_extra['sample_id']}'"
    assert servers.home.sql(recorded) == [(0,)]
    servers.home.sql("""UPDATE aliases SET body = replace(body, '"newest":0', '"newest":1')""")
    await reach_step(servers, 1)


async def test_errors_of_a_gateway_are_those_of_a_server(servers: ArtServers) -> None:
    url = servers.urls()[1]
    async with httpx.AsyncClient(trust_env=False, timeout=DEADLINE_S, base_url=url) as http:
        ours = {"Authorization": f"Bearer {KEY}"}
        unknown = b'{"model": "nobody", "messages": [{"role": "user", "content": "?"}]}'
        for path, headers, content, status in (
            ("/v1/chat/completions", {}, b"{}", 401),
            ("/v1/chat/completions", ours, b"{no json", 400),
            ("/v1/chat/completions", ours, unknown, 404),
            ("/v1/nothing", ours, b"{}", 404),
            ("/v1/nothing", {}, b"{}", 401),
        ):
            reply = await http.post(path, headers=headers, content=content)
            assert reply.status_code == status and reply.json()["error"]["message"], reply.text
        listed = await http.get("/v1/models", headers=ours)
        assert "player" in [one["id"] for one in listed.json()["data"]]


async def test_gateways_go_on_with_the_next_controller(
    servers: ArtServers, model: art.TrainableModel
) -> None:
    """Last: the first controller is killed, its engines end with it."""
    await reach_engines(servers)
    servers.start()
    await servers.wait_for("this one waits", 1)
    servers.running[0].kill()
    gateway, key = servers.urls()[1], {"Authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(trust_env=False, timeout=DEADLINE_S) as http:
        reply = await http.get(f"{gateway}/art/jobs", headers=key)  # it waits for the next controller
        assert reply.status_code == 200 and reply.json()["jobs"][0]["state"] == "done", reply.text
    await servers.wait_for("games/player is served", 1)
    await reach_engines(servers)

    async def answers() -> bool:
        try:
            return bool(await ask(gateway))
        except openai.APIStatusError as error:
            assert error.status_code in (404, 500, 503), error
            return False

    await until(answers)
    assert (await ask(gateway)).model_extra["step"] == 1
