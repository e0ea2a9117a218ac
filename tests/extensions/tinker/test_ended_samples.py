"""One poll for all samples of a client: what ended since its cursor, and what a killed process never ends."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from scripted_service import Client, ScriptedServer, serving

pytestmark = pytest.mark.slow  # the store is on disk
CLONE = 1_000_000_000


async def make_sampler(client: Client) -> str:
    asked = {
        "session_id": await client.session(),
        "sampling_session_seq_id": 0,
        "base_model": "art/nano-games",
    }
    return str((await client.post("create_sampling_session", asked)).json()["sampling_session_id"])


async def ask(client: Client, sampler: str, *numbers: int, tokens: tuple[int, ...] = (1, 2)) -> list[str]:
    asked = {
        "sampling_session_id": sampler,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": tokens}]},
        "sampling_params": {"max_tokens": 1},
    }
    return [
        str((await client.post("asample", {**asked, "seq_id": number})).json()["request_id"])
        for number in numbers
    ]


async def poll(
    client: Client, sampler: str, cursor: int = 0, *, clone: int = 0, **more: Any
) -> tuple[dict[str, str], int]:
    """What ended, and how; the next cursor."""
    target = {"type": "sampling_session", "sampling_session_id": sampler, "cloned_sampler_id": clone}
    reply = await client.post("retrieve_futures", {"target": target, "prev_cursor": cursor, **more})
    assert reply.status_code == 200, reply.text
    found = reply.json()
    return {one["request_id"]: one["state"] for one in found["completions"]}, found["cursor"]


async def poll_two(client: Client, sampler: str, cursor: int) -> tuple[dict[str, str], int]:
    told, cursor = await poll(client, sampler, cursor)
    while len(told) < 2:
        more, cursor = await poll(client, sampler, cursor)
        told |= more
    return told, cursor


async def fetch(client: Client, request: str) -> int:
    return (await client.post("retrieve_future", {"request_id": request})).status_code


async def test_each_client_of_a_sampler_is_told_once_what_ended(tmp_path: Path) -> None:
    server = ScriptedServer()
    server.replies = asyncio.Event()
    async with serving(tmp_path, server) as client:
        sampler = await make_sampler(client)
        first, other = await ask(client, sampler, 0, 1), await ask(client, sampler, CLONE)
        assert await poll(client, sampler, timeout=0) == ({}, 0)
        waiting = asyncio.create_task(poll_two(client, sampler, 0))
        server.replies.set()
        told, cursor = await waiting
        assert told == dict.fromkeys(first, "finished")
        assert await poll(client, sampler, cursor, timeout=0) == ({}, cursor)
        assert (await poll(client, sampler, clone=1))[0] == {other[0]: "finished"}
        good, wrong = await ask(client, sampler, 2), await ask(client, sampler, 3, tokens=())
        told, cursor = await poll_two(client, sampler, cursor)
        assert told == {good[0]: "finished", wrong[0]: "failed"}
        assert [await fetch(client, one) for one in (*first, *other)] == [200] * 3
        await poll(client, sampler, cursor, timeout=0, retrieved_request_ids=[first[0], other[0], "x"])
        assert [await fetch(client, one) for one in (*first, *other)] == [410, 200, 410]


async def test_a_client_is_told_to_ask_anew_for_what_a_kill_lost(tmp_path: Path) -> None:
    server = ScriptedServer()
    async with serving(tmp_path, server) as client:
        sampler = await make_sampler(client)
        ended = await ask(client, sampler, 0)
        told, cursor = await poll(client, sampler)
        assert list(told) == ended and await fetch(client, ended[0]) == 200
        server.replies = asyncio.Event()
        lost = await ask(client, sampler, 1, 2)
    server.replies = None
    async with serving(tmp_path, server) as client:
        told, cursor = await poll(client, sampler, cursor)
        assert told == dict.fromkeys(lost, "finished")
        assert [await fetch(client, one) for one in lost] == [410, 410]
        anew = await ask(client, sampler, 3)
        told, cursor = await poll(client, sampler, cursor)
        assert list(told) == anew and await fetch(client, anew[0]) == 200


async def test_a_sampler_of_another_key_is_not_polled(tmp_path: Path) -> None:
    async with serving(tmp_path, ScriptedServer()) as client:
        sampler = await make_sampler(client)
        client.key = "tml-ann"
        target = {"sampling_session_id": sampler}
        reply = await client.post("retrieve_futures", {"target": target})
        assert reply.status_code == 404 and "of this key" in reply.json()["detail"]
