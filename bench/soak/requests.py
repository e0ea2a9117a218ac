"""The soak of requests: a server answers chats of several kinds, and takes a training step now and then.

Of 20 requests 14 are plain chats, 3 are streamed, 2 belong to one of many rollouts, and 1 names a model that
there is not, which is refused. Some connections are closed within a streamed reply.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from bench.serving.load import requests
from bench.serving.served import Served, serving, train_once
from bench.soak.disk import measure_disk
from bench.soak.points import LOOKS, Logbook, Point
from bench.soak.processes import look_at_family
from bench.soak.views import measure_views

PROJECT, NAME = "bench", "player"
VIEWS_EVERY = 100_000
"""Requests between two openings of the pages; the last look opens them, too."""
CONNECTIONS, TOKENS, AT_ONCE = 32, 2, 2000
"""Connections, tokens of a reply, and the most requests that are prepared together."""
SHARES: Mapping[str, int] = {"plain": 14, "streamed": 3, "rollouts": 2, "refused": 1}
FIELDS: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "streamed": {"stream": True},
    "rollouts": {"rollouts": 100},
    "refused": {"model": "nobody"},
}
HANG_UPS = 4
"""Streamed replies of a part whose connection is closed within."""
KEEP_STEPS = 2
CONTROL = {"keep_samples_steps": KEEP_STEPS, "max_off_policy_steps": 1, "token_steps": KEEP_STEPS}
LIMITS = {"remembered_tokens": 300_000}
"""It is reached after some thousand requests: what grows afterwards grows for ever."""
NUMBERS = 1_000_000
"""Of a batch of requests, so that no two batches have the same."""

PLACES = 16
"""At least the batches of a part."""


def run_requests(folder: Path, records: Path, *, total: int, looks: int = LOOKS) -> list[Point]:
    """Sends requests until the run has `total`, and returns the looks of this start. Raises SystemExit where
    a request gets another answer than it should.
    """
    folder.mkdir(parents=True, exist_ok=True)
    data_dir = folder / "data"
    book = Logbook(records, "requests", folder)
    part = max(sum(SHARES.values()), total // looks)
    points: list[Point] = []
    if book.done >= total:
        return points
    with serving("art/nano-games", data_dir, control=CONTROL, limits=LIMITS) as served:
        assert served.process.pid is not None
        for done in range(book.done, total, part):
            seconds = ask_part(served, part, first=done)
            train_once(served, f"{book.run}-{book.start}-{done}")
            keep = {"keep_steps": list[int]()}
            served.http.post(f"/art/models/{PROJECT}/{NAME}/delete_checkpoints", json=keep).raise_for_status()
            at = done + part
            opened = at >= total or at // VIEWS_EVERY > done // VIEWS_EVERY
            points.append(
                book.add(
                    at,
                    processes=look_at_family(served.process.pid),
                    disk=measure_disk(data_dir, PROJECT, NAME),
                    seconds=seconds,
                    views=measure_views(data_dir, PROJECT, NAME, explain=False) if opened else {},
                )
            )
    return points


def ask_part(served: Served, count: int, *, first: int) -> float:
    """Sends so many requests of all kinds, and returns the median seconds of a plain one. Raises SystemExit
    for an answer that is not the expected one.
    """
    seconds: list[float] = []
    for place, (kind, size) in enumerate(batches(count)):
        job = {"requests": size, "connections": min(CONNECTIONS, size), "max_tokens": TOKENS}
        numbers = {"first": (first // count * PLACES + place) % 2_000 * NUMBERS}
        done = asyncio.run(requests(served.chats(**job, **numbers, **FIELDS[kind])))
        expected = size if kind == "refused" else 0
        if done["failed"] != expected:
            raise SystemExit(f"{done['failed']} of {size} requests failed ({kind}): {done['errors']}")
        if kind == "plain":
            seconds += done["seconds"]
    for number in range(HANG_UPS):
        hang_up(served, number)
    return median(seconds)


def batches(count: int) -> Iterator[tuple[str, int]]:
    """Yields kind and size of each batch.

    >>> list(batches(40))
    [('plain', 28), ('streamed', 6), ('rollouts', 4), ('refused', 2)]
    """
    for kind, share in SHARES.items():
        left = count * share // sum(SHARES.values())
        while left > 0:
            yield kind, min(left, AT_ONCE)
            left -= AT_ONCE


def hang_up(served: Served, number: int) -> None:
    """Begins a streamed reply, and closes the connection after its first line."""
    chat = {"role": "user", "content": f"Say yes, no or maybe. {number}"}
    body = {"model": NAME, "messages": [chat], "max_tokens": 200, "stream": True}
    with served.http.stream("POST", "/v1/chat/completions", json=body) as reply:
        reply.raise_for_status()
        next(reply.iter_lines())
