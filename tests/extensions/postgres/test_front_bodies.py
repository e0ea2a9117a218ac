"""A gateway reads a body to find its model: the bytes count for its tenant."""

from __future__ import annotations

from typing import Any

import pytest

from art.errors import OverloadedError
from art.server.http import BodyMemory
from art_extensions.postgres.front import _Body


async def test_a_gateway_counts_what_it_reads_to_find_the_model() -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b" " * 60, "more_body": True}

    memory = BodyMemory(100, 1000)
    with memory.use("bob") as held, memory.use("bob") as use:
        held.add(10)
        with pytest.raises(OverloadedError, match="you have 70 bytes"):
            await _Body(receive).read(10_000, use)
    assert not memory.bytes_of
