"""A server that is frozen, or killed again and again: its callers go on or are told, and nothing is left."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from test_local import CHILD, PROGRAM, make

import art
from art import errors
from art.client.backends.local_server import ServerProcess, SupervisorLimits
from art.client.requests.jobs import JobDeadlines
from art.process.reaper import reaper
from art.wire.models import ModelInfo
from starting import StartedProgram
from waiting import eventually, gone, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="states of processes are read from /proc")

QUICK = SupervisorLimits(health_interval_s=0.1, health_deadline_s=3.0)
PATIENT = SupervisorLimits(health_deadline_s=600.0)


def hurt(backend: art.LocalBackend, number: signal.Signals) -> int:
    pid = backend._server.pid
    assert pid is not None
    os.kill(pid, number)
    if number == signal.SIGKILL:
        eventually(lambda: gone(pid))
    return pid


@pytest.mark.slow
@pytest.mark.parametrize("way", ["lane", "stream", "control"])
async def test_a_frozen_server_is_ended_and_its_callers_go_on(tmp_path, model, caplog, way):
    async with make(tmp_path, QUICK) as backend:
        await model.register(backend)
        chat = model.openai_client().chat.completions
        await chat.create(model="agent", messages=[])
        old = hurt(backend, signal.SIGSTOP)
        if way == "lane":
            assert (await chat.create(model="agent", messages=[])).choices[0].message.content
        elif way == "stream":
            stream = await chat.create(model="agent", messages=[], stream=True)
            assert [chunk async for chunk in stream]
        else:
            assert await model.get_step() == 0
        assert gone(old) and backend._server.pid not in (None, old)
    assert "it was frozen (stopped by a signal) and had not answered" in caplog.text
    assert not reaper()._groups


@pytest.mark.slow
async def test_a_server_that_freezes_too_often_is_named_so(tmp_path, model):
    limits = SupervisorLimits(restarts=0, health_interval_s=0.1, health_deadline_s=3.0)
    async with make(tmp_path, limits) as backend:
        await model.register(backend)
        hurt(backend, signal.SIGSTOP)
        with pytest.raises(
            errors.WorkerDiedError, match=r"died 1 times .*it was frozen \(stopped by a signal\)"
        ):
            await model.get_step()


@pytest.mark.slow
async def test_a_deadline_names_what_the_server_does(tmp_path, model):
    async with make(tmp_path, PATIENT) as backend:
        await model.register(backend)
        assert backend._server.state() == f"the server (pid {backend._server.pid}) is running"
        pid = hurt(backend, signal.SIGSTOP)
        with pytest.raises(errors.ServerUnreachableError, match=rf"\(pid {pid}\) is frozen \(stopped by"):
            await backend._connection.call("GET", "/art/models/games/agent", ModelInfo, deadline_s=1.0)
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: backend._server.state() == "the server is gone (by signal SIGKILL)")
    assert backend._server.state() == "the server is not running"


@pytest.mark.slow
async def test_a_job_of_a_frozen_server_waits_for_its_silence_once(tmp_path, model):
    backend = art.LocalBackend(
        path=tmp_path / "art", supervisor_limits=PATIENT, deadlines=JobDeadlines(idle_s=2.0)
    )
    backend._server.command = CHILD
    async with backend:
        await model.register(backend)
        asked = []
        client = await backend._connection.client()

        async def watch(request) -> None:
            if "/events" in request.url.path:
                asked.append(request.extensions["timeout"]["read"])
                if len(asked) == 1:
                    hurt(backend, signal.SIGSTOP)

        client.event_hooks["request"].append(watch)
        with pytest.raises(errors.DeadlineError, match=r"no event .* for 2 s .* is frozen \(stopped"):
            await model.train([art.TrajectoryGroup([art.Trajectory()])])
        assert sum(asked) < 2 * 2.0, asked


@pytest.mark.slow
async def test_frozen_while_it_starts(tmp_path, model):
    limits = SupervisorLimits(start_s=20.0, stop_s=300.0, health_deadline_s=600.0)
    async with make(tmp_path, limits, freeze=True) as backend:
        with pytest.raises(errors.DeadlineError, match=r"did not serve within 20 s: it is frozen"):
            await model.register(backend)
        assert backend._server.pid is None  # without waiting 300 s for one that cannot hear


@pytest.mark.slow
async def test_frozen_while_it_starts_it_is_no_longer_waited_for_than_later(tmp_path, model):
    limits = SupervisorLimits(start_s=600.0, health_deadline_s=6.0, restarts=1)
    async with make(tmp_path, limits, freeze=True) as backend:
        with pytest.raises(errors.WorkerDiedError, match=r"died 2 times .*SIGKILL"):
            await model.register(backend)


@pytest.mark.slow
async def test_frozen_it_fails_one_check_alone(tmp_path, model, caplog):
    limits = SupervisorLimits(health_interval_s=0.1, health_deadline_s=9.0)
    async with make(tmp_path, limits) as backend:
        await model.register(backend)
        old = hurt(backend, signal.SIGSTOP)
        eventually(lambda: gone(old))
        assert await model.get_step() == 0
    assert "(stopped by a signal) and had not answered for 3 s" in caplog.text


@pytest.mark.slow
def test_a_frozen_server_whose_program_was_killed_does_not_stay(tmp_path):
    limits = "backend._server.limits = art.client.backends.local_server.SupervisorLimits(stop_s=0.5)\n"
    program = PROGRAM.replace("model =", f"{limits}model =") + "import time; time.sleep(600)"
    with StartedProgram(
        [sys.executable, "-c", program, str(tmp_path), *CHILD], stdout=subprocess.PIPE, text=True
    ) as running:
        pid = int(running.stdout.readline())
        os.kill(pid, signal.SIGSTOP)
        running.kill()
    eventually(lambda: gone(pid))


@pytest.mark.slow
async def test_killed_again_while_its_models_are_registered_again(tmp_path, model):
    async with make(tmp_path, PATIENT, register_s=2.0) as backend:
        await model.register(backend)
        pids = [hurt(backend, signal.SIGKILL)]
        asking = asyncio.create_task(model.get_step())
        for _ in range(2):
            await until(lambda: backend._server.pid not in (None, *pids) and backend._server._watch)
            pids.append(backend._server.pid)
            os.kill(pids[-1], signal.SIGKILL)
        assert await asking == 0
        assert backend._server.pid not in pids


@pytest.mark.slow
async def test_killed_again_while_it_starts_again(tmp_path, model):
    async with make(tmp_path, PATIENT, start_s=1.0) as backend:
        await model.register(backend)
        first = hurt(backend, signal.SIGKILL)
        asking = asyncio.create_task(model.get_step())
        await until(lambda: backend._server.pid not in (None, first))
        second = backend._server.pid
        os.kill(second, signal.SIGKILL)
        assert await asking == 0
        assert backend._server.pid not in (first, second)


@pytest.mark.slow
async def test_killed_before_it_ever_served(tmp_path, model):
    async with make(tmp_path, PATIENT, start_s=1.0) as backend:
        registering = asyncio.create_task(model.register(backend))
        await until(lambda: backend._server.pid is not None)
        first = backend._server.pid
        os.kill(first, signal.SIGKILL)
        await registering
        assert backend._server.pid not in (None, first)
        assert await model.get_step() == 0


@pytest.mark.slow
async def test_killed_at_each_start_it_is_given_up(tmp_path, model):
    limits = SupervisorLimits(restarts=1)
    async with make(tmp_path, limits, start_s=1.0) as backend:
        registering = asyncio.create_task(model.register(backend))
        pids = [None]
        for _ in range(2):
            await until(lambda: backend._server.pid not in pids)
            pids.append(backend._server.pid)
            os.kill(pids[-1], signal.SIGKILL)
        with pytest.raises(errors.WorkerDiedError, match=r"the server died 2 times within"):
            await registering


@pytest.mark.slow
async def test_a_model_that_cannot_be_registered_again_is_told_and_the_others_are_served(tmp_path, model):
    other = art.TrainableModel(name="other", project="games", base_model="art/nano")
    async with make(tmp_path, PATIENT) as backend:
        await model.register(backend)
        await other.register(backend)
        known = backend._registered["games", "agent"]
        backend._registered["games", "agent"] = known.model_copy(update={"name": "unfit"})
        hurt(backend, signal.SIGKILL)
        with pytest.raises(errors.RequestError, match="cannot be served"):
            await other.get_step()
        assert await other.get_step() == 0


@pytest.mark.slow
async def test_nobody_is_answered_before_the_models_are_known_again(tmp_path, model):
    async with make(tmp_path, PATIENT, register_s=0.5) as backend:
        await model.register(backend)
        hurt(backend, signal.SIGKILL)
        assert await asyncio.gather(*(model.get_step() for _ in range(20))) == [0] * 20


def test_limits_that_would_never_end_are_refused():
    for wrong in ({"health_deadline_s": 0}, {"start_s": -1}, {"restarts": -1}):
        with pytest.raises(errors.ConfigurationError, match=f"SupervisorLimits.{next(iter(wrong))}="):
            SupervisorLimits(**wrong)


async def test_a_folder_that_cannot_be_used_is_named(tmp_path, model):
    (tmp_path / "art").touch()
    backend = make(tmp_path)
    with pytest.raises(errors.DiskError, match="art/server/logs"):
        await backend._connection.call("GET", "/art/models/games/agent", ModelInfo)


@pytest.mark.slow
def test_the_log_of_a_frozen_server_has_its_stacks_and_its_folder_is_free(tmp_path: Path):
    limits = SupervisorLimits(health_interval_s=0.1, health_deadline_s=6.0)
    server = ServerProcess(tmp_path, {}, limits=limits)
    server.ensure_running()
    pid = server.pid
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: server.pid is None)
    assert "most recent call first" in server.log_tail() and "frozen" in server.state()
    assert server.ensure_running()
    server.stop()
    assert gone(pid)
