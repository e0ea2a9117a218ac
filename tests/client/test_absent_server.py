"""A server of somebody else that restarts slowly is waited for; one that is gone is one named error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import openai
import pytest
import uvicorn
from wire_double import KEY, Double

import art
from art import errors
from art.client.http import openai_client
from art.process.resources import listen
from serving import QuickServer
from waiting import until

ASK = [{"role": "user", "content": "x"}]
AWAY_S, LONG_S = 2.0, 5.0
"""Longer than `openai` tries again, as these tests set it, and than plain chats once did."""
Work = Callable[[art.TrainableModel, art.RemoteBackend], Awaitable[object]]


class RestartedServer:
    """One address, at which nobody listens between `stop` and `start`."""

    def __init__(self, double: Double) -> None:
        self._double, self._server = double, None
        with listen("127.0.0.1", 0) as free:
            self.port: int = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        config = uvicorn.Config(self._double.app(), log_config=None, lifespan="off")
        config.timeout_graceful_shutdown = 1
        self._server = QuickServer(config)
        self._task = asyncio.create_task(self._server.serve(sockets=[listen("127.0.0.1", self.port)]))
        await until(lambda: self._server.started)

    async def stop(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            server.stop()
            await self._task


@pytest.fixture
async def restarted(double: Double) -> AsyncIterator[RestartedServer]:
    server = RestartedServer(double)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture(autouse=True)
def _few_tries_of_openai(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_client, "MAX_RETRIES", 1)


async def chat(model: art.TrainableModel, backend: art.RemoteBackend) -> None:
    completion = await model.openai_client().chat.completions.create(model="agent", messages=ASK)
    assert completion.choices[0].message.content


async def chat_with_own_timeout(model: art.TrainableModel, backend: art.RemoteBackend) -> None:
    client = model.openai_client().with_options(timeout=60)
    assert (await client.chat.completions.create(model="agent", messages=ASK)).choices[0].message.content


async def stream(model: art.TrainableModel, backend: art.RemoteBackend) -> None:
    chunks = await model.openai_client().chat.completions.create(model="agent", messages=ASK, stream=True)
    assert [chunk async for chunk in chunks]


async def register(model: art.TrainableModel, backend: art.RemoteBackend) -> None:
    await model.register(backend)


async def train(model: art.TrainableModel, backend: art.RemoteBackend) -> None:
    await model.train([art.TrajectoryGroup([art.Trajectory()])])


async def step(model: art.TrainableModel, backend: art.RemoteBackend) -> None:
    assert await model.get_step() is not None


async def follow(model: art.TrainableModel, backend: art.RemoteBackend) -> None:
    """A job that was accepted before the restart."""
    await backend.training_result(model, "left")


WORKS: list[Work] = [chat, chat_with_own_timeout, stream, register, train, step, follow]


@pytest.mark.parametrize("work", WORKS)
async def test_a_slow_restart_is_outlived(
    work: Work, model: art.TrainableModel, restarted: RestartedServer
) -> None:
    async with art.RemoteBackend(restarted.url, KEY) as backend:
        await model.register(backend)
        await chat(model, backend)  # over a connection that the restart closes
        await restarted.stop()
        working = asyncio.ensure_future(work(model, backend))
        await asyncio.sleep(LONG_S if work is chat else AWAY_S)
        assert not working.done(), working
        await restarted.start()
        await working


@pytest.mark.parametrize("work", WORKS)
async def test_a_server_that_is_gone_is_one_named_error(
    work: Work, model: art.TrainableModel, restarted: RestartedServer
) -> None:
    async with art.RemoteBackend(restarted.url, KEY, gone_s=0.5) as backend:
        await model.register(backend)
        await chat(model, backend)
        await restarted.stop()
        with pytest.raises(errors.ServerUnreachableError, match=r"nobody answers within 0\.5 s"):
            await work(model, backend)


async def test_a_job_that_is_followed_outlives_a_restart_and_hears_of_the_end(
    model: art.TrainableModel, restarted: RestartedServer, double: Double
) -> None:
    async with art.RemoteBackend(restarted.url, KEY, gone_s=4 * AWAY_S) as backend:
        await model.register(backend)
        double.silence_s = 600.0
        training = asyncio.ensure_future(train(model, backend))
        await until(lambda: double.events_after)
        double.silence_s = 0.0
        await restarted.stop()
        await asyncio.sleep(AWAY_S)
        await restarted.start()
        await training
        double.silence_s = 600.0
        double.events_after.clear()
        training = asyncio.ensure_future(train(model, backend))
        await until(lambda: double.events_after)
        await restarted.stop()
        with pytest.raises(errors.ServerUnreachableError, match=r"within 8 s: events of"):
            await training


async def test_a_server_that_breaks_each_connection_is_left(
    model: art.TrainableModel, double: Double
) -> None:
    broken = 0

    async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal broken
        broken += 1
        await reader.read(1)
        writer.transport.abort()

    server = await asyncio.start_server(break_off, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, art.RemoteBackend(url, KEY, gone_s=2.0) as backend:
        model.inference_base_url, model.inference_api_key = f"{url}/v1", KEY
        client = backend.openai_client(model)
        with pytest.raises(errors.ServerUnreachableError, match=r"within 2 s"):
            await client.chat.completions.create(model="agent", messages=ASK)
        with pytest.raises(errors.ServerUnreachableError, match=r"within 2 s"):
            await model.register(backend)
    assert broken > 4


async def test_who_asked_for_one_try_gets_one(model: art.TrainableModel, restarted: RestartedServer) -> None:
    async with art.RemoteBackend(restarted.url, KEY) as backend:
        await model.register(backend)
        await restarted.stop()
        client = model.openai_client().with_options(max_retries=0)
        with pytest.raises(openai.APIConnectionError):
            await client.chat.completions.create(model="agent", messages=ASK)


@pytest.mark.slow
@pytest.mark.extension
async def test_the_model_of_a_graph_outlives_a_restart(
    restarted: RestartedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from art_extensions.langgraph.chat_model_factory import add_thread, init_chat_model

    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    add_thread("one", f"{restarted.url}/v1", KEY, "agent")
    await restarted.stop()
    asking = asyncio.ensure_future(init_chat_model().ainvoke("hello"))
    await asyncio.sleep(AWAY_S)
    await restarted.start()
    assert (await asking).content.startswith("reply")
