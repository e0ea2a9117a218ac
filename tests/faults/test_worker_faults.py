"""A worker that dies or stalls in the middle of anything is started again, or the call fails by name."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import httpx
import pytest
from server_process import ServerProcess, running_server, stop_signal

from waiting import eventually, gone

pytestmark = pytest.mark.slow

NAMED = {"worker_died", "worker_stalled", "worker_failed"}


def sampling_until(server: ServerProcess, ended: threading.Event, replies: list[httpx.Response]) -> None:
    while not ended.is_set():
        replies.append(server.chat(max_tokens=200, temperature=1.0))


def test_requests_outlive_the_engine_that_is_killed_under_them(server: ServerProcess) -> None:
    """The only engine of its model: they wait until it is back with its adapters, and start again."""
    server.train("first")
    engine, replies, ended = server.workers()["engine"], [], threading.Event()
    clients = [
        threading.Thread(target=sampling_until, args=(server, ended, replies), daemon=True) for _ in range(4)
    ]
    for client in clients:
        client.start()
    eventually(lambda: len(replies) >= 4)
    engine.kill()
    eventually(lambda: server.workers().get("engine") not in (None, engine))
    answered = len(replies)
    eventually(lambda: len(replies) >= answered + 8)
    ended.set()
    for client in clients:
        client.join(timeout=240)
    assert {reply.status_code for reply in replies} == {200}, [reply.text for reply in replies]
    assert {reply.json()["choices"][0]["step"] for reply in replies} == {1}
    assert server.choice()["step"] == 1 and server.choice("player@0")["step"] == 0
    assert server.train("second")["step"] == 2


def test_an_engine_that_does_not_come_back_fails_its_requests_by_name(tmp_path: Path, base: Path) -> None:
    with running_server(tmp_path / "data", base, restarts=0) as server:
        replies: list[httpx.Response] = []
        client = threading.Thread(
            target=lambda: replies.append(server.chat(max_tokens=3000, temperature=1.0)), daemon=True
        )
        engine = server.workers()["engine"]
        engine.suspend()
        client.start()
        time.sleep(0.2)  # so that the engine has it, mostly; the error is the same if not
        engine.kill()
        client.join(timeout=240)
        assert replies[0].status_code == 503 and replies[0].json()["error"]["code"] in NAMED
        assert replies[0].headers.get("retry-after"), "clients try again by themselves"
        workers = server.http.get("/health").json()["workers"]
        assert workers[str(base)]["engine"]["state"] == "failed"
        server.register()
        assert server.choice()["step"] == 0


def test_a_trainer_killed_in_the_middle_of_a_step_is_started_again_and_the_step_is_made_once(
    server: ServerProcess,
) -> None:
    assert server.train("first")["step"] == 1
    trainer = server.workers()["trainer"]
    trainer.suspend()  # so that the step cannot be over before it is killed
    server.submit(server.job("second"))
    eventually(lambda: len(server.events("second", most=2)) == 2)
    trainer.kill()
    assert server.result("second")["step"] == 2
    assert server.model()["checkpoints"] == [0, 1, 2]
    assert server.workers()["trainer"].pid != trainer.pid
    assert server.train("third")["step"] == 3


def test_a_trainer_that_keeps_dying_fails_the_job_by_name(tmp_path: Path, base: Path) -> None:
    with running_server(tmp_path / "data", base, restarts=0, job_attempts=2) as server:
        trainer = server.workers()["trainer"]
        trainer.suspend()
        server.submit(server.job("doomed"))
        eventually(lambda: len(server.events("doomed", most=2)) == 2)
        trainer.kill()
        last = server.events("doomed")[-1]
        assert last["type"] == "error" and last["error_code"] == "WorkerDiedError"
        assert "given up" in last["error"]
        assert server.model()["checkpoints"] == [0] and server.choice()["step"] == 0, "sampling goes on"
        workers = server.http.get("/health").json()["workers"]
        assert workers[str(base)]["trainer"]["state"] == "failed"
        server.register()
        assert server.train("revived")["step"] == 1


@pytest.mark.parametrize("kind", ["engine", "trainer"])
def test_a_frozen_worker_is_noticed_and_started_again(tmp_path: Path, base: Path, kind: str) -> None:
    with running_server(tmp_path / "data", base, health_deadline=5.0) as server:
        frozen = server.workers()[kind]
        stop_signal(frozen)
        eventually(lambda: gone(frozen))
        eventually(lambda: kind in server.workers())
        assert "most recent call first" in server.log(kind), "the stacks of the frozen worker"
        eventually(lambda: server.chat().status_code == 200)
        assert server.train("after")["step"] == 1


def test_a_trainer_frozen_in_the_middle_of_a_job_is_noticed_and_the_job_done(
    tmp_path: Path, base: Path
) -> None:
    with running_server(tmp_path / "data", base, health_deadline=5.0) as server:
        job = server.job("frozen")
        frozen = server.workers()["trainer"]
        stop_signal(frozen)
        server.submit(job)
        assert server.result("frozen")["step"] == 1
        assert gone(frozen), "nobody else would have ended it, and it did not go on by itself"


def test_the_end_of_stdin_and_sigterm_end_the_server_and_its_workers(tmp_path: Path, base: Path) -> None:
    with running_server(tmp_path / "data", base) as server:
        workers = list(server.workers().values())
        assert server.stop() == 0
        eventually(lambda: all(gone(worker) for worker in workers))
        server.start()
        server.register()
        workers = list(server.workers().values())
        assert server.process is not None
        os.kill(server.process.pid, signal.SIGTERM)
        assert server.process.wait(timeout=240) == 0
        eventually(lambda: all(gone(worker) for worker in workers))


def test_killing_the_server_leaves_no_orphan(server: ServerProcess) -> None:
    workers = server.workers()
    assert set(workers) == {"engine", "trainer"}
    server.kill()
    eventually(lambda: all(gone(worker) for worker in workers.values()))
