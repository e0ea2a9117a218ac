"""Users are counted, and whoever waits for the last one goes on when it has left."""

from __future__ import annotations

import asyncio

import pytest

from art.process.in_use import InUse


def test_a_thing_is_in_use_until_its_last_user_left() -> None:
    in_use = InUse[str]()
    with in_use.using("a"), pytest.raises(ValueError, match="mine"):
        with in_use.using("a"), in_use.using("b"), in_use.using(None):
            assert in_use.count("a") == 2 and sorted(in_use) == ["a", "b"]
            raise ValueError("mine")
    assert "a" not in in_use and not list(in_use) and in_use.count("a") == 0


async def test_who_waits_goes_on_with_the_last_user_or_at_its_deadline() -> None:
    in_use = InUse[str]()
    await in_use.wait_until_unused("a", 0.01)
    in_use.enter("a")
    in_use.enter("a")
    with pytest.raises(TimeoutError):
        await in_use.wait_until_unused("a", 0.01)
    waiting = [asyncio.create_task(in_use.wait_until_unused("a", 60)) for _ in range(2)]
    in_use.leave("a")
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    in_use.leave("a")
    await asyncio.gather(*waiting)
