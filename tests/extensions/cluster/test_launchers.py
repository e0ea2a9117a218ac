"""What every launcher of workers keeps to: on this machine, and on a node of a real Ray."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
from bench.nodes.ray_nodes import ECHO_FOLDER, HEAD, RayNodes
from typer.testing import CliRunner

from art.cli.main import app
from art.errors import ConfigurationError, DeadlineError, WorkerDiedError, WorkerStalledError
from art.process.worker import Launch, Worker, WorkerSpec, module_command
from art.server.cluster_settings import ClusterSettings
from art.server.workers.supervisor import RestartPolicy, Supervisor
from art_extensions.cluster.launcher import ClusterLauncher
from waiting import DEADLINE_S, gone, until

pytestmark = pytest.mark.slow

Specs = Callable[..., WorkerSpec]


@pytest.fixture(scope="module")
def room(cluster: RayNodes) -> RayNodes:
    """A node with room for all workers of these tests."""
    cluster.add(cpus=16, spare_slot=1)
    return cluster


def cluster_settings(nodes: RayNodes, folder: Path, **more: Any) -> ClusterSettings:
    slot = {"resources": {"spare_slot": 0.01}}
    given = {"address": nodes.address, "host": HEAD, "shelf": str(folder / "{node}"), "silence": 60.0}
    return ClusterSettings.model_validate({**given, "engine": slot, **more})


@pytest.fixture(params=["here", "ray"])
async def launch(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Launch]:
    monkeypatch.setenv("PYTHONPATH", str(ECHO_FOLDER), prepend=os.pathsep)
    async with AsyncExitStack() as stack:
        if request.param == "here":
            yield Worker.start
            return
        request.getfixturevalue("in_cluster")
        settings = cluster_settings(request.getfixturevalue("room"), tmp_path)
        launcher = await ClusterLauncher.start(settings, tmp_path / "server", tmp_path / "logs")
        stack.push_async_callback(launcher.close)
        yield launcher.launch


@pytest.fixture
def spec(tmp_path: Path) -> Specs:
    def make(behaviour: str = "serve", **options: float) -> WorkerSpec:
        return WorkerSpec(
            name="engine-echo",
            command=module_command("echo_worker"),
            config={"behaviour": behaviour},
            log_path=tmp_path / "echo.log",
            **{"health_interval": 0.05, "health_deadline": 60.0, "stop_deadline": 60.0, **options},
        )

    return make


async def test_its_life_from_start_to_end(launch: Launch, spec: Specs) -> None:
    """One after the other: each start takes seconds of Ray."""
    worker = await launch(spec())
    process = psutil.Process((await worker.probe())["pid"])
    assert worker.key not in process.cmdline() and worker.key not in spec().log_path.read_text()
    await until(lambda: "starting as serve" in spec().log_path.read_text())
    await worker.dump_stacks()
    await until(lambda: "echo_worker.py" in spec().log_path.read_text())
    parent = process.parent()
    await worker.stop()
    await worker.stop()
    assert gone(process)
    if worker.node:
        await until(lambda: parent is None or gone(parent))

    worker = await launch(spec("deaf", stop_deadline=0.2))
    process = psutil.Process((await worker.probe())["pid"])
    await worker.stop()
    assert gone(process), "it ignores its stdin, and is killed"

    worker = await launch(spec())
    pid = (await worker.probe())["pid"]
    os.kill(pid, signal.SIGKILL)
    await asyncio.wait_for(worker.wait(), DEADLINE_S)
    assert "was ended by SIGKILL" in str(worker.death()) and str(pid) in str(worker.death())
    with pytest.raises((WorkerDiedError, WorkerStalledError)):
        await worker.probe()
    await worker.kill()

    worker = await launch(spec(health_deadline=5.0))
    pid = (await worker.probe())["pid"]
    os.kill(pid, signal.SIGSTOP)

    async def probe_until_stalled() -> None:
        while True:
            await worker.probe()
            await asyncio.sleep(0.05)

    with pytest.raises(WorkerStalledError, match="health check"):
        await asyncio.wait_for(probe_until_stalled(), DEADLINE_S)
    await worker.kill()
    assert gone(pid)


async def test_a_start_that_fails_says_why_and_leaves_nothing(launch: Launch, spec: Specs) -> None:
    with pytest.raises(WorkerDiedError, match="no model here"):
        await launch(spec("die early"))
    with pytest.raises(ConfigurationError, match="the folder is empty"):
        await launch(spec("refuse"))
    with pytest.raises(DeadlineError, match=r"was not ready within 1\.5 s"):
        await launch(spec("never ready", start_deadline=1.5, stop_deadline=0.2))
    left = [one for one in psutil.process_iter(["cmdline"]) if "echo_worker" in (one.info["cmdline"] or [])]
    await until(lambda: all(gone(one) for one in left))


async def test_a_supervisor_restarts_what_dies_and_moves_what_is_to_leave(
    launch: Launch, spec: Specs
) -> None:
    seen: list[str] = []

    async def when_up(worker: Any) -> None:
        seen.append(worker.label)

    supervisor = Supervisor(spec(), launch, when_up=when_up, policy=RestartPolicy(backoff=0.01))
    await supervisor.start()
    first = supervisor.current
    assert first is not None
    os.kill((await first.probe())["pid"], signal.SIGKILL)
    await until(lambda: supervisor.state == "up" and supervisor.current is not first)
    second = supervisor.current
    assert second is not None
    process = psutil.Process((await second.probe())["pid"])
    await supervisor.move()
    assert gone(process) and supervisor.state == "up" and supervisor.current is not second
    assert len(seen) == 3 and supervisor.restarts == 1
    third = supervisor.current
    assert third is not None
    os.kill((await third.probe())["pid"], signal.SIGKILL)  # the new one is watched
    await until(lambda: supervisor.state == "up" and supervisor.current is not third)
    await supervisor.close()


async def test_no_room_is_told_with_what_is_needed_and_what_there_is(
    room: RayNodes, in_cluster: RayNodes, spec: Specs, tmp_path: Path
) -> None:
    large = {"gpus": 4, "resources": {"spare_slot": 0.01}}
    settings = cluster_settings(room, tmp_path, engine=large, place=2.0)
    launcher = await ClusterLauncher.start(settings, tmp_path / "server", tmp_path / "logs")
    with pytest.raises(DeadlineError, match=r"can hold worker 'engine-echo': it needs 1 CPU, 4 GPU.*16 CPU"):
        await launcher.launch(spec())
    await launcher.close()


async def test_a_server_that_comes_back_ends_what_its_predecessor_left(
    room: RayNodes, in_cluster: RayNodes, spec: Specs, tmp_path: Path
) -> None:
    settings = cluster_settings(room, tmp_path)
    before = await ClusterLauncher.start(settings, tmp_path / "server", tmp_path / "logs")
    worker = await before.launch(spec())
    process = psutil.Process((await worker.probe())["pid"])
    after = await ClusterLauncher.start(settings, tmp_path / "server", tmp_path / "logs")
    await until(lambda: gone(process))
    await asyncio.wait_for(worker.wait(), DEADLINE_S)
    await before.close()
    await after.close()


def test_the_doctor_examines_each_node(room: RayNodes, in_cluster: RayNodes) -> None:
    found = CliRunner().invoke(app, ["cluster", "doctor", room.address, "--host", HEAD])
    assert found.exit_code == 0, found.output
    assert "asks for a token" in found.output and "16 CPU" in found.output
    assert found.output.count("reached both ways") == 1 + len(room.alive)
