"""No callback of the server's loop works through what a body holds, whatever that is.

Each field of each dialect, held against 50 ms: `make loop-times`.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from loop_times import Case, all_cases, measured_server

from loop_time import MOST_S, watched_callbacks

pytestmark = [pytest.mark.slow, pytest.mark.extension]

CASES = [
    Case("/v1/chat/completions", "messages", "texts"),
    Case("/v1/chat/completions", "messages", "as many messages as may be"),
    Case("/v1/chat/completions", "tools", "20,000 tools"),
    Case("/v1/chat/completions", "stop", "texts"),
    Case("/v1/chat/completions", "response_format", "a schema"),
    Case("/v1/completions", "model", "a text"),
    Case("/v1/completions", "prompt", "numbers"),
    Case("/inference/v1/generate", "token_ids", "ids of a model"),
    Case("/v1/messages", "messages", "images"),
    Case("/v1/responses", "input", "deep ones"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.path} {case.field} {case.kind}")
async def test_no_callback_takes_long(tmp_path: Path, case: Case) -> None:
    assert case in set(all_cases())
    async with measured_server(tmp_path) as server:
        status, _ = await server.status_of(case)
    assert status < 500 and not server.found.too_long()


async def test_a_callback_that_takes_long_is_seen() -> None:
    def compute(until: float) -> None:
        while time.thread_time() < until:
            pass

    with watched_callbacks() as found:
        long = 3 * found.speed.allowed(MOST_S)
        asyncio.get_running_loop().call_soon(lambda: compute(time.thread_time() + long))
        await asyncio.to_thread(compute, 0.0)
        await asyncio.to_thread(lambda: compute(time.thread_time() + long))
    (one,) = found.too_long()
    assert "test_a_callback_that_takes_long_is_seen" in one[1] and found.callbacks > 3
