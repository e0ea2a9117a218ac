"""What the gateway costs a request, against the engine's worker asked directly, as an agent asks.

Both are asked for the same prompts (each goes on with a conversation of four turns), seeds and lengths, hence
the same tokens, of the same weights.

added, p50      one process asks both, each request of one right after the same of the other, in an order
                drawn by lot: the median of the differences, and its bootstrap interval. Replies are short and
                of one length, so that sampling hides little. With 8 at a time there are 8 such processions
                side by side; with 64 a request mostly waits, and nothing is told apart.
throughput      one at a time: of the same pairs. More: the two take turns as wholes, replies of 16 to 112
                tokens.
CPU             of the server's process: on two cores the engine has one, server and load share the other.
"""

from __future__ import annotations

import asyncio
import random
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from art.rendering.registry import create_chat_renderer
from bench.rows import Row
from bench.sampling.engine import OPTIONS
from bench.sampling.workers import running_engine
from bench.serving.served import Served, answer, start

OVERHEAD_MS = 3.0
"""Less than so much is not told apart."""
THROUGHPUT = 0.95
PAIRS = {1: 300, 8: 600}
"""At a time -> altogether."""
PAIR_TOKENS = 8
REQUESTS = {8: 64, 64: 256}
REPLY_TOKENS = (16, 112)
REPETITIONS = 3
RESAMPLES = 2000
TURNS, CONVERSATIONS = 4, 16


async def overhead_rows(served: Served, base: Path) -> list[Row]:
    conversations, prompts = conversations_of(served)
    stops = create_chat_renderer(base, name="base").stop_token_ids
    rows = []
    async with running_engine(base, OPTIONS) as engine:
        worker = {
            "worker_port": int(engine.url.rpartition(":")[2]),
            "worker_key": engine._headers["Authorization"].split()[1],
            "prompts": prompts,
            "stop_token_ids": stops,
        }
        load = served.chats(model=str(base), conversations=conversations, stream=False, **worker)
        for count in sorted({*PAIRS, *REQUESTS}):
            if count in PAIRS:
                rows += await paired_rows(served, load, count)
            if count in REQUESTS:
                rows += await turn_rows(served, load, count)
    return rows


async def paired_rows(served: Served, load: dict[str, Any], count: int) -> list[Row]:
    job = {**load, "kind": "paired", "connections": count, "max_tokens": PAIR_TOKENS}
    await ask({**job, "requests": 8 * count, "first": 0})
    before = served.cpu()
    pairs = (await ask({**job, "requests": PAIRS[count], "first": 100_000}))["pairs"]
    cpu = 1000 * (served.cpu() - before) / len(pairs)
    added = [1000 * (ours - theirs) for ours, theirs in pairs]
    more, (low, high) = statistics.median(added), interval(added)
    rows = [
        Row(name=f"{count} at a time: what the gateway adds to a request, p50 ({low:.1f} to {high:.1f})",
            ours=more, unit="ms", goal=OVERHEAD_MS, at_most=True),
    ]  # fmt: skip
    if count not in REQUESTS:
        ours, theirs = (count * len(pairs) / sum(side) for side in zip(*pairs, strict=True))
        rows += [rate_row(count, ours, theirs, ours / theirs), cpu_row(count, cpu)]
    return rows


async def turn_rows(served: Served, load: dict[str, Any], count: int) -> list[Row]:
    """Gateway and worker loaded in turns; the first repetition warms up."""
    shape = {"connections": count, "requests": REQUESTS[count], "max_tokens": REPLY_TOKENS}
    turns, cpu = [], []
    for repetition in range(REPETITIONS + 1):
        job = {**load, **shape, "first": (repetition + 2) * 100_000}
        before = served.cpu()
        ours = await ask(job)
        spent = served.cpu() - before
        theirs = await ask({**job, "kind": "direct"})
        if repetition:
            turns.append((REQUESTS[count] / ours["wall"], REQUESTS[count] / theirs["wall"]))
            cpu.append(1000 * spent / REQUESTS[count])
    rate, peer = (statistics.median(side) for side in zip(*turns, strict=True))
    ratio = statistics.median(ours / theirs for ours, theirs in turns)
    return [rate_row(count, rate, peer, ratio), cpu_row(count, statistics.median(cpu))]


def rate_row(count: int, ours: float, theirs: float, ratio: float) -> Row:
    return Row(name=f"{count} at a time: requests a second, against the engine's worker", ours=ours,
               peer=theirs, unit="requests/s", ratio=ratio,
               goal=THROUGHPUT if count == max(REQUESTS) else None)  # fmt: skip


def cpu_row(count: int, cpu: float) -> Row:
    return Row(name=f"{count} at a time: CPU of the server for a request", ours=cpu, unit="ms")


async def ask(job: dict[str, Any]) -> dict[str, Any]:
    return await asyncio.to_thread(lambda: answer(start(job)))


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Of the median, 95 %: percentiles of the medians of resampled values (Efron's bootstrap)."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return medians[RESAMPLES // 40], medians[-RESAMPLES // 40]


def conversations_of(served: Served) -> tuple[list[list[dict[str, Any]]], list[list[int]]]:
    """What agents would ask next, and the ids of each as the gateway sends them."""
    conversations, prompts = [], []
    for number in range(CONVERSATIONS):
        messages: list[dict[str, Any]] = []
        for turn in range(TURNS):
            messages.append({"role": "user", "content": f"Turn {turn} of {number}: yes, no or maybe?"})
            body = {"model": "player", "messages": messages, "max_tokens": 24, "seed": number}
            choice = (
                served.http.post("/v1/chat/completions", json=body).raise_for_status().json()["choices"][0]
            )
            if turn + 1 < TURNS:
                messages.append(choice["message"])
        conversations.append(messages)
        prompts.append(served.http.get(f"/v1/samples/{choice['sample_id']}").json()["prompt_ids"])
    return conversations, prompts
