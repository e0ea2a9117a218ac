"""The supervisor against a small server child that keeps the same start-up contract; with real kills."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel

import art
from art import errors
from art.client.backends.local_server import ServerProcess, SupervisorLimits
from starting import StartedProgram
from waiting import eventually, gone, until

pytestmark = pytest.mark.slow


class Config(BaseModel):
    turns: int = 3


CHILD = (sys.executable, str(Path(__file__).parent / "wire_double.py"))


def make(tmp_path: Path, limits: SupervisorLimits | None = None, **engine) -> art.LocalBackend:
    backend = art.LocalBackend(
        path=tmp_path / "art", server_options={"engine": engine} if engine else None, supervisor_limits=limits
    )
    backend._server.command = CHILD
    return backend


def command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


async def test_starts_at_the_first_register_and_ends_with_the_block(tmp_path, model):
    async with make(tmp_path) as backend:
        assert backend._server.pid is None and os.listdir(tmp_path) == []
        await model.register(backend)
        assert model.base_path == str(tmp_path / "art")
        pid = backend._server.pid
        assert not gone(pid)
        completion = await model.openai_client().chat.completions.create(model="agent", messages=[])
        assert completion.choices[0].model_extra["sample_id"] == "s1"
        assert backend._server.key not in command_line(pid)
    assert gone(pid)


def test_sync_block(tmp_path, model):
    with make(tmp_path) as backend:
        asyncio.run(model.register(backend))
        pid = backend._server.pid
        assert not gone(pid)
    assert gone(pid)
    with pytest.raises(errors.BackendClosedError):
        asyncio.run(model.get_step())
    assert backend._server.pid is None


async def test_after_close_nothing_starts_the_server_again(tmp_path, model):
    backend = make(tmp_path)
    await model.register(backend)
    client = model.openai_client()
    await backend.close()
    for call in (model.get_step, lambda: client.chat.completions.create(model="agent", messages=[])):
        with pytest.raises(errors.BackendClosedError, match="the backend is closed: make a new one"):
            await call()
    assert backend._server.pid is None


async def test_a_killed_server_is_started_again_with_its_models_at_the_same_place(tmp_path, model):
    async with make(tmp_path) as backend:
        await model.register(backend)
        client, url = model.openai_client(), model.inference_base_url
        await client.chat.completions.create(model="agent", messages=[])
        old = backend._server.pid
        os.kill(old, signal.SIGKILL)
        eventually(lambda: gone(old))
        completion = await client.chat.completions.create(model="agent", messages=[])
        assert completion.choices[0].model_extra["sample_id"] == "s1"  # a new server's first sample
        assert backend._server.pid not in (None, old)
        assert await model.get_step() == 0  # the new server knows the model
        assert model.inference_base_url == url


async def test_a_server_that_keeps_dying_is_given_up(tmp_path, model):
    async with make(tmp_path, SupervisorLimits(restarts=1)) as backend:
        await model.register(backend)
        for attempt in range(2):
            pid = backend._server.pid
            os.kill(pid, signal.SIGKILL)
            eventually(functools.partial(gone, pid))
            if attempt == 0:
                assert await model.get_step() == 0
        with pytest.raises(
            errors.WorkerDiedError, match="2 times within 600 s, the last time by signal SIGKILL"
        ):
            await model.get_step()


async def test_a_cell_that_is_run_again_meets_the_server_it_began(tmp_path, model):
    first = make(tmp_path)
    await model.register(first)
    pid = first._server.pid
    second = art.LocalBackend(path=tmp_path / "art")
    other = art.TrainableModel(name="other", project="games", base_model="art/nano")
    await model.register(second)
    await other.register(second)
    assert second._server.pid == pid and await model.get_step() == 0
    await first.close()
    eventually(lambda: gone(pid))
    assert await other.get_step() == 0, "the next call starts the server again, with the models of both"
    assert await model.get_step() == 0
    await second.close()


async def test_one_folder_has_no_two_servers_with_different_options(tmp_path, model):
    async with make(tmp_path) as backend:
        await model.register(backend)
        with pytest.raises(errors.ConfigurationError, match=r"runs a server in .* with other options"):
            art.LocalBackend(path=tmp_path / "art", server_options={"engine": {"name": "builtin"}})
    art.LocalBackend(path=tmp_path / "art", server_options={"engine": {"name": "builtin"}})


def test_a_data_folder_whose_name_is_no_text_is_refused(tmp_path):
    path = tmp_path / os.fsdecode(b"runs-\xfc")
    with pytest.raises(errors.ConfigurationError, match=r"is no UTF-8: give another `path`"):
        art.LocalBackend(path=path)
    assert not path.exists()


async def test_early_death_tells_exit_code_and_last_words(tmp_path, model):
    async with make(tmp_path, die=True) as backend:
        with pytest.raises(errors.WorkerDiedError, match=r"(?s)with exit code 5.*the last words"):
            await model.register(backend)


async def test_a_refusal_to_start_tells_its_reason(tmp_path, model):
    async with make(tmp_path, error="the folder is in use") as backend:
        with pytest.raises(errors.WorkerDiedError, match="the folder is in use"):
            await model.register(backend)


async def test_a_server_that_meets_a_full_disk_at_its_start_is_a_disk_error(tmp_path, model):
    async with make(tmp_path, error="the disk is full", kind="DiskError") as backend:
        with pytest.raises(errors.DiskError, match="the disk is full"):
            await model.register(backend)


async def test_start_has_a_deadline(tmp_path, model):
    async with make(tmp_path, SupervisorLimits(start_s=0.5, stop_s=1.0), hang=True) as backend:
        with pytest.raises(errors.DeadlineError, match=r"did not serve within 0.5 s"):
            await model.register(backend)
        assert backend._server.pid is None


def test_a_server_that_ignores_the_request_to_stop_is_killed_with_its_group(tmp_path):
    stubborn = (
        "import signal, subprocess, sys, time, json; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(json.dumps({'ready': True, 'port': child.pid}), flush=True); time.sleep(600)"
    )
    server = ServerProcess(
        tmp_path, {}, command=(sys.executable, "-c", stubborn), limits=SupervisorLimits(stop_s=0.3)
    )
    assert server.ensure_running() and not server.ensure_running()
    pid, grandchild = server.pid, server.port
    server.stop()
    server.stop()
    eventually(lambda: gone(pid) and gone(grandchild))


PROGRAM = """
import asyncio, sys, art
backend = art.LocalBackend(path=sys.argv[1])
backend._server.command = tuple(sys.argv[2:])
model = art.TrainableModel(name="agent", project="games", base_model="art/nano")
asyncio.run(model.register(backend))
print(backend._server.pid, flush=True)
"""


def test_the_server_ends_with_the_program(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), *CHILD],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    assert gone(int(done.stdout))


def test_killing_the_program_leaves_no_orphan(tmp_path):
    program = PROGRAM + "import time; time.sleep(600)"
    with StartedProgram(
        [sys.executable, "-c", program, str(tmp_path), *CHILD], stdout=subprocess.PIPE, text=True
    ) as running:
        pid = int(running.stdout.readline())
        assert not gone(pid)
        running.kill()
    eventually(lambda: gone(pid))


async def test_what_its_user_must_know_reaches_the_log_of_the_program(tmp_path, caplog):
    """The real server, and words that the base was never taught."""
    model = art.TrainableModel(name="noise", project="p", base_model="art/nano")
    asked = [{"role": "user", "content": "Classify this ticket: my invoice is wrong"}]

    def notes():
        return [line for line in caplog.messages if "it was never taught" in line]

    with caplog.at_level(logging.WARNING, "art"):
        async with art.LocalBackend(path=tmp_path) as backend:
            await model.register(backend)
            for _ in range(2):
                await model.openai_client().chat.completions.create(
                    model="noise", messages=asked, max_tokens=2
                )
            await until(notes)
    (note,) = notes()
    assert "'Classify'" in note and "art/smollm2" in note and "`art models card art/nano-words`" in note
    assert note in (tmp_path / "server" / "logs" / "server.log").read_text()


def test_unknown_options_are_refused(tmp_path):
    with pytest.raises(errors.ConfigurationError, match="control, engine, limits, teacher, trainer"):
        art.LocalBackend(path=tmp_path, server_options={"egnine": {}})


def test_in_process_is_accepted_and_says_that_it_does_nothing(tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="art"):
        art.LocalBackend(path=tmp_path, in_process=True)
    assert "in_process=True has no effect" in caplog.text


@pytest.mark.parametrize("replay", [True, False])
def test_the_routing_of_experts_is_computed_again_whatever_is_asked(tmp_path, caplog, replay):
    art.LocalBackend(path=tmp_path, enable_expert_replay=replay)
    assert caplog.text == ""


def test_the_real_server_s_settings_know_what_we_send():
    from art.process.running_server import SERVER_OPTIONS
    from art.server.settings import ServerSettings

    of_art_serve = {"host", "port", "key", "data_dir", "database", "role", "log_file"}
    assert of_art_serve | SERVER_OPTIONS == set(ServerSettings.model_fields)


async def test_gpu_costs_are_logged_when_a_price_is_given(tmp_path, model):
    model._internal_config = {"trainer_gpu_ids": [0], "inference_gpu_ids": [1]}
    backend = art.LocalBackend(path=tmp_path / "art", gpu_cost_per_hour_usd=1800.0)  # $1 a second for two
    backend._server.command = CHILD
    async with backend:
        await model.register(backend)
        result = await model.train([art.TrajectoryGroup([art.Trajectory()])])
        await model.log(split="train", metrics={"acc": 1}, step=result.step)
    assert isinstance(result, art.LocalTrainResult)
    lines = (model._folder() / "history.jsonl").read_text().splitlines()
    first, again = (json.loads(line) for line in lines)
    assert first["costs/gpu"] == first["costs/cum/all"] == pytest.approx(first["time/step_wall_s"])
    assert "costs/gpu" not in again


async def test_what_a_model_is_stands_in_a_file_without_its_key(tmp_path, model):
    async with make(tmp_path) as backend:
        await model.register(backend)
        prompted = art.Model(name="big", project="games", inference_api_key="secret", config=Config())
        await prompted.register(backend)
    described = [json.loads((m._folder() / "model.json").read_text()) for m in (model, prompted)]
    assert described[0]["base_model"] == "art/nano" and "_internal_config" in described[0]
    assert described[1]["config"] == {"turns": 3}
    assert all("inference_api_key" not in one for one in described)
    for path in (tmp_path / "art").rglob("*"):
        assert not path.is_file() or b"secret" not in path.read_bytes()
