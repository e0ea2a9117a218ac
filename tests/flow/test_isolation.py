"""What one tenant does, the results of another do not show: floods, huge requests, errors, queues of jobs."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from art.client.backends.local_server import ServerProcess
from art.server.tenants import TENANTS_FILE, Tenants

pytestmark = pytest.mark.slow

SERVER = {"engine": {"options": {"threads": 1}}, "trainer": {"options": {"threads": 1}}}
LORA = {"r": 4, "alpha": 8}
REQUESTS = 12

Sampled = tuple[list[int], list[float]]
"""Ids and logprobs of a completion."""


@contextlib.asynccontextmanager
async def tenants_of_a_server(folder: Path, *names: str) -> AsyncIterator[list[httpx.AsyncClient]]:
    """A real server with its workers, and a client for each tenant."""
    server = ServerProcess(folder, SERVER)
    server.ensure_running()
    tenants = Tenants(folder / "server" / TENANTS_FILE)
    limits = httpx.Limits(max_connections=None)
    async with contextlib.AsyncExitStack() as open_clients:
        open_clients.callback(server.stop)
        yield [
            await open_clients.enter_async_context(
                httpx.AsyncClient(
                    base_url=server.url,
                    headers={"authorization": f"Bearer {tenants.create(name)}"},
                    timeout=240,
                    trust_env=False,
                    limits=limits,
                )
            )
            for name in names
        ]


@dataclass(frozen=True, kw_only=True)
class Results:
    """What a model has sampled before and after its training, and the weights that it was trained to."""

    before: list[Sampled]
    after: list[Sampled]
    weights: str


async def work(client: httpx.AsyncClient, name: str) -> Results:
    """Sample with seeds, train on given conversations, sample again."""
    model = {"project": "p", "name": name, "base_model": "art/nano", "lora": LORA, "seed": 5}
    (await client.post("/art/models", json=model)).raise_for_status()
    before = await sampled(client, name)
    await trained(client, name, "job")
    files = (await client.get(f"/art/models/p/{name}/checkpoints/1/files")).raise_for_status().json()["files"]
    weights = files["adapter_model.safetensors"]["sha256"]
    return Results(before=before, after=await sampled(client, name), weights=weights)


async def sampled(client: httpx.AsyncClient, name: str) -> list[Sampled]:
    async def one(seed: int) -> Sampled:
        reply = await chat(client, name, f"Say yes, no or maybe. {seed % 3}", seed=seed, max_tokens=24)
        sample = reply.raise_for_status().json()["choices"][0]["sample_id"]
        told = (await client.get(f"/v1/samples/{sample}")).raise_for_status().json()
        return told["completion_ids"], told["completion_logprobs"]

    return await asyncio.gather(*(one(seed) for seed in range(REQUESTS)))


async def chat(client: httpx.AsyncClient, name: str, text: str, **fields: Any) -> httpx.Response:
    body = {"model": name, "messages": [{"role": "user", "content": text}], **fields}
    return await client.post("/v1/chat/completions", json=body)


async def trained(client: httpx.AsyncClient, name: str, job_id: str) -> None:
    conversations = [
        {
            "name": str(number),
            "messages": [
                {"role": "user", "content": f"Say yes, no or maybe. {number}"},
                {"role": "assistant", "content": "maybe"},
            ],
        }
        for number in range(8)
    ]
    job = {
        "job_id": f"{name}-{job_id}",
        "conversations": conversations,
        "batches": [list(range(8))] * 3,
        "learning_rates": [1e-2] * 3,
        "optimizer": {"learning_rate": None},
    }
    (await client.post(f"/art/models/p/{name}/train_sft", json=job)).raise_for_status()
    async with client.stream("GET", f"/art/jobs/{name}-{job_id}/events") as reply:
        lines = [line async for line in reply.aiter_lines() if line.strip()]
    assert '"type":"result"' in lines[-1], lines[-1]


async def be_loud(client: httpx.AsyncClient, seen: Counter[int]) -> None:
    """Floods, huge requests, mistakes and jobs, until cancelled; `seen` counts the answers by status."""
    for name in ("one", "two"):
        model = {"project": "p", "name": name, "base_model": "art/nano", "lora": LORA}
        (await client.post("/art/models", json=model)).raise_for_status()

    async def again(number: int) -> None:
        for turn in itertools.count():
            text = f"{number} {turn} " + "yes no maybe " * (number % 4) * 10
            reply = await chat(client, "one", text, max_tokens=100, n=100 if number == 0 else 8)
            seen[reply.status_code] += 1
            if reply.status_code == 429:
                await asyncio.sleep(0.05)

    async def mistakes() -> None:
        for bad in itertools.cycle(({"temperature": -1}, {"max_tokens": 0}, {"model": "m"}, {"n": 10**9})):
            seen[(await chat(client, "one", "x", **bad)).status_code] += 1
            seen[(await chat(client, "one", "x " * 100_000)).status_code] += 1
            await asyncio.sleep(0.02)

    async def jobs(name: str) -> None:
        for number in itertools.count():
            await asyncio.gather(*(trained(client, name, f"{number}-{at}") for at in range(3)))

    await asyncio.gather(*(again(number) for number in range(40)), mistakes(), jobs("one"), jobs("two"))


def same(
    ours: Sequence[tuple[list[int], list[float]]], theirs: Sequence[tuple[list[int], list[float]]]
) -> None:
    """The ids are the same; the logprobs, whose last bits depend on who shares the batch, nearly."""
    assert [ids for ids, _ in ours] == [ids for ids, _ in theirs]
    for (_, some), (_, others) in zip(ours, theirs, strict=True):
        assert some == pytest.approx(others, abs=1e-4)


async def test_a_loud_tenant_leaves_the_results_of_another_unchanged(tmp_path: Path) -> None:
    async with tenants_of_a_server(tmp_path, "loud", "quiet") as (loud, quiet):
        alone = await work(quiet, "m")
        seen: Counter[int] = Counter()
        noise = asyncio.create_task(be_loud(loud, seen))
        while seen[200] < 20 or seen[400] < 2:
            await asyncio.sleep(0.02)
            assert not noise.done(), noise.exception()
        before = seen[200]
        async with asyncio.timeout(240):
            disturbed = await work(quiet, "n")
        assert not noise.done() and seen[200] > before, "it was loud until the end"
        noise.cancel()
        await asyncio.gather(noise, return_exceptions=True)
        assert set(seen) <= {200, 400, 404, 429}, seen
        same(disturbed.before, alone.before)
        assert disturbed.weights == alone.weights, "byte for byte"
        same(disturbed.after, alone.after)
        assert alone.before != alone.after
