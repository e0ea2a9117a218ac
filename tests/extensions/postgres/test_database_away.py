"""A Postgres that is away under an `art serve` that trains: the weights are those of an undisturbed run."""

from __future__ import annotations

import asyncio
import hashlib
import time
from pathlib import Path
from subprocess import Popen

import pytest
from art_servers import KEY, ArtServers
from homes import Home
from private_postgres import PrivatePostgres, programs, running_postgres
from test_failover import one_group, reach_phase

import art
from art.client.backends.remote_backend import RemoteBackend
from art.server.data_folder import DataLayout
from art_extensions.postgres.database import PATIENCE_SECONDS
from waiting import DEADLINE_S

pytestmark = pytest.mark.slow

STEPS, DISTURBED = 3, 2
SHORT_S, LONG_S = 3.0, 60.0
"""Seconds that the database is away: less, and more, than a server is patient."""
RETURN_S = LONG_S + DEADLINE_S
"""Seconds in which the clients wait for a server."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    if programs() is None:
        pytest.skip("no Postgres on this machine: sh tests/install_programs.sh")
    return asyncio.run(train_steps(tmp_path_factory.mktemp("undisturbed"), away_s=0.0))


@pytest.mark.parametrize("away_s", [SHORT_S, LONG_S])
async def test_a_run_whose_database_was_away_has_the_weights_of_an_undisturbed_one(
    undisturbed: list[str], tmp_path: Path, away_s: float
) -> None:
    assert len(set(undisturbed)) == STEPS, "each step changes the weights"
    assert await train_steps(tmp_path, away_s=away_s) == undisturbed


async def train_steps(folder: Path, *, away_s: float) -> list[str]:
    """Returns the digest of the adapter after each step. away_s: seconds that the database is away in one."""
    with running_postgres(durable=True) as postgres:
        home = Home(folder / "art", postgres.create_database(), postgres)
        servers = ArtServers(home)
        try:
            controller = servers.start()
            await servers.wait_for("ART serves", 1)
            address = f"http://127.0.0.1:{servers.port}"
            backend = RemoteBackend(base_url=address, api_key=KEY, gone_s=RETURN_S)
            model = art.TrainableModel(
                name="player", project="games", base_model="art/nano", base_path=str(folder / "client")
            )
            await model.register(backend)
            for step in range(1, STEPS + 1):
                group = await one_group(model, step)
                training = asyncio.create_task(backend.train(model, [group], learning_rate=1e-3))
                if away_s and step == DISTURBED:
                    await reach_phase(await home.database(), step, "training")
                    await take_away(postgres, servers, controller, away_s)
                async with asyncio.timeout(RETURN_S):
                    assert (await training).step == step
            await backend.close()
            jobs = home.sql("SELECT state, step FROM jobs ORDER BY number")
            assert jobs == [("done", step) for step in range(1, STEPS + 1)]
            samples = home.sql("SELECT count(*), count(DISTINCT sample_id) FROM samples")
            assert samples == [(4 * STEPS, 4 * STEPS)]
        finally:
            servers.stop()
            await home.close()
        made = DataLayout(home.folder).checkpoints_dir("games", "player")
        files = [made / f"{step:04d}" / "adapter_model.safetensors" for step in range(1, STEPS + 1)]
        return [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]


async def take_away(
    postgres: PrivatePostgres, servers: ArtServers, controller: Popen[bytes], away_s: float
) -> None:
    """Kills the database, and starts it again. A server that was not patient enough has ended: another one is
    started, as a process manager does.
    """
    begun = time.monotonic()
    await asyncio.to_thread(postgres.kill)
    ends = away_s > PATIENCE_SECONDS
    if ends:
        assert await asyncio.to_thread(controller.wait, LONG_S) == 1, "it says why, within a minute"
        assert servers.count("lost the controller's lock") == 1
    await asyncio.sleep(max(0.0, away_s - (time.monotonic() - begun)))
    assert (controller.poll() is not None) == ends
    await asyncio.to_thread(postgres.start)
    if ends:
        servers.start()
        await servers.wait_for("ART serves", 2)
