"""A real vLLM on a node of a real Ray: registered, sampled, trained against, and back again after a kill.

A gateway over a real Postgres samples from it, too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

sys.path.append(str(Path(__file__).parents[2] / "server"))

from bench.nodes.ray_nodes import HEAD, RayNodes
from private_postgres import programs, running_postgres
from server_process import ServerProcess, running_server
from test_on_ray import Placed

from waiting import eventually, gone

ENVIRONMENT = Path(__file__).parents[3] / ".venv-vllm"

pytestmark = [pytest.mark.slow, pytest.mark.vllm]


@pytest.fixture
def database() -> Iterator[str]:
    if programs() is None:
        pytest.skip("no Postgres on this machine: sh tests/install_programs.sh")
    with running_postgres() as postgres:
        yield postgres.create_database()


def sample_at_a_gateway(server: ServerProcess, database: str) -> None:
    """While the controller does nothing: the gateway has the engine's address, and asks it."""
    gateway = ServerProcess(server.data_dir, server.base, database=database, role="gateway")
    gateway.start()
    try:
        assert server.process is not None and gateway.process is not None
        engines = {str(server.base): 1}
        eventually(lambda: gateway.http.get("/health").json()["gateway"]["engines"] == engines)
        eventually(lambda: gateway.choice()["step"] == 1)
        controller = psutil.Process(server.process.pid)
        controller.suspend()
        try:
            assert gateway.choice()["step"] == 1
        finally:
            controller.resume()
        assert gateway.stop() == 0
    finally:
        gateway.process.kill()
        gateway.http.close()


@pytest.mark.timeout(1200)
def test_vllm_serves_on_a_node_with_the_adapters_of_the_trainers_node(
    in_cluster: RayNodes, base: Path, tmp_path: Path, database: str
) -> None:
    in_cluster.add(cpus=4, vllm_slot=2)
    slot = {"resources": {"vllm_slot": 1}}
    cluster = {
        "address": in_cluster.address,
        "host": HEAD,
        "shelf": str(tmp_path / "{node}"),
        "silence": 60.0,
        "engine": slot,
        "trainer": slot,
    }
    engine = {"name": "vllm", "options": {"environment": str(ENVIRONMENT), "threads": 1}}
    with running_server(
        tmp_path / "data", base, cluster=cluster, engine=engine, start=600.0, database=database
    ) as server:
        world = Placed(server, in_cluster)
        (node,) = set(world.where("engine").values())
        assert node in in_cluster.alive
        assert server.train("first")["step"] == 1 and server.choice()["step"] == 1
        sample_at_a_gateway(server, database)
        (engine_pid,) = [row["pid"] for row in world.cluster()["workers"] if "engine" in row["name"]]
        worker = psutil.Process(engine_pid)
        vllm = worker.children(recursive=True)
        assert vllm
        worker.kill()
        eventually(lambda: all(gone(one) for one in vllm))
        eventually(lambda: world.is_up() and engine_pid not in world.pids(), timeout=600)
        assert server.choice()["step"] == 1, "its adapters are there again"
