"""A trainer of two processes on two nodes of a real Ray: one node dies, and the step is made once."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from bench.nodes.ray_nodes import HEAD, RayNodes
from server_process import running_server
from test_on_ray import Placed

from waiting import eventually

pytestmark = pytest.mark.slow


def test_ranks_on_nodes_of_their_own_outlive_the_death_of_one(
    in_cluster: RayNodes, base: Path, tmp_path: Path
) -> None:
    in_cluster.add(gang_engine=1)
    trainers = {in_cluster.add(gang_slot=2) for _ in range(3)}
    cluster = {
        "address": in_cluster.address,
        "host": HEAD,
        "shelf": str(tmp_path / "{node}"),  # each rank has its checkpoints at a path of its own
        "silence": 60.0,
        "bucket": (tmp_path / "bucket").as_uri(),
        "bucket_from_gb": 0.0,
        "engine": {"resources": {"gang_engine": 1}},
        "trainer": {"resources": {"gang_slot": 1}},
    }
    ranks = {"ranks": 2, "nodes": 2}
    with running_server(tmp_path / "data", base, cluster=cluster, trainer=ranks) as server:
        world = Placed(server, in_cluster)
        assert server.train("first")["step"] == 1
        where = world.where("trainer")
        assert len(where) == 2 and len(set(where.values())) == 2 and set(where.values()) <= trainers
        (follower,) = [row for row in world.cluster()["workers"] if row["name"].endswith("rank1")]
        psutil.Process(follower["pid"]).suspend()  # so that the step cannot be over before its node is killed
        server.submit(server.job("second"))
        eventually(lambda: len(server.events("second", most=2)) == 2)
        in_cluster.kill(follower["node"])
        assert server.result("second")["step"] == 2
        assert server.model()["checkpoints"] == [0, 1, 2]
        left = set(world.where("trainer").values())
        assert len(left) == 2 and follower["node"] not in left
        copies = list((tmp_path / "bucket").glob("*/manifest.json"))
        assert len(copies) >= 2, "the base model, and the checkpoints that ranks and engines were given"
