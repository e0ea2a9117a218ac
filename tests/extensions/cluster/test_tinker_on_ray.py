"""`art tinker --server` before a server whose trainer and engine are on a node of a real Ray."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest
from bench.nodes.ray_nodes import HEAD, RayNodes
from server_process import KEY, ServerProcess
from test_tinker_learns import run_guide
from tinker_service import serving, with_sdk

LIMIT_S = 1500
"""A busy machine takes minutes to start the workers."""
pytestmark = [*with_sdk, pytest.mark.timeout(LIMIT_S + 300)]


def test_the_program_of_the_guide_learns_on_a_cluster(in_cluster: RayNodes, tmp_path: Path) -> None:
    node, slot = in_cluster.add(program_slot=2), {"resources": {"program_slot": 1}}
    placed = {"address": in_cluster.address, "host": HEAD, "engine": slot, "trainer": slot}
    placed |= {"shelf": f"{tmp_path}/{{node}}"}
    data = tmp_path / "server"
    server = ServerProcess(data, Path("art/nano-games"), cluster=placed, start=float(LIMIT_S))
    server.start()
    try:
        options = ("--server", str(server.http.base_url))
        with serving(tmp_path / "data", *options, ART_API_KEY=KEY) as service:
            rewards = run_guide(service, limit_s=LIMIT_S)
        workers = server.http.get("/health").json()["cluster"]["workers"]
    finally:
        server.stop()
        server.http.close()
    assert rewards[0] < 0.6 and fmean(rewards[-3:]) > 0.8
    assert [row["node"] for row in workers if row["pid"]] == [node] * 2
    assert (data / "tinker" / "models").is_dir(), "the runs are models of the server below"
