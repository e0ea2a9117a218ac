"""A real server whose workers are on nodes of a real Ray. Nodes come, die and are drained: nothing is lost.

Each simulated node has a loopback address of its own, so a worker that listens at the wrong one is not found.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from bench.nodes.ray_nodes import HEAD, RayNodes, ray_nodes
from server_process import ServerProcess, running_server
from test_replicas import rollout

from waiting import DEADLINE_S, eventually, gone

pytestmark = pytest.mark.slow

ROLLOUTS, TURNS = 24, 4
PLACER = "art_extensions.cluster.placer"


def settings(nodes: RayNodes, folder: Path, **more: Any) -> dict[str, Any]:
    return {
        "address": nodes.address,
        "host": HEAD,
        "shelf": str(folder / "{node}"),
        "engine": {"resources": {"engine_slot": 1}},
        "trainer": {"resources": {"trainer_slot": 1}},
        "silence": 60.0,
        **more,
    }


class Placed:
    """A server on a cluster, and where its workers are."""

    def __init__(self, server: ServerProcess, nodes: RayNodes) -> None:
        self.server = server
        self.nodes = nodes

    def cluster(self) -> dict[str, Any]:
        return dict(self.server.http.get("/health").json()["cluster"])

    def where(self, kind: str) -> dict[str, str]:
        """Worker -> the node it serves on."""
        return {
            row["name"]: row["node"]
            for row in self.cluster()["workers"]
            if row["name"].startswith(kind) and row["pid"]
        }

    def pids(self) -> list[int]:
        return [row["pid"] for row in self.cluster()["workers"]]

    def placer(self) -> psutil.Process:
        assert self.server.process is not None
        children = psutil.Process(self.server.process.pid).children()
        return next(one for one in children if not gone(one) and PLACER in one.cmdline())

    def is_up(self) -> bool:
        health = self.server.health()
        return health["engine"]["state"] == health["trainer"]["state"] == "up"

    def many_connections(self) -> None:
        self.server.http = httpx.Client(
            base_url=self.server.http.base_url,
            headers=self.server.http.headers,
            timeout=DEADLINE_S,
            trust_env=False,
            limits=httpx.Limits(max_connections=ROLLOUTS),
        )


@pytest.fixture(scope="module")
def placed(cluster: RayNodes, base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Placed]:
    """Two engines and a trainer, and a node to spare for each."""
    folder = tmp_path_factory.mktemp("placed")
    for _ in range(3):
        cluster.add(engine_slot=1)
    for _ in range(2):
        cluster.add(trainer_slot=1)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in cluster.environment.items():
            patch.setenv(name, value)
        with running_server(folder / "data", base, replicas=2, cluster=settings(cluster, folder)) as server:
            world = Placed(server, cluster)
            world.many_connections()
            assert server.train("first")["step"] == 1
            yield world


def test_workers_are_on_nodes_and_their_files_too(placed: Placed) -> None:
    engines, trainers = placed.where("engine"), placed.where("trainer")
    assert len(set(engines.values())) == 2, "replicas are spread"
    assert len(trainers) == 1 and {*engines.values(), *trainers.values()} <= placed.nodes.alive
    health = placed.cluster()
    assert health["authenticated"] and health["placer"] == {"state": "up", "restarts": 0}
    assert placed.server.choice()["step"] == 1
    log = placed.server.log("trainer") + placed.server.log("placer")
    assert "Bearer" not in log


def play(placed: Placed, done: list[str], then: Any) -> list[list[str]]:
    """Rollouts, with something that happens in the middle of them. Returns their samples."""
    done.clear()
    with ThreadPoolExecutor(ROLLOUTS) as pool:
        running = [pool.submit(rollout, placed.server, number, done) for number in range(ROLLOUTS)]
        eventually(lambda: len(done) >= ROLLOUTS)
        then()
        return [one.result(timeout=DEADLINE_S) for one in running]


def train_on(placed: Placed, job: str, samples: list[list[str]]) -> dict[str, Any]:
    trajectories = [
        {"rollout": f"rollout-{number}", "reward": float(number % 3 == 0), "samples": taken}
        for number, taken in enumerate(samples)
    ]
    groups = [{"trajectories": trajectories[at : at + 8]} for at in range(0, len(trajectories), 8)]
    placed.server.submit({"job_id": job, "groups": groups, "optimizer": {"learning_rate": 1e-3}})
    return placed.server.result(job)


def test_an_engine_node_dies_in_the_middle_of_rollouts_and_none_fails(placed: Placed) -> None:
    name, node = next(iter(placed.where("engine").items()))
    samples = play(placed, [], lambda: placed.nodes.kill(node))
    assert sum(map(len, samples)) == ROLLOUTS * TURNS == len({one for taken in samples for one in taken})
    before = placed.server.model()["step"]
    result = train_on(placed, "after-the-node", samples)
    assert result["step"] == before + 1
    assert result["sheet"]["fates"]["trained"]["rollouts"] == ROLLOUTS
    # The step does not wait for the second engine: the death of its node may be seen after it.
    eventually(lambda: placed.is_up() and placed.where("engine").get(name, node) != node)
    placed.nodes.add(engine_slot=1)


def test_the_trainers_node_dies_in_the_middle_of_a_step_which_is_made_once(placed: Placed) -> None:
    before = placed.server.model()["checkpoints"]
    (row,) = [row for row in placed.cluster()["workers"] if row["name"].startswith("trainer")]
    psutil.Process(row["pid"]).suspend()  # so that the step cannot be over before its node is killed
    placed.server.submit(placed.server.job("on-two-nodes"))
    eventually(lambda: len(placed.server.events("on-two-nodes", most=2)) == 2)
    placed.nodes.kill(row["node"])
    assert placed.server.result("on-two-nodes")["step"] == before[-1] + 1
    assert placed.server.model()["checkpoints"] == [*before, before[-1] + 1]
    assert row["node"] not in placed.where("trainer").values()
    placed.nodes.add(trainer_slot=1)


def test_the_placer_is_killed_and_requests_go_on(placed: Placed) -> None:
    placer = placed.placer()
    placer.kill()
    assert placed.server.chat().status_code == 200, "requests need no placer"
    name, row = next((row["name"], row) for row in placed.cluster()["workers"] if "engine" in row["name"])
    psutil.Process(row["pid"]).kill()
    eventually(lambda: gone(placer) and placed.cluster()["placer"] == {"state": "up", "restarts": 1})
    eventually(lambda: placed.is_up() and name in placed.where("engine"))
    assert row["pid"] not in placed.pids()
    assert placed.server.chat().status_code == 200


def test_a_node_is_drained_and_no_request_fails(placed: Placed) -> None:
    spare = placed.nodes.add(engine_slot=1, trainer_slot=1)
    name, node = next(iter(placed.where("engine").items()))

    def drain() -> None:
        reply = placed.server.http.post("/art/cluster/drain", json={"node": node})
        assert reply.status_code == 200, reply.text
        assert reply.json() == {"node": node, "moved": [name]}

    samples = play(placed, [], drain)
    assert sum(map(len, samples)) == ROLLOUTS * TURNS
    assert node not in placed.where("engine").values() and placed.is_up()
    states = {row["address"]: row["state"] for row in placed.cluster()["nodes"]}
    assert states[node] == "drained" and states[spare] == "up"
    (trainers_node,) = placed.where("trainer").values()
    reply = placed.server.http.post("/art/cluster/drain", json={"node": trainers_node})
    assert len(reply.json()["moved"]) == 1
    before = placed.server.model()["step"]
    assert train_on(placed, "after-the-drain", samples)["step"] == before + 1
    unknown = placed.server.http.post("/art/cluster/drain", json={"node": "127.0.0.99"})
    assert unknown.status_code == 404 and node in unknown.text
    for one in (node, trainers_node):
        placed.server.http.post("/art/cluster/drain", json={"node": one, "undo": True})


def test_a_killed_server_leaves_no_orphan_after_the_lease(
    in_cluster: RayNodes, base: Path, tmp_path: Path
) -> None:
    in_cluster.add(lease_slot=2)
    slot = {"resources": {"lease_slot": 1}}
    short = settings(in_cluster, tmp_path, engine=slot, trainer=slot, lease=10.0)
    with running_server(tmp_path / "data", base, cluster=short) as server:
        world = Placed(server, in_cluster)
        placer = world.placer()
        workers = [psutil.Process(pid) for pid in world.pids()]
        hosts = [worker.parent() for worker in workers]
        assert len(workers) == 2
        server.kill()
        eventually(lambda: all(gone(one) for one in [*workers, placer] + [host for host in hosts if host]))


def test_the_head_dies_with_all_nodes_and_a_step_is_made_once(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ray_nodes(tmp_path, head="127.0.0.4") as nodes:
        for name, value in nodes.environment.items():
            monkeypatch.setenv(name, value)
        nodes.add(engine_slot=1, trainer_slot=1)
        placed_here = settings(nodes, tmp_path, host="127.0.0.4")
        with running_server(tmp_path / "data", base, cluster=placed_here, restarts=20) as server:
            assert server.train("first")["step"] == 1
            server.submit(server.job("second"))
            nodes.restart_head()
            nodes.add(engine_slot=1, trainer_slot=1)
            assert server.result("second")["step"] == 2
            eventually(Placed(server, nodes).is_up)
            assert server.choice()["step"] == 2
            assert server.model()["checkpoints"] == [0, 1, 2]


def test_a_cluster_without_token_is_refused_unless_the_network_is_trusted(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ray_nodes(tmp_path, head="127.0.0.3", token=False) as nodes:
        for name, value in nodes.environment.items():
            monkeypatch.setenv(name, value)
        open_cluster = settings(nodes, tmp_path, host="127.0.0.3")
        server = ServerProcess(tmp_path / "data", base, cluster=open_cluster)
        with pytest.raises(AssertionError, match=r"asks nobody for a token.*--trust-network"):
            server.start()
        trusting = ServerProcess(tmp_path / "data", base, cluster={**open_cluster, "trust_network": True})
        trusting.start()
        assert not Placed(trusting, nodes).cluster()["authenticated"]
        assert trusting.stop() == 0
        for one in (server, trusting):
            one.http.close()
