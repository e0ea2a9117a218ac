"""A box from start to end, with a local stand-in of the cloud: real sshd, real server, real training."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from boxes import VERSION, needs_skypilot, needs_ssh, stand_in

import art
from art.environments import tasks
from art_extensions.launch.backend import SkyPilotBackend, stop_server
from waiting import DEADLINE_S, eventually, until

pytestmark = [pytest.mark.slow, needs_skypilot, needs_ssh, pytest.mark.timeout(1500)]
RESOURCES = {"cpus": "1+"}
PROGRAM = Path(__file__).parent / "programs" / "laptop_program.py"


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    yield stand_in(tmp_path)
    for process in of_boxes(tmp_path):
        process.kill()


def of_boxes(folder: Path) -> list[psutil.Process]:
    """The processes of boxes: machines, sshds, servers, workers, and the ssh of tunnels to them."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        line = " ".join(process.info["cmdline"] or ())
        if str(folder / "boxes") in line and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def ended(folder: Path, name: str) -> str | None:
    path = folder / "boxes" / name / "ended"
    return path.read_text() if path.exists() else None


def readable_by_others(path: Path) -> bool:
    return bool(path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO))


def places_of(key: str, folder: Path) -> list[str]:
    """The files and command lines that hold the key. The server's own address file is its owner's alone."""
    found = []
    for path in folder.rglob("*"):
        if not path.is_file() or path.is_symlink():
            continue
        if path.name == "address.json" and not readable_by_others(path):
            continue
        if key.encode() in path.read_bytes():
            found.append(str(path))
    for process in psutil.process_iter(["cmdline"]):
        if any(key in word for word in process.info["cmdline"] or ()):
            found.append(f"the command line of {process.pid}")
    return found


async def train_step(model: Any) -> None:
    task = tasks.find("yes-no-maybe")
    groups = await art.gather_trajectory_groups(
        [
            art.TrajectoryGroup(task.rollout(model, task.scenario(0, index)) for _ in range(4))
            for index in range(2)
        ],
        pbar_desc=None,
    )
    await model.train(groups, art.TrainConfig(learning_rate=1e-3))


async def test_a_step_is_trained_on_a_box_and_its_checkpoint_is_here_when_the_box_is_gone(
    tmp_path: Path, environment: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.chdir(tmp_path)
    secret = tmp_path / "variables.env"
    secret.write_text("HF_TOKEN=hf_of_the_user\n")
    secret.chmod(0o600)
    home = tmp_path / "home"
    backend = await SkyPilotBackend.initialize_cluster(
        cluster_name="trip",
        resources=RESOURCES,
        art_version=VERSION,
        env_path=str(secret),
        path=home,
        copy_every_s=0.5,
        environment=environment,
    )
    url, key = await backend.address()
    assert url.startswith("http://127.0.0.1:") and len(key) > 40
    [keeper] = [one for one in of_boxes(tmp_path) if "box_keeper.py" in " ".join(one.cmdline())]
    server = next(one for one in keeper.children(recursive=True) if "serve" in one.cmdline())
    assert {one.laddr.ip for one in server.net_connections() if one.status == "LISTEN"} == {"127.0.0.1"}
    assert server.environ()["HF_TOKEN"] == "hf_of_the_user"

    model: Any = art.TrainableModel(
        name="agent", project="games", base_model="art/nano-games", base_path=str(home)
    )
    await model.register(backend)
    await train_step(model)
    checkpoint = home / "games" / "models" / "agent" / "checkpoints" / "0001"
    await until(lambda: (checkpoint / "adapter_model.safetensors").exists())
    assert places_of(key, tmp_path) == []
    assert key not in caplog.text and "hf_of_the_user" not in caplog.text

    again = await SkyPilotBackend.initialize_cluster(
        cluster_name="trip", resources=RESOURCES, art_version=VERSION, path=home, environment=environment
    )
    assert (await again.address())[1] == key and await again.get_step(model) == 1, "the server that is there"
    await again.close()

    await train_step(model)
    await backend.down()
    assert (checkpoint.parent / "0002" / "adapter_model.safetensors").exists(), "brought home at the end"
    logs = home / "boxes" / "trip" / "logs"
    assert any(path.stat().st_size for path in logs.iterdir())
    await until(lambda: ended(tmp_path, "trip") == "asked to" and not of_boxes(tmp_path))


async def test_a_broken_tunnel_is_opened_again_a_restart_has_its_own_key_and_a_stop_ends_the_box(
    tmp_path: Path, environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    backend = await SkyPilotBackend.initialize_cluster(
        cluster_name="broken",
        resources=RESOURCES,
        art_version=VERSION,
        path=tmp_path / "home",
        environment=environment,
    )
    model: Any = art.TrainableModel(name="agent", project="games", base_model="art/nano-games")
    await model.register(backend)
    [tunnel] = [one for one in of_boxes(tmp_path) if "-L" in one.cmdline()]
    tunnel.kill()
    tunnel.wait(DEADLINE_S)
    assert await backend.get_step(model) == 0

    again = await SkyPilotBackend.initialize_cluster(
        cluster_name="broken",
        resources=RESOURCES,
        art_version=VERSION,
        path=tmp_path / "home",
        force_restart=True,
        environment=environment,
    )
    assert (await again.address())[1] != (await backend.address())[1], "a start makes a key of its own"
    await model.register(again)
    assert await again.get_step(model) == 0
    await again.close()

    said: list[str] = []
    arguments = ["--cluster", "broken", "--environment", str(environment)]
    assert await asyncio.to_thread(stop_server, arguments, said.append) == 0, said
    await until(lambda: ended(tmp_path, "broken") == "idle")
    await backend.close()
    await until(lambda: not of_boxes(tmp_path))


def launch_command(environment: Path, home: Path, name: str, *options: str) -> list[str]:
    command = [str(Path(sys.executable).with_name("art")), "launch", name, "--resource", "cpus=1+"]
    place = ["--at", str(environment), "--data-dir", str(home), "--art-version", VERSION]
    return [*command, *place, *options, "--", sys.executable, str(PROGRAM)]


def test_art_launch_runs_a_program_and_ends_the_box(tmp_path: Path, environment: Path) -> None:
    home = tmp_path / "home"
    done = subprocess.run(
        [*launch_command(environment, home, "once"), "train"],
        capture_output=True,
        text=True,
        timeout=1200,
        cwd=tmp_path,
    )
    assert done.returncode == 7, done.stderr  # the program's own
    assert "step 1" in done.stdout
    assert (home / "games" / "models" / "agent" / "checkpoints" / "0001").is_dir()
    assert ended(tmp_path, "once") == "asked to"
    eventually(lambda: not of_boxes(tmp_path))


def test_a_box_goes_down_by_itself_when_the_laptop_dies(tmp_path: Path, environment: Path) -> None:
    command = launch_command(environment, tmp_path / "home", "alone", "--idle-minutes", "0.5")
    laptop = subprocess.Popen([*command, "wait"], stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    try:
        assert laptop.stdout is not None
        line = laptop.stdout.readline()
        assert line.startswith("ready "), line
        program = psutil.Process(int(line.split()[1]))
        address = tmp_path / "boxes" / "alone" / "home" / ".art-box" / "data" / "server" / "address.json"
        key = json.loads(address.read_text())["key"]
        assert places_of(key, tmp_path) == []
        # Beyond the idle deadline of 30 s: the box stays while the laptop lives and its program sleeps.
        with pytest.raises(TimeoutError):
            eventually(lambda: ended(tmp_path, "alone"), timeout=45)
    finally:
        laptop.send_signal(signal.SIGKILL)
        laptop.wait(DEADLINE_S)
    program.kill()
    eventually(lambda: ended(tmp_path, "alone") == "idle")
    eventually(lambda: not of_boxes(tmp_path))
    assert "no client has used the server" in (tmp_path / "boxes" / "alone" / "job.log").read_text()
