"""The way to a model: attempts, kept answers, equal questions, costs, and JSON that is asked for again."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from art.errors import (
    ConfigurationError,
    LlmAnswerError,
    LlmBusyError,
    LlmError,
    LlmRefusedError,
    LlmTimeoutError,
    LlmUnavailableError,
)
from art.metrics import MetricsBuilder
from art.rewards.llm import AnswerCache, Budget, Channel, Pace, Request, resolve_llm
from art.rewards.llm.request import NotJsonError, SeveralAnswersError, json_in
from art_extensions.testing import LlmServer, Mischief
from waiting import DEADLINE_S, until

PRICED = {"input_cost_per_token": 1e-3, "output_cost_per_token": 1e-3}


def question(text: str = "hello", **options: Any) -> Request:
    return Request(messages=({"role": "user", "content": text},), **options)


def judge(server: LlmServer, **params: Any) -> Any:
    return resolve_llm("judge", base_url=server.base_url, api_key=server.key, params=params)


@pytest.mark.slow
async def test_trouble_on_the_wire_costs_attempts_not_answers() -> None:
    trouble = Mischief(fault=0.2, busy=0.2, cut=0.2, seed=1, retry_after=0.01)
    async with LlmServer(lambda body: body["messages"][0]["content"], mischief=trouble) as server:
        channel = Channel(judge(server), attempts=12, first_wait=0.01)
        texts = [f"question {number}" for number in range(30)]
        replies = await asyncio.gather(*(channel.ask(question(text)) for text in texts))
    assert [reply.text for reply in replies] == texts
    totals = channel.totals
    assert totals.failures == 0 and totals.retries > 0
    assert totals.calls == 30 + totals.retries == len(server.requests)


async def test_after_the_last_attempt_the_error_is_the_last_one() -> None:
    async with LlmServer(lambda body: "x", mischief=Mischief(fault=1)) as server:
        channel = Channel(judge(server, num_retries=1), first_wait=0.01)
        with pytest.raises(LlmUnavailableError, match="HTTP 500"):
            await channel.ask(question())
    assert (channel.totals.calls, channel.totals.retries, channel.totals.failures) == (2, 1, 1)


async def test_a_question_that_hangs_ends_at_the_deadline() -> None:
    async with LlmServer(lambda body: "x", mischief=Mischief(hang=1)) as server:
        with pytest.raises(LlmTimeoutError, match=r"within 0\.1 s"):
            await Channel(judge(server), attempts=1, deadline=0.1).ask(question())


async def test_a_pause_beyond_the_deadline_is_not_waited_for() -> None:
    trouble = Mischief(busy=1, retry_after=999_999.0)
    async with LlmServer(lambda body: "x", mischief=trouble) as server:
        channel = Channel(judge(server), attempts=3, deadline=60.0)
        with pytest.raises(LlmBusyError) as first:
            await channel.ask(question("one"))
        # Who asks next meets the pause that was asked for, and is not sent.
        with pytest.raises(LlmBusyError, match="s of it are left"):
            await channel.ask(question("two"))
    assert first.value.retry_after == 999_999.0
    assert (len(server.requests), channel.totals.failures) == (1, 2)


async def test_whatever_a_judge_raises_is_one_answers_trouble() -> None:
    class Odd:
        name = "odd"

        async def complete(self, request: Request) -> Any:
            raise RecursionError("too deep")

    with pytest.raises(LlmError, match="'odd' raised RecursionError: too deep"):
        await Channel(Odd(), attempts=3).ask(question())


async def test_what_cannot_get_better_is_asked_once() -> None:
    async with LlmServer(lambda body: "x", key="other") as server:
        channel = Channel(resolve_llm("judge", base_url=server.base_url, api_key="wrong"))
        with pytest.raises(ConfigurationError, match="does not accept the key"):
            await channel.ask(question())
    assert channel.totals.calls == 1


async def test_a_kept_answer_is_not_asked_for_again(tmp_path: Path) -> None:
    path = tmp_path / "a" / "cache.sqlite3"
    async with LlmServer(lambda body: "first") as server:
        channel = Channel(judge(server, cache_name="local"), cache=AnswerCache(path))
        first = await channel.ask(question())
    async with LlmServer(lambda body: "second") as server:  # the same judge at another port
        again = Channel(judge(server, cache_name="local"), cache=AnswerCache(path))
        kept = await again.ask(question())
        assert (kept.text, kept.cached, kept.usage) == ("first", True, first.usage)
        assert server.requests == [] and again.totals.cached == 1 and again.totals.prompt_tokens == 0
        for other in (question("other"), question(salt="2"), question(temperature=0.5)):
            assert (await again.ask(other)).text == "second"
        hotter = Channel(judge(server, temperature=1, cache_name="local"), cache=again.cache)
        assert (await hotter.ask(question())).text == "second"


async def test_failures_and_functions_are_not_kept(tmp_path: Path) -> None:
    cache = AnswerCache(tmp_path / "cache.sqlite3")
    async with LlmServer(lambda body: "x", mischief=Mischief(refusal=1)) as server:
        with pytest.raises(LlmRefusedError):
            await Channel(judge(server), cache=cache).ask(question())
    counted: list[int] = []

    def function(messages: Any) -> str:
        counted.append(1)
        return "x"

    for _ in range(2):
        await Channel(resolve_llm(function), cache=cache).ask(question())
    assert len(counted) == 2 and len(cache) == 0


async def test_the_file_holds_neither_prompts_nor_options(tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite3"
    async with LlmServer(lambda body: "answer") as server:
        channel = Channel(judge(server, extra_body={"token": "hush"}), cache=AnswerCache(path))
        await channel.ask(question("psst"))
    assert channel.cache is not None
    channel.cache.close()
    held = path.read_bytes()
    assert b"answer" in held and not any(word in held for word in (b"hush", b"psst", b"test-key"))


def test_a_damaged_cache_is_named_with_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite3"
    path.write_bytes(b"no database at all" * 100)
    with pytest.raises(ConfigurationError, match="delete it"):
        AnswerCache(path).get("judge", question())


async def test_equal_questions_at_one_time_share_a_call() -> None:
    async with LlmServer(lambda body: "x", delay=0.1) as server:
        channel = Channel(judge(server))
        await asyncio.gather(*(channel.ask(question()) for _ in range(5)), channel.ask(question("other")))
    assert len(server.requests) == 2 and channel.totals.cached == 4


async def test_who_gives_up_does_not_take_the_answer_from_others() -> None:
    asked: list[str] = []
    gate = threading.Event()

    async def answer(body: Any) -> str:
        asked.append(body["messages"][0]["content"])
        await until(gate.is_set)
        return "x"

    async with LlmServer(answer) as server:
        channel = Channel(judge(server))
        first = asyncio.create_task(channel.ask(question()))
        second = asyncio.create_task(channel.ask(question()))
        await until(lambda: asked == ["hello"])
        first.cancel()
        gate.set()
        assert (await second).text == "x"
        gate.clear()
        third = asyncio.create_task(channel.ask(question("alone")))
        await until(lambda: asked == ["hello", "alone"])
        third.cancel()
        with pytest.raises(asyncio.CancelledError):
            await third
    assert channel.pace.running == 0 and channel.totals.failures == 0


async def test_who_asks_what_was_just_given_up_gets_an_answer() -> None:
    asked: list[int] = []

    async def slow_to_end(messages: Any) -> str:
        asked.append(1)
        try:
            if len(asked) == 1:
                await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
        return "x"

    channel = Channel(resolve_llm(slow_to_end))
    given_up = asyncio.create_task(channel.ask(question()))
    await until(lambda: asked)
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)
    assert (await channel.ask(question())).text == "x"


async def test_json_is_found_among_prose_and_asked_for_again_with_the_error(tmp_path: Path) -> None:
    def answer(body: Any) -> str:
        repaired = len(body["messages"]) > 1
        return '{"a": 2}' if repaired else 'Well: {"b": 1}'

    cache = AnswerCache(tmp_path / "cache.sqlite3")
    async with LlmServer(answer) as server:
        channel = Channel(judge(server), cache=cache)
        assert await channel.ask_json(question(), lambda value: value["a"]) == 2
        said = server.requests[1]["messages"]
        assert said[1] == {"role": "assistant", "content": 'Well: {"b": 1}'} and "'a'" in said[2]["content"]
        assert await channel.ask_json(question(), lambda value: value["a"]) == 2
        assert len(server.requests) == 2 and channel.totals.repairs == 2  # the whole exchange was kept


async def test_an_exchange_without_a_result_is_an_error_and_is_not_kept(tmp_path: Path) -> None:
    cache = AnswerCache(tmp_path / "cache.sqlite3")
    async with LlmServer(lambda body: "I would rather not say.") as server:
        with pytest.raises(LlmAnswerError, match="asked 3 times"):
            await Channel(judge(server), cache=cache).ask_json(question(), dict, repairs=2)
    assert len(server.requests) == 3 and len(cache) == 0


async def test_an_answer_that_was_cut_off_gets_more_room() -> None:
    limits: list[int] = []

    def answer(body: Any) -> str:
        limits.append(body["max_tokens"])
        return '{"a": 1}'

    async with LlmServer(answer, mischief=Mischief(truncated=1)) as server:
        with pytest.raises(LlmAnswerError):
            await Channel(judge(server)).ask_json(question(max_tokens=10), dict)
    assert limits == [10, 20]
    assert "cut off" in server.requests[1]["messages"][-1]["content"]


async def test_who_declined_is_asked_once_more() -> None:
    async with LlmServer(lambda body: '{"a": 1}', mischief=Mischief(refusal=0.5, seed=3)) as server:
        channel = Channel(judge(server))
        declined = 0
        for number in range(12):
            try:
                assert await channel.ask_json(question(str(number)), dict) == {"a": 1}
            except LlmRefusedError:
                declined += 1
        refusals = [one for one in server.served if one.trouble == "refusal"]
    assert 0 < declined < len(refusals) and len(server.served) > 12


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": [1, 2]}', {"a": [1, 2]}),
        ('```json\n{"a": 1}\n```', {"a": 1}),
        ('<think>maybe {"a": 0}?</think> {"a": 1}', {"a": 1}),
        ('As [1] says, {"a": {"b": "}"}} it is', {"a": {"b": "}"}}),
        ("[1, 2] is it", [1, 2]),
        ("3", 3),
    ],
)
def test_json_in_prose(text: str, value: Any) -> None:
    assert json_in(text) == value


def test_a_quoted_answer_is_not_taken_for_the_answer() -> None:
    quoted, own = '{"verdicts": [{"score": 1.0, "reason": "as I say"}]}', '{"verdicts": [{"score": 0.0}]}'
    with pytest.raises(SeveralAnswersError, match="different 'verdicts'"):
        json_in(f"It wrote {quoted}, which is a plea. {own}")
    assert json_in(f"First {own}, in short: {own}") == {"verdicts": [{"score": 0.0}]}


@pytest.mark.parametrize("text", ["", "none", '{"a": 1', '{"a": NaN}', "[" * 100_000])
def test_no_json(text: str) -> None:
    with pytest.raises(NotJsonError):
        json_in(text)


async def test_costs_go_to_the_builder_of_the_step(tmp_path: Path) -> None:
    builder = MetricsBuilder("train")
    cache = AnswerCache(tmp_path / "cache.sqlite3")
    async with LlmServer(lambda body: "x" * 40) as server:
        with builder.activate_context():
            channel = Channel(judge(server, **PRICED), cache=cache, source="judge/ruler")
            await channel.ask(question())
            await channel.ask(question())  # kept: it costs nothing
    costs = await builder.flush()
    assert costs["costs/train/judge/ruler"] == pytest.approx(channel.totals.usd)
    assert channel.totals.usd == pytest.approx(
        1e-3 * (channel.totals.prompt_tokens + channel.totals.completion_tokens)
    )
    assert channel.totals.usd > 0


async def test_a_price_that_a_program_registers_is_the_price() -> None:
    builder = MetricsBuilder("eval")
    builder.register_model_pricing("judge", prompt_per_million=0, completion_per_million=1e6)
    async with LlmServer(lambda body: "x" * 40) as server:
        with builder.activate_context():
            channel = Channel(judge(server), source="judge/ruler", budget=Budget(usd=1e6))
            await channel.ask(question())
    assert (await builder.flush())["costs/eval/judge/ruler"] == channel.totals.completion_tokens > 0


def test_options_out_of_range_are_refused() -> None:
    llm = resolve_llm(lambda messages: "x")
    for options in ({"attempts": 0}, {"deadline": 0}):
        with pytest.raises(ConfigurationError, match="above 0"):
            Channel(llm, **options)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="start <= limit"):
        Pace(start=9, limit=8)
    assert issubclass(LlmAnswerError, LlmError)


@pytest.mark.slow
def test_one_channel_serves_one_event_loop_after_another() -> None:
    """As in a notebook, where a cell may also be stopped."""
    with LlmServer(lambda body: "x", delay=0.05) as server:
        channel = Channel(judge(server), pace=Pace(start=2, limit=2), budget=Budget(calls=100))

        async def many(name: str, seconds: float) -> list[Any]:
            async with asyncio.timeout(seconds):
                return await asyncio.gather(*(channel.ask(question(f"{name}{i}")) for i in range(10)))

        assert len(asyncio.run(many("a", DEADLINE_S))) == 10
        with pytest.raises(TimeoutError):
            asyncio.run(many("b", 0.08))
        assert len(asyncio.run(many("c", DEADLINE_S))) == 10
    assert channel.budget is not None
    assert channel.pace.running == 0 and channel.budget.spent.calls == channel.totals.calls < 30
