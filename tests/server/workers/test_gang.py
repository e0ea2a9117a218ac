"""Several processes as one worker: whatever happens to one of them happens to the gang."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from art.errors import ConfigurationError, WorkerDiedError, WorkerError, WorkerStalledError
from art.process.worker import GangPlace, SharedDisk, Worker, WorkerSpec, module_command
from art.server.settings import parse_settings
from art.server.workers.gang import Gang, GangLaunch, TrainerRanks
from art.server.workers.supervisor import Supervisor, WorkerOptions
from art.wire.training import FoundFolder
from waiting import gone, until

slow = pytest.mark.slow
Specs = Callable[..., WorkerSpec]


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Specs:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)

    def make(behaviours: dict[str, str] | None = None, **options: float) -> WorkerSpec:
        return WorkerSpec(
            name="trainer-echo",
            command=module_command("echo_worker"),
            config={"behaviours": behaviours or {}},
            log_path=tmp_path / "trainer-echo.log",
            **{"health_interval": 0.05, "health_deadline": 60.0, "stop_deadline": 60.0, **options},
        )

    return make


async def start(spec: WorkerSpec, ranks: int = 3, nodes: int = 1, launch: Any = Worker.start) -> Gang:
    gang = await GangLaunch(launch, TrainerRanks(ranks=ranks, nodes=nodes), deadline=60)(spec)
    assert isinstance(gang, Gang)
    return gang


@slow
async def test_ranks_start_answer_and_end_as_one(spec: Specs, tmp_path: Path) -> None:
    gang = await start(spec())
    told = await gang.probe()
    assert told["ranks"] == 3 and len(told["devices"]) == 3 and told["pid"] == gang.members[0].pid
    assert (gang.url, gang.key) == (gang.members[0].url, gang.members[0].key)
    assert len({member.key for member in gang.members}) == 3
    assert set(os.listdir(tmp_path)) >= {f"trainer-echo{rank}.log" for rank in ("", "-rank1", "-rank2")}
    await gang.dump_stacks()
    assert "Thread" in (tmp_path / "trainer-echo-rank2.log").read_text()
    await gang.stop()
    assert [member.returncode for member in gang.members] == [0, 0, 0]


@slow
async def test_each_rank_is_told_its_place(spec: Specs) -> None:
    seen: list[WorkerSpec] = []

    async def launch(one: WorkerSpec) -> Worker:
        seen.append(one)
        return await Worker.start(one)

    gang = await start(spec(), ranks=4, nodes=2, launch=launch)
    await gang.kill()
    told = sorted((one.config["gang"] for one in seen), key=lambda gang: gang["rank"])
    assert [(one["rank"], one["world"], one["local_rank"]) for one in told] == [
        (0, 4, 0), (1, 4, 1), (2, 4, 0), (3, 4, 1)
    ]  # fmt: skip
    assert told[0]["rendezvous"] is None
    assert {one["rendezvous"] for one in told[1:]} == {"127.0.0.1:4711"}
    assert sorted(one.gang.node for one in seen if one.gang is not None) == [0, 0, 1, 1]


@slow
@pytest.mark.parametrize("rank", [0, 2])
async def test_a_rank_that_dies_ends_all_and_is_named(spec: Specs, rank: int) -> None:
    ups: list[Gang] = []

    async def up(gang: Gang) -> None:
        ups.append(gang)

    launch = GangLaunch(Worker.start, TrainerRanks(ranks=3), deadline=60)
    supervisor: Supervisor[Any] = Supervisor(spec(), launch, when_up=up)
    await supervisor.start()
    first = ups[0]
    os.kill(first.members[rank].pid, signal.SIGKILL)
    await first.wait()
    assert f"rank {rank} of 3" in str(first.death()) and "SIGKILL" in str(first.death())
    await until(lambda: len(ups) == 2 and supervisor.state == "up")
    assert all(gone_pid(member.pid) for member in first.members)
    await supervisor.close()
    assert all(gone_pid(member.pid) for member in ups[1].members)


class LateNews(Worker):
    """A worker whose end is heard of two seconds after it."""

    async def wait(self) -> int:
        code = await super().wait()
        await asyncio.sleep(2)
        return code


@slow
async def test_a_rank_that_dies_is_named_where_those_that_lost_it_are_heard_of_first(spec: Specs) -> None:
    def launch(one: WorkerSpec) -> Any:
        dead = one.gang is not None and one.gang.rank == 1
        return (LateNews if dead else Worker).start(one)

    gang = await start(spec({"0": "lose others"}), launch=launch)
    os.kill(gang.members[1].pid, signal.SIGKILL)
    os.kill(gang.members[0].pid, signal.SIGUSR2)
    await gang.wait()
    assert gang.members[0].returncode == 75
    assert "rank 1 of 3" in str(gang.death()) and "SIGKILL" in str(gang.death())
    await gang.kill()


def gone_pid(pid: int) -> bool:
    import psutil

    try:
        return gone(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return True


@slow
async def test_a_rank_that_hangs_fails_the_health_check_by_its_number(spec: Specs) -> None:
    gang = await start(spec(health_deadline=3.0), ranks=2)
    os.kill(gang.members[1].pid, signal.SIGSTOP)
    with pytest.raises(WorkerStalledError, match="rank 1 of 2"):
        await gang.probe()
    await gang.kill()
    assert all(member.returncode is not None for member in gang.members)


@slow
@pytest.mark.parametrize(
    ("behaviours", "kind", "told"),
    [
        ({"1": "refuse"}, ConfigurationError, "the folder is empty"),
        ({"0": "refuse"}, ConfigurationError, "the folder is empty"),
        ({"2": "die early"}, WorkerDiedError, "no model here"),
    ],
)
async def test_a_rank_that_does_not_start_ends_the_start(
    spec: Specs, behaviours: dict[str, str], kind: type[WorkerError], told: str
) -> None:
    started: list[Worker] = []

    async def launch(one: WorkerSpec) -> Worker:
        started.append(await Worker.start(one))
        return started[-1]

    with pytest.raises(kind, match=told):
        await start(spec(behaviours), launch=launch)
    assert all(worker.returncode is not None for worker in started), "nobody is left"


@slow
async def test_folders_are_fetched_for_every_rank_and_written_by_the_leader(
    spec: Specs, tmp_path: Path
) -> None:
    class Elsewhere(SharedDisk):
        async def fetch(self, folder: Path, *, without: Collection[str] = ()) -> Path:
            return Path("/other") / folder.name

    gang = await start(spec(), ranks=2)
    assert await gang.disk.fetch(tmp_path) == tmp_path
    gang.members[1].disk = Elsewhere()
    assert await gang.disk.fetch(tmp_path) == gang.disk.place(tmp_path) == tmp_path
    told = FoundFolder(leaders=str(tmp_path), own=f"/other/{tmp_path.name}")
    log = tmp_path / "trainer-echo-rank1.log"
    await until(lambda: f"/found {told.model_dump_json()}" in log.read_text())
    await gang.members[1].kill()
    with pytest.raises(WorkerError, match="rank 1 could not be sent"):
        await gang.disk.fetch(tmp_path)
    await gang.kill()


@pytest.mark.parametrize(
    ("trainer", "told"),
    [
        ({"ranks": 0}, "trainer.ranks"),
        ({"sharding": "zero3"}, "trainer.sharding"),
        ({"sharding": "fsdp"}, "at least 2"),
        ({"ranks": 3, "nodes": 2}, "multiple of nodes"),
        ({"nodes": 2}, "multiple of nodes"),
        ({"ranks": 2, "options": {"device": "cuda:1"}}, "each rank takes its own"),
        ({"rank": 2}, "trainer.rank"),
    ],
)
def test_settings_that_do_not_fit_are_refused_by_name(trainer: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        parse_settings(json.dumps({"trainer": trainer}))
    kept = parse_settings(json.dumps({"trainer": {"ranks": 4, "nodes": 2, "sharding": "fsdp"}})).trainer
    assert (kept.ranks, kept.nodes, kept.sharding) == (4, 2, "fsdp")


def test_several_machines_need_a_cluster() -> None:
    ranks = TrainerRanks(ranks=4, nodes=2)
    with pytest.raises(ConfigurationError, match="give it a cluster"):
        WorkerOptions(engine_options={}, trainer_options={}, ranks=ranks)

    async def elsewhere(spec: WorkerSpec) -> Worker:
        raise AssertionError

    options = WorkerOptions(engine_options={}, trainer_options={}, ranks=ranks, launch=elsewhere)
    assert isinstance(options.trainer_launch(60.0), GangLaunch)
    alone = dataclasses.replace(options, ranks=TrainerRanks())
    assert alone.trainer_launch(60.0) is elsewhere


def test_a_place_says_which_node_and_which_of_its_ranks() -> None:
    places = [GangPlace(name="t", rank=rank, ranks=6, nodes=3) for rank in range(6)]
    assert [(place.node, place.local_rank) for place in places] == [
        (0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)
    ]  # fmt: skip
    assert asyncio.iscoroutinefunction(GangLaunch.__call__)
