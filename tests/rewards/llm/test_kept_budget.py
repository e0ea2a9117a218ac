"""A budget with a file: one for all processes that share it, also after one was killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from art.errors import BudgetExceededError, ConfigurationError
from art.rewards.llm import Budget, Channel, Request, Usage, resolve_llm
from art.rewards.llm.params import FREE
from art_extensions.testing import LlmServer
from waiting import DEADLINE_S

PROGRAM = """
import asyncio, sys
from art.rewards.llm import Budget, Request

async def main():
    budget = Budget(calls=10, tokens=10_000, path=sys.argv[1])
    request = Request(messages=({"role": "user", "content": "hello"},), max_tokens=3000)
    reserved = await budget.reserve(request, None)
    print("reserved", flush=True)
    sys.stdin.readline()
    budget.charge(reserved, None, asked=False)
    print("settled", flush=True)
    sys.stdin.readline()

asyncio.run(main())
"""


def question(text: str = "hello", **options: Any) -> Request:
    return Request(messages=({"role": "user", "content": text},), **options)


@contextmanager
def another_process(path: Path) -> Iterator[subprocess.Popen[str]]:
    """One that has set aside a call and some 3000 tokens."""
    pipe = subprocess.PIPE
    child = subprocess.Popen([sys.executable, "-c", PROGRAM, str(path)], stdin=pipe, stdout=pipe, text=True)
    with child:
        assert child.stdout is not None and child.stdout.readline() == "reserved\n"
        yield child
        child.kill()


async def spend(budget: Budget, times: int, **options: Any) -> None:
    for _ in range(times):
        reserved = await budget.reserve(question(**options), FREE)
        budget.charge(reserved, Usage(prompt_tokens=5, completion_tokens=5))


async def test_a_run_that_goes_on_has_what_is_left(tmp_path: Path) -> None:
    path = tmp_path / "run" / "budget.sqlite3"
    async with LlmServer(lambda body: "x") as server:
        for limit, more in ((5, 5), (5, 0), (8, 3)):  # the last one has a larger limit
            budget = Budget(calls=limit, path=path)
            llm = resolve_llm("judge", base_url=server.base_url, api_key=server.key)
            before, channel = len(server.requests), Channel(llm, budget=budget)
            asked = (channel.ask(question(f"{limit} {more} {number}")) for number in range(9))
            ended = await asyncio.gather(*asked, return_exceptions=True)
            assert len(server.requests) - before == more
            assert sum(isinstance(one, BudgetExceededError) for one in ended) == 9 - more
            assert budget.spent.calls == limit and budget.spent.tokens > 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700


async def test_a_budget_without_a_file_gets_one_and_stays_there(tmp_path: Path) -> None:
    await spend(Budget(path=tmp_path / "a"), 2)
    budget = Budget(calls=3)
    budget.keep(tmp_path / "a")
    budget.keep(tmp_path / "b")
    await spend(budget, 1)
    with pytest.raises(BudgetExceededError, match=r"calls=3 and 3 used.*a larger limit goes on"):
        await spend(budget, 1)
    assert budget.path == tmp_path / "a" and not (tmp_path / "b").exists()


@pytest.mark.slow
def test_what_a_killed_process_was_asking_counts_as_spent(tmp_path: Path) -> None:
    path = tmp_path / "budget"
    with another_process(path) as child:
        beside = Budget(calls=10, tokens=10_000, path=path)
        assert beside.spent.calls == 0  # it lives: what it set aside may be given back
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        assert beside.spent.calls == 1 and 3000 < beside.spent.tokens < 3020
    assert Budget(path=path).spent.calls == 1
    assert len(list(tmp_path.glob("*.lock"))) <= 2, "what the killed one left behind is swept up"


@pytest.mark.slow
async def test_what_another_process_may_give_back_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "budget"
    with another_process(path) as child:
        budget = Budget(tokens=5000, path=path)
        waiting = asyncio.create_task(spend(budget, 1, max_tokens=4000))
        done, _ = await asyncio.wait([waiting], timeout=0.5)
        assert not done and child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
        await asyncio.wait_for(waiting, DEADLINE_S)
        assert budget.spent.tokens == 10


@pytest.mark.slow
def test_processes_together_stay_within_the_limit(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys\n"
        "from art.errors import BudgetExceededError\n"
        "from art.rewards.llm import Budget, Request, Usage\n"
        "async def main():\n"
        "    budget, asked = Budget(calls=100, path=sys.argv[1]), 0\n"
        "    try:\n"
        "        while True:\n"
        "            one = await budget.reserve(Request(messages=()), None)\n"
        "            asked += 1\n"
        "            budget.charge(one, Usage(completion_tokens=1))\n"
        "    except BudgetExceededError:\n"
        "        print(asked)\n"
        "asyncio.run(main())\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "budget")]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    asked = [int(child.communicate(timeout=240)[0]) for child in children]
    assert sum(asked) == 100 == Budget(path=tmp_path / "budget").spent.calls


async def test_how_long_answers_are_is_remembered(tmp_path: Path) -> None:
    path = tmp_path / "budget"
    budget = Budget(path=path)
    budget.charge(await budget.reserve(question(), FREE), Usage(prompt_tokens=1, completion_tokens=4000))
    assert (await Budget(path=path).reserve(question(), FREE)).tokens > 4000


async def test_what_is_spent_above_a_limit_is_what_answers_are_longer_than_assumed() -> None:
    longer, limit, assumed = 4 * 2000, 9000, 1000
    async with LlmServer(lambda body: "x" * longer, delay=0.05) as server:  # 2001 tokens each
        llm = resolve_llm("judge", base_url=server.base_url, api_key=server.key)
        budget = Budget(tokens=limit, assumed_completion=assumed)
        asked = (Channel(llm, budget=budget).ask(question(str(number))) for number in range(30))
        ended = await asyncio.gather(*asked, return_exceptions=True)
    answered = sum(not isinstance(one, Exception) for one in ended)
    assert answered == len(server.requests) == limit // (assumed + 30)  # each prompt is some 20 tokens
    assert limit < budget.spent.tokens <= limit + answered * (2001 - assumed)


async def test_a_file_that_fails_ends_the_asking(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    damaged.write_bytes(b"no database at all" * 100)
    with pytest.raises(ConfigurationError, match="delete it"):
        Budget(path=damaged)
    budget = Budget(path=tmp_path / "budget")
    reserved = await budget.reserve(question(), FREE)
    sqlite3.connect(tmp_path / "budget").execute("drop table accounts")
    with pytest.raises(BudgetExceededError, match="so nothing more is asked"):
        await budget.reserve(question(), FREE)
    budget.charge(reserved, Usage())  # says so, and does not hide how the call ended


def test_a_file_of_another_layout_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "budget"
    with sqlite3.connect(path) as connection:
        connection.execute("create table accounts (owner text primary key, calls integer)")
    with pytest.raises(
        ConfigurationError, match=r"columns owner, calls in place of owner.*give another path"
    ):
        Budget(calls=3, path=path)
