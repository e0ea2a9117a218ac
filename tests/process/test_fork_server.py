"""A process that was forked from the warm one is like a fresh one, and computes the same."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import fork_server
from art import LocalBackend, TrainableModel, Trajectory, TrajectoryGroup
from starting import StartedProgram
from waiting import eventually, gone

pytestmark = pytest.mark.slow

PROGRAM = """
import gc, json, logging, os, resource, signal, sys, threading
told = {
    "arguments": sys.argv, "name": __name__, "path": sys.path, "folder": os.getcwd(),
    "said": sys.stdin.read(), "parent": os.getppid(), "leads": os.getsid(0) == os.getpid(),
    "threads": threading.active_count(), "limit": resource.getrlimit(resource.RLIMIT_NOFILE),
    "collects": gc.isenabled(),
    "command": open("/proc/self/cmdline").read().rstrip("\\0").split("\\0"),
    "signals": {int(one): str(signal.getsignal(one)) for one in signal.valid_signals()},
    "environment": dict(os.environ),
    "handlers": logging.root.handlers, "terminal": sys.stdout.isatty(), "seekable": sys.stdout.seekable(),
}
print(json.dumps(told, default=str))
print("the end", file=sys.stderr)
sys.exit(7)
"""
WAITING = "import sys, time; print('torch' in sys.modules, flush=True); time.sleep(600)"
PARENT = "import subprocess, sys; subprocess.run([sys.executable, 'child.py'])"
ENDLESS = "import subprocess, sys, time; subprocess.Popen([sys.executable, 'child.py']); time.sleep(600)"
PARENT_FILE = [sys.executable, "parent.py"]


@pytest.fixture
def ignored(request: pytest.FixtureRequest) -> Iterator[None]:
    """This process ignores the signals, as under `nohup` or in the background of a shell script."""
    before = {one: signal.signal(one, signal.SIG_IGN) for one in request.param}
    yield
    for one, handler in before.items():
        signal.signal(one, handler)


@pytest.mark.parametrize(
    ("options", "ignored"),
    [
        ({}, []),
        ({"start_new_session": True}, []),
        ({"env": {"OMP_NUM_THREADS": "1", "A": "b"}}, []),
        ({}, [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1]),
    ],
    ids=str,
    indirect=["ignored"],
)
@pytest.mark.usefixtures("ignored")
def test_it_finds_what_a_fresh_one_finds(tmp_path: Path, options: dict[str, Any]) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)

    def run() -> tuple[int, dict[str, Any], str]:
        command = [sys.executable, "program.py", "one", "two words"]
        done = subprocess.run(
            command, cwd=tmp_path, input="hello", capture_output=True, text=True, timeout=240, **options
        )
        return done.returncode, json.loads(done.stdout), done.stderr

    forked = run()
    with fork_server.real_starts():
        fresh = run()
    known = options.get("env", os.environ)
    for name in fresh[1]["environment"].keys() - forked[1]["environment"].keys():
        if name not in known:  # libraries in the tests' process set it past Python (readline: LINES)
            del fresh[1]["environment"][name]
    differing = {
        name: (forked[1][name], fresh[1][name]) for name in fresh[1] if forked[1][name] != fresh[1][name]
    }
    for name, (one, other) in differing.items():
        if name == "environment":  # what is alike may be long, and hold secrets
            differing[name] = tuple(
                dict(sorted(a.items() - b.items())) for a, b in ((one, other), (other, one))
            )
    assert not differing
    assert forked == fresh
    assert forked[0] == 7 and forked[1]["parent"] == os.getpid()


@pytest.mark.parametrize("name", ["HF_TOKEN", "HF_HOME"])
def test_a_variable_that_is_read_at_the_start_asks_for_a_fresh_one(tmp_path: Path, name: str) -> None:
    (tmp_path / "child.py").write_text("import sys; print('torch' in sys.modules)")
    command, environment = [sys.executable, "child.py"], {**os.environ, name: "anything"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240, check=True
    )
    assert done.stdout == f"{name == 'HF_TOKEN'}\n"


def test_the_workers_of_pytest_are_forks() -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        pytest.skip("one process runs all tests: there are no workers")
    assert fork_server._own is not None


def test_a_killed_one_ends_with_its_forks_and_by_the_signal(tmp_path: Path) -> None:
    (tmp_path / "child.py").write_text(WAITING)
    (tmp_path / "parent.py").write_text(PARENT)
    with (
        contextlib.ExitStack() as ends,
        StartedProgram(
            [sys.executable, "parent.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
        ) as parent,
    ):
        assert parent.stdout is not None and parent.stdout.readline() == "True\n", (
            "a fork of a fork is warm, too"
        )
        server, child = psutil.Process(parent.pid).children()
        ends.callback(kill, child)
        assert child.cmdline()[:2] == [sys.executable, "child.py"]
        child.suspend()
        eventually(lambda: child.status() == psutil.STATUS_STOPPED)
        parent.kill()
        assert parent.wait(timeout=240) == -signal.SIGKILL
        eventually(lambda: gone(server))
        assert not gone(child), "what does not ask to end with its parent goes on"


def test_without_its_fork_server_a_process_starts_others_as_always(tmp_path: Path) -> None:
    (tmp_path / "child.py").write_text(WAITING)
    (tmp_path / "parent.py").write_text("input()\n" + PARENT)
    pipe = subprocess.PIPE
    with StartedProgram(PARENT_FILE, cwd=tmp_path, stdin=pipe, stdout=pipe, text=True) as parent:
        eventually(lambda: psutil.Process(parent.pid).children())
        [server] = psutil.Process(parent.pid).children()
        server.kill()
        eventually(lambda: gone(server))
        assert parent.stdin is not None and parent.stdout is not None
        parent.stdin.write("\n")
        parent.stdin.flush()
        assert parent.stdout.readline() == "False\n"
        for child in psutil.Process(parent.pid).children():
            child.kill()
        assert parent.wait(timeout=240) == 0


def test_a_failed_test_ends_what_it_started(tmp_path: Path) -> None:
    (tmp_path / "child.py").write_text(WAITING)
    (tmp_path / "parent.py").write_text(ENDLESS)
    with (
        pytest.raises(ZeroDivisionError),
        StartedProgram(PARENT_FILE, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as parent,
    ):
        assert parent.stdout is not None and parent.stdout.readline()
        children = psutil.Process(parent.pid).children(recursive=True)
        raise ZeroDivisionError
    assert parent.poll() == -signal.SIGKILL and len(children) >= 2
    eventually(lambda: all(map(gone, children)))


def kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()


async def test_a_server_of_forks_trains_the_very_same_weights(tmp_path: Path) -> None:
    async def weights(folder: Path) -> bytes:
        model = TrainableModel(name="m", project="p", base_model="art/nano-games")
        async with LocalBackend(path=str(folder)) as backend:
            await model.register(backend)
            client = model.openai_client()
            asked = [{"role": "user", "content": "yes, no or maybe?"}]
            group = TrajectoryGroup([])
            for reward in (0.0, 1.0):
                create = client.chat.completions.create
                reply = await create(model="m", messages=asked, max_tokens=4, seed=int(reward))
                group.trajectories.append(
                    Trajectory(messages_and_choices=[*asked, reply.choices[0]], reward=reward)
                )
            await backend.train(model, [group], learning_rate=1e-2)
        [file] = folder.glob("**/checkpoints/0001/adapter_model.safetensors")  # noqa: ASYNC240
        return file.read_bytes()

    forked = await weights(tmp_path / "forked")
    with fork_server.real_starts():
        assert forked == await weights(tmp_path / "fresh")
