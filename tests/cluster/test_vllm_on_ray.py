"""A real vLLM on a node of a real Ray: registered, sampled, trained against, and back again after a kill."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from bench.ray_nodes import HEAD, RayNodes
from server_process import running_server
from test_on_ray import Placed

from waiting import eventually, gone

ENVIRONMENT = Path(__file__).parents[2] / ".venv-vllm"

pytestmark = [pytest.mark.slow, pytest.mark.vllm]


@pytest.mark.timeout(1200)
def test_vllm_serves_on_a_node_with_the_adapters_of_the_trainers_node(
    in_cluster: RayNodes, base: Path, tmp_path: Path
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
    with running_server(tmp_path / "data", base, cluster=cluster, engine=engine, start=600.0) as server:
        world = Placed(server, in_cluster)
        (node,) = set(world.where("engine").values())
        assert node in in_cluster.alive
        assert server.train("first")["step"] == 1 and server.choice()["step"] == 1
        (engine_pid,) = [row["pid"] for row in world.cluster()["workers"] if "engine" in row["name"]]
        worker = psutil.Process(engine_pid)
        vllm = worker.children(recursive=True)
        assert vllm
        worker.kill()
        eventually(lambda: all(gone(one) for one in vllm))
        eventually(lambda: world.is_up() and engine_pid not in world.pids(), timeout=600)
        assert server.choice()["step"] == 1, "its adapters are there again"
