"""A worker starts, answers, dies and stalls as its server expects: with real processes and real signals."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from art.errors import ConfigurationError, DeadlineError, WorkerDiedError, WorkerError, WorkerStalledError
from art.process import worker as worker_module
from art.process.files import WorkerLog
from art.process.worker import Worker, WorkerSpec, module_command
from art.server.workers.supervisor import RestartPolicy, Supervisor
from waiting import DEADLINE_S, gone, until

pytestmark = pytest.mark.slow

Specs = Callable[..., WorkerSpec]


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Specs:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)

    def make(behaviour: str = "serve", **options: float) -> WorkerSpec:
        return WorkerSpec(
            name="echo",
            command=module_command("echo_worker"),
            config={"behaviour": behaviour},
            log_path=tmp_path / "echo.log",
            **{"health_interval": 0.05, "health_deadline": 60.0, "stop_deadline": 60.0, **options},
        )

    return make


async def nothing(worker: Worker) -> None:
    return


async def done_with(killed: Worker, supervisor: Supervisor) -> None:
    await until(lambda: supervisor.current is not killed and supervisor.state in {"up", "failed"})


async def test_a_worker_starts_answers_and_ends(spec: Specs) -> None:
    worker = await Worker.start(spec())
    assert (await worker.probe())["pid"] == worker.pid
    await worker.stop()
    assert worker.returncode == 0, "closing its stdin ends it"
    await worker.stop()


async def test_the_key_is_on_no_command_line_and_in_no_log(spec: Specs) -> None:
    worker = await Worker.start(spec())
    command, environment = psutil.Process(worker.pid).cmdline(), psutil.Process(worker.pid).environ()
    await worker.stop()
    assert worker.key not in " ".join(command) and worker.key not in str(environment)
    assert worker.key not in worker.spec.log_path.read_text()


async def test_a_worker_that_dies_while_starting_says_why(spec: Specs) -> None:
    with pytest.raises(WorkerDiedError, match=r"ended with code 1(.|\n)*no model here"):
        await Worker.start(spec("die early"))


async def test_a_worker_that_refuses_is_quoted(spec: Specs) -> None:
    with pytest.raises(ConfigurationError, match="the folder is empty"):
        await Worker.start(spec("refuse"))


async def test_a_worker_that_is_never_ready_is_killed_at_its_deadline(spec: Specs) -> None:
    others = set(psutil.Process().children())  # workers that other tests keep
    with pytest.raises(DeadlineError, match=r"'echo' was not ready within 1\.5 s \(setting control\.start"):
        await Worker.start(spec("never ready", start_deadline=1.5, stop_deadline=0.2))
    children = set(psutil.Process().children()) - others
    assert not [child for child in children if child.status() != psutil.STATUS_ZOMBIE]


def stopped_child(others: set[psutil.Process]) -> psutil.Process | None:
    """A new child, which gets SIGSTOP."""
    for child in set(psutil.Process().children()) - others:
        child.suspend()
        return child
    return None


async def test_a_worker_that_is_stopped_while_it_starts_is_not_waited_for(
    spec: Specs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "_STOPPED_S", 2)
    others = set(psutil.Process().children())
    starting = asyncio.create_task(Worker.start(spec("never ready", start_deadline=DEADLINE_S)))
    await until(lambda: stopped_child(others) is not None)
    with pytest.raises(WorkerStalledError, match=r"'echo' \(pid \d+\) was stopped \(SIGSTOP\) while it"):
        await starting
    children = set(psutil.Process().children()) - others
    assert not [child for child in children if child.status() != psutil.STATUS_ZOMBIE]


async def test_a_worker_that_goes_on_after_a_stop_starts(spec: Specs) -> None:
    others = set(psutil.Process().children())
    starting = asyncio.create_task(Worker.start(spec()))
    await until(lambda: stopped_child(others) is not None)
    (child,) = set(psutil.Process().children()) - others
    await asyncio.sleep(1.5)
    child.resume()
    worker = await starting
    assert (await worker.probe())["pid"] == child.pid
    await worker.stop()


async def test_a_worker_that_prints_is_not_blocked_by_a_full_pipe(spec: Specs) -> None:
    worker = await Worker.start(spec("chatty"))
    await until(lambda: worker.spec.log_path.stat().st_size > 900_000)
    assert (await worker.probe())["pid"] == worker.pid
    await worker.stop()


async def test_a_worker_that_ignores_its_stdin_is_killed(spec: Specs) -> None:
    worker = await Worker.start(spec("deaf", stop_deadline=0.2))
    await worker.stop()
    assert worker.returncode == -signal.SIGKILL


async def test_a_killed_worker_is_started_again(spec: Specs) -> None:
    seen: list[int] = []

    async def when_up(worker: Worker) -> None:
        seen.append(worker.pid)

    supervisor = Supervisor(spec(), Worker.start, when_up=when_up, policy=RestartPolicy(backoff=0.01))
    await supervisor.start()
    first = await supervisor.worker(60)
    os.kill(first.pid, signal.SIGKILL)
    await until(lambda: supervisor.restarts == 1)
    second = await supervisor.worker(60)
    assert seen == [first.pid, second.pid] and first.pid != second.pid
    assert "SIGKILL" in str(first.death())
    await supervisor.close()
    assert second.returncode is not None


async def test_a_stopped_worker_is_noticed_its_stacks_kept_and_started_again(spec: Specs) -> None:
    policy = RestartPolicy(limit=9, backoff=0.01)  # a machine that stalls for so long restarts it again
    supervisor = Supervisor(spec(health_deadline=2.0), Worker.start, when_up=nothing, policy=policy)
    await supervisor.start()
    first = await supervisor.worker(60)
    os.kill(first.pid, signal.SIGSTOP)
    await until(lambda: supervisor.restarts >= 1)
    assert first.returncode == -signal.SIGKILL
    assert "echo_worker.py" in first.spec.log_path.read_text(), "the stacks of the stalled worker"
    await supervisor.close()


async def test_a_reported_stall_restarts_the_worker(spec: Specs) -> None:
    supervisor = Supervisor(spec(), Worker.start, when_up=nothing, policy=RestartPolicy(backoff=0.01))
    await supervisor.start()
    first = await supervisor.worker(60)
    await until(lambda: supervisor.current is first)
    await asyncio.sleep(0)
    supervisor.report(first, WorkerStalledError("no progress"))
    await until(lambda: supervisor.restarts == 1)
    assert first.returncode == -signal.SIGKILL
    await supervisor.close()


async def test_a_worker_that_keeps_dying_is_given_up_and_can_be_started_by_hand(spec: Specs) -> None:
    policy = RestartPolicy(limit=1, backoff=0.01)
    supervisor = Supervisor(spec(), Worker.start, when_up=nothing, policy=policy)
    await supervisor.start()
    for restarts in (1, 1):
        killed = await supervisor.worker(60)
        os.kill(killed.pid, signal.SIGKILL)
        await done_with(killed, supervisor)
        assert supervisor.restarts == restarts
    with pytest.raises(WorkerError, match="failed 2 times"):
        await supervisor.worker(60)
    await supervisor.start()
    assert (await supervisor.worker(60)).returncode is None
    await supervisor.close()


def test_a_log_is_bounded(tmp_path: Path) -> None:
    log = WorkerLog(tmp_path / "w.log", limit=1000)
    for number in range(100):
        log.write(b"%03d" % number + b"." * 96 + b"\n")
    log.close()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 2100
    assert log.tail(1).startswith("099")


PARENT = """
import asyncio, sys
from pathlib import Path
from art.process import worker as worker_module
from art.process.worker import Worker, WorkerSpec, module_command

async def main():
    config = {"behaviour": "deaf"}
    command, log = module_command("echo_worker"), Path(sys.argv[1])
    spec = WorkerSpec(name="w", command=command, config=config, log_path=log)
    print((await Worker.start(spec)).pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent died")
async def test_a_worker_that_ignores_its_stdin_dies_with_a_killed_parent(spec: Specs, tmp_path: Path) -> None:
    log = str(tmp_path / "w.log")
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, log, stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    worker = psutil.Process(int(await asyncio.wait_for(parent.stdout.readline(), DEADLINE_S)))
    parent.kill()
    await parent.wait()
    await until(lambda: gone(worker))
