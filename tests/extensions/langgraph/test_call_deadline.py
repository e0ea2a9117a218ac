"""A call of the chat model ends at its deadline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import art
from art.errors import ConfigurationError, DeadlineError
from art.langgraph import init_chat_model

pytestmark = pytest.mark.slow

LATE = r"more than invoke_timeout=0.2 s"


@pytest.fixture
async def silent_model() -> AsyncIterator[art.Model[Any, Any]]:
    """A model whose server never answers."""

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(wait, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    yield art.Model(
        name="judge",
        project="p",
        inference_base_url=f"http://127.0.0.1:{port}/v1",
        inference_api_key="k",
        inference_model_name="judge",
    )
    server.close()


async def test_an_awaited_call_and_a_stream(silent_model: art.Model[Any, Any]) -> None:
    chat = init_chat_model(silent_model, invoke_timeout=0.2)
    with pytest.raises(DeadlineError, match=LATE):
        await chat.ainvoke("hello")
    with pytest.raises(DeadlineError, match=LATE):
        async for _ in chat.astream("hello"):
            pass


async def test_a_call_that_blocks(silent_model: art.Model[Any, Any]) -> None:
    chat = init_chat_model(silent_model, invoke_timeout=0.2, timeout=2, max_retries=0)
    with pytest.raises(DeadlineError, match=LATE):
        await asyncio.to_thread(chat.invoke, "hello")


def test_a_deadline_is_a_number_above_0_or_none() -> None:
    assert (
        init_chat_model().invoke_timeout == 600
        and init_chat_model(invoke_timeout=None).invoke_timeout is None
    )
    with pytest.raises(ConfigurationError, match="invoke_timeout=0"):
        init_chat_model(invoke_timeout=0)
