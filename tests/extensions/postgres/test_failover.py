"""Two `art serve` over one data folder and one Postgres: the second goes on where the first was killed."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from art_servers import KEY, ArtServers
from homes import Home
from private_postgres import PASSWORD, programs, running_postgres

import art
from art.client.backends.remote_backend import RemoteBackend
from art.server.data_folder import DataLayout
from art_extensions.postgres.database import PostgresDatabase
from waiting import DEADLINE_S, until

pytestmark = pytest.mark.slow


async def reach_phase(database: PostgresDatabase, job: int, phase: str) -> None:
    """Returns when the job is there: a short phase may have been passed already."""

    async def is_reached() -> bool:
        query = "SELECT 1 FROM jobs WHERE number = $1 AND (phase = $2 OR state = 'done')"
        return bool(await database.rows(query, job, phase))

    await until(is_reached)


async def one_group(model: art.TrainableModel, step: int) -> art.TrajectoryGroup:
    client, trajectories = model.openai_client(), []
    for attempt in range(4):
        trajectory = art.Trajectory(messages_and_choices=[{"role": "user", "content": "yes or no?"}])
        completion = await client.chat.completions.create(
            model=model.get_inference_name(),
            messages=trajectory.messages(),
            max_tokens=8,
            seed=10 * step + attempt,
        )
        trajectory.messages_and_choices.append(completion.choices[0])
        trajectory.reward = float(attempt)
        trajectories.append(trajectory)
    return art.TrajectoryGroup(trajectories)


async def test_a_job_whose_controller_is_killed_is_trained_once_by_the_next(tmp_path: Path) -> None:
    if programs() is None:
        pytest.skip("no Postgres on this machine: sh tests/install_programs.sh")
    with running_postgres() as postgres:
        home = Home(tmp_path / "art", postgres.create_database(), postgres)
        servers = ArtServers(home)
        try:
            await train_through_kills(servers)
        finally:
            servers.stop()
            await home.close()


async def train_through_kills(servers: ArtServers) -> None:
    home = servers.home
    controller = servers.start()
    await servers.wait_for("ART serves", 1)
    backend = RemoteBackend(base_url=f"http://127.0.0.1:{servers.port}", api_key=KEY)
    model = art.TrainableModel(
        name="player", project="games", base_model="art/nano", base_path=str(home.folder / "client")
    )
    await model.register(backend)
    for step, phase in enumerate(("training", "saving", "loading"), start=1):
        standby = servers.start()
        await servers.wait_for("is the controller: this one waits", step)
        group = await one_group(model, step)
        training = asyncio.create_task(backend.train(model, [group], learning_rate=1e-3))
        await reach_phase(await home.database(), step, phase)
        os.kill(controller.pid, signal.SIGKILL)
        await servers.wait_for("ART serves", step + 1)
        async with asyncio.timeout(DEADLINE_S):
            result = await training
        assert result.step == step == await model.get_step()
        controller = standby
    made = home.sql("SELECT state, step, epoch FROM jobs ORDER BY number")
    assert [row[:2] for row in made] == [("done", step) for step in (1, 2, 3)]
    assert made[0][2] == 2, "training takes a while: it was ended by the server that took over"
    folder = DataLayout(home.folder).checkpoints_dir("games", "player")
    assert sorted(path.name for path in folder.iterdir() if path.name[0] != ".") == [
        f"{step:04d}" for step in range(4)
    ]
    assert home.sql("SELECT count(*) FROM samples WHERE model LIKE '%player%'") == [(12,)]
    os.kill(controller.pid, signal.SIGKILL)  # no job is unfinished now
    controller = servers.start()
    await servers.wait_for("ART serves", 5)
    assert len(await one_group(model, 4)) == 4
    # A controller whose session ends takes the lock again. Where another has a number after its own, it ends
    # by itself and says why.
    home.sql("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND objid = 7273003")
    await servers.wait_for("the controller's lock in .* is held again", 1)
    assert controller.poll() is None and await model.get_step() == 3
    home.sql("UPDATE controller SET epoch = epoch + 1")
    assert await asyncio.to_thread(controller.wait, DEADLINE_S) == 1
    assert servers.count("lost the controller's lock") == 1
    files = [servers.log, *(home.folder / "server").rglob("*")]
    shown = [path for path in files if path.is_file() and PASSWORD.encode() in path.read_bytes()]
    assert not shown, "the database's password is in no file"
    await backend.close()
