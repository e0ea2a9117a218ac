"""A board of workers' health: trouble reaches the supervisor of the one worker, and silence is trouble."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from test_workers import Specs, spec  # noqa: F401  (a fixture)

from art.errors import WorkerError, WorkerStalledError
from art.process.worker import Worker, WorkerSpec
from art.server.workers.health_board import HealthBoard, ProbingBoard, WatchedWorker
from art.server.workers.supervisor import RestartPolicy, Supervisor
from waiting import turns, until


def watched(number: int, seen: list, trouble: list, *, deadline: float = 60.0) -> WatchedWorker:
    return WatchedWorker(
        label=f"worker {number}",
        url=f"http://127.0.0.1:{number}",
        key="a-key",
        interval=0.01,
        deadline=deadline,
        on_health=lambda health: seen.append((number, health)),
        on_trouble=lambda error: trouble.append((number, error)),
    )


async def test_a_batch_of_reports_reaches_each_worker_and_no_other() -> None:
    board, seen, trouble = HealthBoard(), [], []
    with board.watching(watched(1, seen, trouble)), board.watching(watched(2, seen, trouble)):
        board.post({"http://127.0.0.1:1": {"steps": 1}, "http://127.0.0.1:2": {"error": "out of memory"}})
        board.post({"http://127.0.0.1:3": {"error": "nobody watches it"}})
    assert seen == [(1, {"steps": 1}), (2, {"error": "out of memory"})]
    [(number, error)] = trouble
    assert number == 2 and type(error) is WorkerError and "worker 2 is broken: out of memory" in str(error)
    board.post({"http://127.0.0.1:1": WorkerError("after its end")})
    assert len(trouble) == 1


async def test_a_worker_of_which_nothing_is_posted_is_reported_as_stalled() -> None:
    board, seen, trouble = HealthBoard(), [], []
    posted = watched(1, seen, trouble, deadline=0.2)
    with board.watching(posted), board.watching(watched(2, seen, trouble, deadline=0.2)):

        async def post() -> None:
            while True:
                board.post({posted.url: {}})
                await asyncio.sleep(0)

        posting = asyncio.create_task(post())
        await until(lambda: trouble)
        posting.cancel()
    number, error = trouble[0]
    assert number == 2 and isinstance(error, WorkerStalledError)
    assert "nothing was heard of worker 2 for 0.2 s" in str(error)


async def test_requests_without_steps_are_a_stall_on_the_board_too() -> None:
    board, seen, trouble = HealthBoard(), [], []
    with board.watching(watched(1, seen, trouble, deadline=0.0)):
        for _ in range(2):
            board.post({"http://127.0.0.1:1": {"running": 3, "steps": 10}})
            await asyncio.sleep(0.001)
    assert "made no step" in str(trouble[0][1])


def supervisor_of(of: WorkerSpec, board: HealthBoard, asked: list[int]) -> Supervisor[Worker]:
    class Asked(Worker):
        async def probe(self) -> dict:  # type: ignore[override]
            asked.append(self.pid)
            return {}

    async def nothing(worker: Worker) -> None:
        return

    watch = partial(board.watch, interval=of.health_interval, deadline=of.health_deadline)
    policy = RestartPolicy(limit=9, backoff=0.01)
    return Supervisor(of, Asked.start, when_up=nothing, policy=policy, watch=watch)  # type: ignore[arg-type]


@pytest.mark.slow
async def test_a_supervisor_with_a_board_asks_nobody_and_restarts_what_the_board_reports(
    spec: Specs,  # noqa: F811
) -> None:
    board, asked = HealthBoard(), list[int]()
    supervisor = supervisor_of(spec(), board, asked)
    await supervisor.start()
    first = await supervisor.worker(60)
    await turns()
    board.post({first.url: {"steps": 4}})
    assert supervisor.health == {"steps": 4}
    board.post({first.url: {"error": "out of memory"}})
    await until(lambda: supervisor.restarts == 1)
    second = await supervisor.worker(60)
    await turns()
    board.post({first.url: {"error": "a late report of the first"}})
    await turns()
    assert supervisor.current is second and not asked
    await supervisor.close()


@pytest.mark.slow
async def test_a_thread_asks_the_workers_and_ends_with_the_last(spec: Specs, tmp_path: Path) -> None:  # noqa: F811
    import threading

    board, asked = ProbingBoard(), list[int]()
    supervisors = [supervisor_of(spec(), board, asked) for _ in range(2)]

    def all_seen() -> bool:
        return all(one.health.get("pid") == getattr(one.current, "pid", None) for one in supervisors)

    def running() -> Callable[[], bool]:
        return lambda: any(thread.name == "health" for thread in threading.enumerate())

    for one in supervisors:
        await one.start()
    await until(all_seen)
    assert running()() and not asked
    for one in supervisors:
        await one.close()
    await until(lambda: not running()())
