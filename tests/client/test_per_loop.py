"""Clients that outlive an event loop: notebooks, programs that call `asyncio.run` again and again."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import openai
import pytest
from wire_double import KEY, Double

import art
from art.client.http.openai_client import ObservedOpenAI, openai_client, plain_client

ASK = [{"role": "user", "content": "x"}]
LOOPS = 4


async def plain(client: ObservedOpenAI) -> None:
    await client.chat.completions.create(model="m", messages=ASK)


async def with_headers(client: ObservedOpenAI) -> None:
    await client.chat.completions.create(model="m", messages=ASK, extra_headers={"x-mine": "1"})


async def several(client: ObservedOpenAI) -> None:
    await asyncio.gather(*(with_headers(client) for _ in range(5)))


@pytest.mark.slow
@pytest.mark.parametrize("make", [openai_client, plain_client])
@pytest.mark.parametrize("ask", [plain, with_headers, several])
def test_one_client_serves_one_event_loop_after_the_other(
    server: str,
    double: Double,
    make: Callable[..., ObservedOpenAI],
    ask: Callable[[Any], Coroutine[Any, Any, None]],
):
    client = make(base_url=f"{server}/v1", api_key=KEY)
    client = client.with_options(max_retries=0)  # a failure is not hidden by a second try
    for _ in range(LOOPS):
        asyncio.run(ask(client))
    assert double.asked["/v1/chat/completions"] == LOOPS * (5 if ask is several else 1)


@pytest.mark.slow
def test_threads_with_loops_of_their_own_share_a_client(server: str):
    client = plain_client(base_url=f"{server}/v1", api_key=KEY).with_options(max_retries=0)
    failures: list[Exception] = []

    def work() -> None:
        for _ in range(3):
            try:
                asyncio.run(several(client))
            except (RuntimeError, openai.OpenAIError) as error:
                failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def run(asking: Coroutine[Any, Any, None]) -> asyncio.AbstractEventLoop:
    """Like `asyncio.run`, telling the loop that it closed."""
    with asyncio.Runner() as runner:
        runner.run(asking)
        return runner.get_loop()


@pytest.mark.slow
def test_connections_of_closed_loops_are_let_go(server: str):
    client = openai_client(base_url=f"{server}/v1", api_key=KEY)
    assert client.lane is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # nobody could close them: their loop is gone
        loops = [weakref.ref(run(ask(client))) for _ in range(LOOPS) for ask in (plain, with_headers)]
        gc.collect()
    assert len([loop for loop in loops if loop() is not None]) <= 2


async def test_a_closed_client_says_so(server: str):
    client = plain_client(base_url=f"{server}/v1", api_key=KEY)
    await plain(client)
    await client.close()
    with pytest.raises(RuntimeError, match="closed"):
        await client._client.send(client._client.build_request("GET", server))


@pytest.mark.slow
def test_a_backend_answers_in_one_loop_after_the_other(backend: art.RemoteBackend, model):
    asyncio.run(model.register(backend))
    for _ in range(LOOPS):
        assert asyncio.run(model.get_step()) == 0
    asyncio.run(backend.close())
    asyncio.run(backend.close())
