"""Many samples at once: the real SDK polls for all of them together, and what waits there is bounded."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from counted_paths import CountingProxy, counted
from scripted_service import ScriptedServer, serving
from test_ended_samples import ask, fetch, make_sampler, poll
from tinker_fixtures import PROGRAMS, started
from tinker_service import DONE, PYTHON, Service, with_sdk

from art.process.resources import listen
from art_extensions.tinker import samples
from art_extensions.tinker.app import make_app
from art_extensions.tinker.service import make_service
from starting import StartedProgram
from waiting import eventually, turns, until

COUNT, TOKENS, WRONG_EVERY = 120, 100, 10
LIMIT, MANY = 12, 50


class CountedServer(ScriptedServer):
    """Knows how many samples it was asked for at once."""

    def __init__(self) -> None:
        super().__init__()
        self.running = self.most_running = 0

    async def generate(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.sleep(0.01)
            return await super().generate(asked)
        finally:
            self.running -= 1


def run(service: Service, proxy: CountingProxy, *, killed: bool = False) -> dict[str, Any]:
    """What the program says. killed: the service is, when it was asked for all samples."""
    command = [str(PYTHON), str(PROGRAMS / "many_samples.py"), str(COUNT), str(TOKENS), "wait"]
    variables = {**service.variables, "TINKER_BASE_URL": f"http://127.0.0.1:{proxy.port}"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with StartedProgram(command, env=variables, text=True, **pipes) as program:
        assert program.stdout is not None and program.stdout.readline() == "asked\n"
        if killed:
            eventually(lambda: proxy.requests["asample"] >= COUNT)
            service.kill("service")
        output, errors = program.communicate("\n", timeout=400)
    assert program.returncode in DONE, errors[-3000:]
    found: dict[str, Any] = json.loads(output)
    return found


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], CountingProxy]:
    with started(tmp_path_factory.mktemp("calm") / "data") as service, counted(service.port) as proxy:
        return run(service, proxy), proxy


@pytest.mark.slow
class TestTheSdk:
    """With the real SDK."""

    pytestmark = with_sdk

    def test_polls_for_all_and_fetches_each_once(self, calm: tuple[dict[str, Any], CountingProxy]) -> None:
        told, proxy = calm
        asked = len(told["sampled"]) + len(told["again"])
        fetched = proxy.requests["retrieve_future"]
        assert proxy.requests["asample"] == asked
        assert 0 < proxy.requests["retrieve_futures"] < asked
        assert asked <= fetched <= asked + 15, "of those that train, each is asked for by itself"

    def test_each_has_its_own_result(self, calm: tuple[dict[str, Any], CountingProxy]) -> None:
        told, _ = calm
        sampled = told["sampled"]
        wrong = [at for at in range(COUNT) if at % WRONG_EVERY == WRONG_EVERY - 1]
        assert [at for at, one in enumerate(sampled) if one[0] == "RequestFailedError"] == wrong
        assert all("Shorten the prompt" in sampled[at][1] for at in wrong)
        good = [one for at, one in enumerate(sampled) if at not in wrong]
        assert {len(tokens) for pair in good for tokens in pair} == {TOKENS}
        assert len({str(one) for one in good}) == len(good)
        again = {int(at): one for at, one in told["again"].items() if int(at) not in wrong}
        assert again == {at: sampled[at] for at in again}

    def test_of_training_requests_only_the_wrong_one_fails(
        self, calm: tuple[dict[str, Any], CountingProxy]
    ) -> None:
        *batches, step = calm[0]["trained"]
        assert batches[2][0] == "RequestFailedError" and "weights is nan" in batches[2][1]
        assert all(one["loss:sum"] > 0 for at, one in enumerate(batches) if at != 2)
        assert step["unclipped_grad_l2:mean"] > 0

    def test_killed_in_the_middle_it_brings_the_same(
        self, calm: tuple[dict[str, Any], CountingProxy], tmp_path: Path
    ) -> None:
        def words(told: dict[str, Any]) -> list[Any]:
            return [one[0] if one[0] == "RequestFailedError" else one for one in told["sampled"]]

        with started(tmp_path / "data") as service, counted(service.port) as proxy:
            told = run(service, proxy, killed=True)
        assert words(told) == words(calm[0])
        assert told["trained"][-1] == calm[0]["trained"][-1]
        assert proxy.requests["asample"] > calm[1].requests["asample"], "nothing was asked for anew"


SAMPLE_MANY = """
import sys, tinker
from tinker import types
sampler = tinker.ServiceClient().create_sampling_client(base_model="art/nano-games").result()
prompt, params = types.ModelInput.from_ints([1, 2, 3]), types.SamplingParams(max_tokens=1)
asked = [sampler.sample(prompt, 1, params) for _ in range(int(sys.argv[1]))]
print([one.result(timeout=200).sequences[0].tokens for one in asked] == [[7]] * len(asked))
"""


@asynccontextmanager
async def at_a_port(folder: Path, server: ScriptedServer) -> AsyncIterator[tuple[int, str, list[int]]]:
    """The application at a port: the port, the key, and the statuses of its replies to `asample`."""
    routes, key = make_service(folder, lambda own: server)
    app, statuses, listener = make_app(routes), [], listen("127.0.0.1", 0)

    async def noted(scope: Any, receive: Any, send: Any) -> None:
        async def noting(message: Any) -> None:
            if message["type"] == "http.response.start" and scope["path"].endswith("/asample"):
                statuses.append(message["status"])
            await send(message)

        await app(scope, receive, noting)

    service = uvicorn.Server(uvicorn.Config(noted, log_level="warning", lifespan="on"))
    running = asyncio.create_task(service.serve(sockets=[listener]))
    try:
        await until(lambda: service.started)
        yield listener.getsockname()[1], key, statuses
    finally:
        service.should_exit = True
        await running


@pytest.mark.slow
@with_sdk[1]
async def test_the_sdk_waits_where_too_many_are_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "MOST_OPEN", LIMIT)
    server = CountedServer()
    server.replies = asyncio.Event()
    async with at_a_port(tmp_path, server) as (port, key, statuses):
        variables = {"TINKER_BASE_URL": f"http://127.0.0.1:{port}", "TINKER_API_KEY": key}
        program = await asyncio.create_subprocess_exec(
            *(str(PYTHON), "-c", SAMPLE_MANY, str(MANY)),
            env={**variables, "HOME": str(tmp_path), "TINKER_TELEMETRY": "0"},
            stdout=subprocess.PIPE,
        )
        await until(lambda: 429 in statuses)
        assert server.most_running <= LIMIT
        server.replies.set()
        output, _ = await program.communicate()
    assert output == b"True\n"
    assert statuses.count(200) == MANY and server.most_running == LIMIT


async def test_what_is_open_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "MOST_OPEN", 3)
    server = CountedServer()
    server.replies = asyncio.Event()
    async with serving(tmp_path, server, {"ann": CountedServer()}) as client:
        sampler = await make_sampler(client)
        (first, *_) = await ask(client, sampler, 0, 1, 2)
        assert await refused(client, sampler, 3) == "3 requests for samples are open, of at most 3"
        await client.post("cancel_future", {"request_id": first})
        await turns()
        await ask(client, sampler, 3)
        server.replies.set()
        told, cursor = await poll(client, sampler)
        while len(told) < 3:
            more, cursor = await poll(client, sampler, cursor)
            told |= more
        await ask(client, sampler, 4)
        own, client.key = client.key, "tml-ann"
        other = await make_sampler(client)
        monkeypatch.setattr(samples, "MOST_TOKENS", 5)
        await ask(client, other, 0, tokens=(1,) * 6)
        client.key = own


async def test_prompts_of_open_requests_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "MOST_TOKENS", 5)
    server = ScriptedServer()
    server.replies = asyncio.Event()
    async with serving(tmp_path, server) as client:
        sampler = await make_sampler(client)
        await ask(client, sampler, 0, tokens=(1,) * 9)  # alone, a longer one is taken
        assert "9 prompt tokens, of at most 5" in await refused(client, sampler, 1)
        server.replies.set()
        (one,) = (await poll(client, sampler))[0]
        assert await fetch(client, one) == 200
        await ask(client, sampler, 1)


async def test_the_server_has_so_many_at_once(tmp_path: Path) -> None:
    server = CountedServer()
    server.replies = asyncio.Event()
    async with serving(tmp_path, server) as client:
        sampler = await make_sampler(client)
        asked = await ask(client, sampler, *range(samples.AT_ONCE + 40))
        await turns()
        server.replies.set()
        assert [await fetch(client, one) for one in asked] == [200] * len(asked)
    assert server.most_running == samples.AT_ONCE


async def test_a_client_that_polls_no_more_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "MOST_KEPT", 2)
    async with serving(tmp_path, ScriptedServer()) as client:
        sampler = await make_sampler(client)
        await poll(client, sampler, timeout=0)
        for one in await ask(client, sampler, 0, 1, 2):
            await fetch(client, one)
        assert "more than 2 samples ended" in await refused(client, sampler, 3)
        told, cursor = await poll(client, sampler)
        await poll(client, sampler, cursor, timeout=0, retrieved_request_ids=list(told))
        await ask(client, sampler, 3)


async def refused(client: Any, sampler: str, number: int) -> str:
    """What a request that is refused for now is told."""
    prompt = {"chunks": [{"type": "encoded_text", "tokens": [1, 2]}]}
    asked = {"sampling_session_id": sampler, "prompt": prompt, "seq_id": number}
    reply = await client.post("asample", asked)
    assert reply.status_code == 429, reply.text
    return str(reply.json()["detail"])
