"""A limit is a limit, also with many questions at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from art.errors import BudgetExceededError, ConfigurationError, LlmUnavailableError
from art.rewards.llm import Budget, Channel, Request, Usage, resolve_llm
from art.rewards.llm.params import FREE
from art_extensions.testing import LlmServer, Mischief
from waiting import until


def question(text: str, **options: Any) -> Request:
    return Request(messages=({"role": "user", "content": text},), **options)


def judge(server: LlmServer, **params: Any) -> Any:
    return resolve_llm("judge", base_url=server.base_url, api_key=server.key, params=params)


async def outcomes(channel: Channel, count: int) -> list[Any]:
    asked = (channel.ask(question(f"question {number}")) for number in range(count))
    return await asyncio.gather(*asked, return_exceptions=True)


async def test_calls_stop_at_the_limit_and_nothing_more_is_asked() -> None:
    async with LlmServer(lambda body: "x", delay=0.02) as server:
        budget = Budget(calls=7)
        ended = await outcomes(Channel(judge(server), budget=budget), 20)
    refused = [one for one in ended if isinstance(one, BudgetExceededError)]
    assert (len(server.requests), len(refused), budget.spent.calls) == (7, 13, 7)
    assert "calls=7 and 7 used" in str(refused[0])


async def test_attempts_that_fail_count_as_calls() -> None:
    async with LlmServer(lambda body: "x", mischief=Mischief(fault=1)) as server:
        channel = Channel(judge(server), budget=Budget(calls=2), attempts=4, first_wait=0.01)
        with pytest.raises(BudgetExceededError):
            await channel.ask(question("hello"))
    assert len(server.requests) == 2


async def test_tokens_set_aside_are_given_back() -> None:
    """Each question sets aside far more than it uses: all are asked, some after others."""
    async with LlmServer(lambda body: "x" * 40, delay=0.01) as server:
        budget = Budget(tokens=1500)
        channel = Channel(judge(server), budget=budget)
        ended = await outcomes(channel, 30)
    assert not any(isinstance(one, Exception) for one in ended)
    used = channel.totals.prompt_tokens + channel.totals.completion_tokens
    assert budget.spent.tokens == used < 1500


async def test_tokens_end_at_the_limit() -> None:
    async with LlmServer(lambda body: "x" * 400) as server:
        budget = Budget(tokens=2000)
        ended = await outcomes(Channel(judge(server, max_tokens=100), budget=budget), 60)
    answered = sum(not isinstance(one, Exception) for one in ended)
    assert 0 < answered < 60 and budget.spent.tokens <= 2000


async def test_money_ends_at_the_limit_and_channels_share_it() -> None:
    price = {"input_cost_per_token": 0, "output_cost_per_token": 0.01}
    async with LlmServer(lambda body: "x" * 40) as server:  # 11 tokens
        budget = Budget(usd=1.15)
        asked = [
            one
            for name in ("a", "b")
            for one in [Channel(judge(server, **price, max_tokens=11, user=name), budget=budget)]
        ]
        ended = [await outcomes(channel, 8) for channel in asked]
    answered = sum(not isinstance(one, Exception) for group in ended for one in group)
    assert answered == 10 and budget.spent.usd == pytest.approx(1.1)


def test_money_without_a_price_is_refused_at_once() -> None:
    llm = resolve_llm("judge", base_url="http://127.0.0.1:9/v1")
    with pytest.raises(ConfigurationError, match="needs the price of 'judge'"):
        Channel(llm, budget=Budget(usd=1))
    Channel(llm, budget=Budget(calls=1))
    Channel(resolve_llm("ollama/qwen3"), budget=Budget(usd=1))


@pytest.mark.parametrize("limit", [0, -1, float("nan")])
def test_a_limit_is_above_nothing(limit: Any) -> None:
    with pytest.raises(ConfigurationError, match="above 0"):
        Budget(usd=limit)


async def test_what_a_cancelled_question_set_aside_is_given_back() -> None:
    asked: list[str] = []

    async def never(body: Any) -> str:
        asked.append(body["messages"][0]["content"])
        await asyncio.Event().wait()
        return "x"

    async with LlmServer(never) as server:
        budget = Budget(tokens=600)
        channel = Channel(judge(server), budget=budget, attempts=1)
        first = asyncio.create_task(channel.ask(question("a")))
        waiting = asyncio.create_task(channel.ask(question("b")))
        await until(lambda: asked == ["a"])
        first.cancel()
        await until(lambda: asked == ["a", "b"])  # it has the first one's room now
        assert not waiting.done() and channel.pace.running == 1
        waiting.cancel()
    reserved = await budget.reserve(question("c", max_tokens=500), FREE)
    budget.charge(reserved, Usage(completion_tokens=1))
    assert budget.spent.tokens == 1 and issubclass(LlmUnavailableError, Exception)


@pytest.mark.parametrize("trouble", ["refusal", "hang"])
async def test_what_is_paid_without_an_answer_counts_as_what_was_set_aside(trouble: str) -> None:
    async with LlmServer(lambda body: "x", mischief=Mischief(**{trouble: 1.0})) as server:
        budget = Budget(tokens=3000)
        deadline = 0.2 if trouble == "hang" else 60.0
        channel = Channel(judge(server), budget=budget, attempts=1, deadline=deadline)
        ended = await outcomes(channel, 12)
    assert any(isinstance(one, BudgetExceededError) for one in ended) and budget.spent.tokens > 2000


async def test_tokens_that_nobody_counts_are_estimated() -> None:
    budget = Budget(tokens=3000)
    ended = await outcomes(Channel(resolve_llm(lambda messages: "x"), budget=budget), 12)
    assert 0 < sum(isinstance(one, BudgetExceededError) for one in ended) < 12
    assert 2000 < budget.spent.tokens <= 3000


async def test_a_character_of_several_bytes_may_be_a_token() -> None:
    latin, chinese = [await Budget().reserve(question(one * 3000), FREE) for one in ("a", "\u6587")]
    assert chinese.tokens > latin.tokens + 1900
