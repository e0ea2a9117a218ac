"""1,000 nodes and 100,000 rollouts in virtual time, with the real pool, supervisors and promotion.

What happens to the nodes: each dies by an exponential law with a mean life of 1,000 hours, a rack of 40 is
lost for ten minutes, 50 nodes answer nobody for up to four minutes, one load in two thousand hangs. A step is
promoted every two minutes. The second run has the same with lives of 100 hours, a rack of 100 and 100 cuts.

    python -m bench.nodes.scale [NODES ROLLOUTS]

CPU is this process's, with the virtual engines and rollouts. Balance: at each look, the most open requests of
a replica over the mean of those that are up.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import statistics
import sys
import tempfile
import time
from pathlib import Path

from art.engine.replicas.ring import Replica, ReplicaRing
from art.process.worker import Worker, WorkerSpec, module_command
from art.server.workers.health_board import HealthBoard, WatchedWorker
from bench.nodes.virtual_nodes import Hardships
from bench.nodes.virtual_run import Outcome, Plan, simulate
from bench.rows import Row, write_rows

NODES, ROLLOUTS, AT_ONCE = 1000, 100_000, 16
ROUNDS, MOST_POST_US, ASKED = 50, 10.0, 300
MOST_CPU_MS, MOST_BALANCE, MOST_CPU_SECONDS = 0.5, 1.5, 300.0


def hardships(nodes: int) -> dict[str, Hardships]:
    """By the name of the run; shares of nodes are those of 1,000."""
    usual = Hardships(lost_rack=nodes // 25, cuts=nodes // 20, slow_loads=0.0005)
    hard = Hardships(mean_life=100 * 3600.0, lost_rack=nodes // 10, cuts=nodes // 10, slow_loads=0.0005)
    return {"lives of 1,000 h": usual, "lives of 100 h": hard}


def faults(outcome: Outcome) -> int:
    """Each may cost a restart; a rack that stays away longer than a start may take costs no more of them."""
    names = ("deaths", "deaths of the rack", "cuts", "slow loads")
    return sum(outcome.happened[name] for name in names)


def rows_of(name: str, outcome: Outcome) -> list[Row]:
    def count(what: str, ours: float, unit: str = "", goal: float | None = 0) -> Row:
        return Row(name=f"{name}: {what}", ours=ours, unit=unit, goal=goal, at_most=True)

    looks = sorted(outcome.balance)
    return [
        count("requests", outcome.requests, "requests", None),
        count("requests lost", len(outcome.failed)),
        count("completions that two engines ended", outcome.doubled),
        count("completions of another step than recorded", len(outcome.wrong)),
        count("serving replicas without the adapter of a promotion", len(outcome.uneven)),
        count("promotions", outcome.promotions, "promotions", None),
        count("promotions that failed", len(outcome.promotion_failures)),
        count("slowest promotion, virtual", outcome.slowest_promotion, "s", None),
        count("restarts, at most one a fault", outcome.restarts, "restarts", faults(outcome)),
        count("replicas given up", outcome.given_up),
        count("highest load over the mean, median of looks", statistics.median(looks), "", MOST_BALANCE),
        count("highest load over the mean, worst look", looks[-1], "", None),
        count("turns that left a replica that was up", outcome.moved / outcome.turns_after_another, "", None),
        count("CPU of a request", outcome.cpu / outcome.requests * 1e3, "ms", MOST_CPU_MS),
        count("CPU of the run", outcome.cpu, "s", MOST_CPU_SECONDS),
        count("virtual time", outcome.hours, "h", None),
    ]


def moved_when_one_dies(nodes: int) -> Row:
    """Of the rollouts at home on idle replicas."""
    ring = ReplicaRing([Replica(number=number, up=True) for number in range(nodes)])
    names = [str(number) for number in range(20 * nodes)]

    def homes() -> list[Replica | None]:
        return [ring.choose(name, lambda replica: True) for name in names]

    before = homes()
    ring.set_up(ring.replicas[0], False)
    moved = sum(one is not other for one, other in zip(before, homes(), strict=True)) / len(names)
    most = 2.0 / nodes
    return Row(
        name="rollouts whose home moves when one replica dies", ours=moved, unit="", goal=most, at_most=True
    )


def posted_health(nodes: int) -> Row:
    """What the loop pays for the health of a worker, in batches of all of them."""

    async def post_rounds() -> float:
        board = HealthBoard()
        with contextlib.ExitStack() as watched:
            for number in range(nodes):
                worker = WatchedWorker(
                    label="a worker",
                    url=f"http://127.0.0.1:{number}",
                    key="a key",
                    interval=2.0,
                    deadline=60.0,
                    on_health=lambda health: None,
                    on_trouble=lambda error: None,
                )
                watched.enter_context(board.watching(worker))
            batch = {f"http://127.0.0.1:{number}": {"running": 3, "steps": number} for number in range(nodes)}
            begin = time.process_time()
            for _ in range(ROUNDS):
                board.post(batch)
            return (time.process_time() - begin) / ROUNDS / nodes

    name = f"health of one of {nodes:,} workers, posted"
    return Row(name=name, ours=asyncio.run(post_rounds()) * 1e6, unit="us", goal=MOST_POST_US, at_most=True)


def asked_health() -> Row:
    """What the loop pays to ask a worker itself."""

    async def ask() -> float:
        with tempfile.TemporaryDirectory(prefix="art-bench-") as folder:
            config = {"base_model": "none", "bits": 16, "options": {}, "device": None}
            command, log = module_command("bench.nodes.sleeping_worker"), Path(folder) / "worker.log"
            spec = WorkerSpec(name="asked", command=command, config=config, log_path=log)
            worker = await Worker.start(spec)
            try:
                await worker.probe()
                begin = time.process_time()
                for _ in range(ASKED):
                    await worker.probe()
                return (time.process_time() - begin) / ASKED
            finally:
                await worker.stop()

    return Row(name="health of a worker, asked", ours=asyncio.run(ask()) * 1e3, unit="ms")


def main(nodes: int = NODES, rollouts: int = ROLLOUTS) -> None:
    logging.disable(logging.CRITICAL)  # thousands of deaths are meant
    rows = [moved_when_one_dies(nodes), posted_health(nodes), asked_health()]
    for name, hard in hardships(nodes).items():
        plan = Plan(nodes=nodes, rollouts=rollouts, at_once=AT_ONCE * nodes, hardships=hard)
        with tempfile.TemporaryDirectory(prefix="art-bench-") as folder:
            rows += rows_of(f"{nodes:,} nodes, {name}", simulate(plan, Path(folder)))
    write_rows("scale", rows)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
