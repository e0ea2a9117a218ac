from __future__ import annotations

import asyncio

import pytest

import art


def flaky(failures: int, error: type[Exception] = KeyError):
    calls: list[int] = []

    def work(x: int) -> int:
        calls.append(x)
        if len(calls) <= failures:
            raise error(len(calls))
        return x * 2

    return work, calls


def test_max_attempts_counts_all_calls_and_the_last_error_is_raised():
    work, calls = flaky(5)
    with pytest.raises(KeyError, match="3"):
        art.retry(max_attempts=3, delay=0)(work)(1)
    assert len(calls) == 3


async def test_async_functions_are_awaited_again():
    work, calls = flaky(2)
    seen: list[tuple[str, int]] = []

    @art.retry(delay=0, on_retry=lambda error, attempt: seen.append((repr(error), attempt)))
    async def again(x: int) -> int:
        return work(x)

    assert await again(4) == 8
    assert len(calls) == 3 and seen == [("KeyError(1)", 1), ("KeyError(2)", 2)]
    assert again.__name__ == "again"


async def test_calls_at_the_same_time_have_their_own_attempts():
    works = [flaky(number % 3) for number in range(30)]

    @art.retry(max_attempts=3, delay=0.001)
    async def again(number: int) -> int:
        await asyncio.sleep(0)
        return works[number][0](number)

    assert await asyncio.gather(*map(again, range(30))) == [2 * number for number in range(30)]
    assert [len(calls) for _, calls in works] == [number % 3 + 1 for number in range(30)]


def test_only_the_named_errors_are_tried_again():
    work, calls = flaky(1, TypeError)
    with pytest.raises(TypeError):
        art.retry(exceptions=(KeyError,), delay=0)(work)(1)
    assert len(calls) == 1


def test_zero_attempts_are_refused():
    with pytest.raises(ValueError, match="max_attempts=0"):
        art.retry(max_attempts=0)


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_the_pauses_grow_and_the_log_tells(kind, monkeypatch, caplog):
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr("time.sleep", pauses.append)
    monkeypatch.setattr("asyncio.sleep", sleep)
    work, _ = flaky(3)
    again = art.retry(max_attempts=4, delay=0.5, backoff_factor=3)
    if kind == "sync":
        assert again(work)(1) == 2
    else:

        async def working(x: int) -> int:
            return work(x)

        assert await again(working)(1) == 2
    assert pauses == [0.5, 1.5, 4.5]
    name = "work" if kind == "sync" else "working"
    assert caplog.records[0].getMessage() == f"{name}: attempt 1 of 4 failed: KeyError(1)"
