"""The disk of a worker elsewhere: an engine and a trainer on nodes of their own, and how copies spread."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from shelves import Node, random_adapter, read_folder, served_shelf, write_folder

from art.engine.nano_models import resolve as nano_folder
from art.engine.remote import RemoteEngine
from art.errors import DeadlineError, NodeLostError, StorageError, WorkerDiedError
from art.process.worker import RunningWorker, Worker, WorkerDisk, WorkerSpec, module_command
from art.server.workers.trainer_worker import TRAINER_MODULE, TrainerClient
from art.wire.training import LoraSpec, OpenRequest, ProbeRequest
from art_extensions.cluster.shelf_disk import FanOut, ShelfDisk
from art_extensions.cluster.sources import Source
from waiting import until


@contextlib.asynccontextmanager
async def running(spec: WorkerSpec) -> AsyncIterator[RunningWorker]:
    worker = await Worker.start(spec)
    try:
        yield worker
    finally:
        await worker.stop()


def disk_to(server: Node, node: Node, fan_out: FanOut | None = None) -> ShelfDisk:
    return ShelfDisk(server.shelf, node.view, fan_out or FanOut(server.source))


def trainer_client(worker: RunningWorker, disk: WorkerDisk) -> TrainerClient:
    def trouble(error: Exception) -> None:
        raise AssertionError(error)

    return TrainerClient(worker.url, worker.key, timeout=240.0, idle=240.0, trouble=trouble, disk=disk)


@pytest.mark.slow
async def test_a_step_goes_from_the_trainers_node_to_the_engines(tmp_path: Path) -> None:
    """Train, save, collect; load in an engine elsewhere; open again in another trainer; equal to the bit."""
    from tiny_policies import MODEL, games, request

    from art.batch.encode import encode_batch

    base = str(nano_folder("art/nano-games"))
    steps = tmp_path / "server" / "steps"
    steps.mkdir(parents=True)
    spec_of_trainer = WorkerSpec(
        name="trainer",
        command=module_command(TRAINER_MODULE),
        config={"base_model": "art/nano-games", "model_path": base, "threads": 1},
        log_path=tmp_path / "trainer.log",
    )
    spec_of_engine = WorkerSpec(
        name="engine",
        command=module_command("art.engine.builtin.worker"),
        config={"base_model": base, "options": {"threads": 1}},
        log_path=tmp_path / "engine.log",
    )
    async with (
        served_shelf(tmp_path / "server" / "shelf") as server,
        served_shelf(tmp_path / "one", host="127.0.0.11") as one,
        served_shelf(tmp_path / "two", host="127.0.0.12") as two,
        running(spec_of_trainer) as trainer,
        running(spec_of_engine) as engine_worker,
    ):
        client = trainer_client(trainer, disk_to(server, one))
        await client.open(OpenRequest(model=MODEL, lora=LoraSpec(r=4, alpha=8)))
        batch = games()

        async def report(done: int, total: int) -> None:
            """Nobody watches."""

        await client.train(encode_batch(batch, request(batch)), report)
        await client.save(MODEL, steps / ".0001.saving")
        (steps / ".0001.saving").rename(steps / "0001")  # the commit
        assert [path.name for path in steps.iterdir()] == ["0001"]
        assert not list(one.shelf.copies.written.iterdir())

        engine = RemoteEngine(engine_worker.url, engine_worker.key, disk=(disk := disk_to(server, two)))
        await engine.load_adapter("agent@1", steps / "0001")
        assert "optimizer.safetensors" not in {path.name for path in (tmp_path / "two").rglob("*")}
        assert read_folder(await disk.fetch(steps / "0001")) == read_folder(steps / "0001")
        rows = [[5, 6, 7, 8, 9], [1, 2, 3]]
        scored = (await client.score(MODEL, rows)).logprobs
        served = await engine.score("agent@1", rows)
        assert all(
            abs(a - b) < 1e-4
            for ours, theirs in zip(scored, served, strict=True)
            for a, b in zip(ours, theirs, strict=True)
        )
        assert served != await engine.score(None, rows)

        # Another trainer, on the other node, goes on from the committed step.
        second = trainer_client(trainer, disk_to(server, two))
        model = "other/agent"
        opened = await second.open(
            OpenRequest(model=model, lora=LoraSpec(r=4, alpha=8), checkpoint=str(steps / "0001"))
        )
        assert opened.step == 1
        assert (await second.score(model, rows)).logprobs == scored
        await second.save(model, steps / "again")
        for name in ("adapter_model.safetensors", "optimizer.safetensors"):
            assert (steps / "again" / name).read_bytes() == (steps / "0001" / name).read_bytes()
        reference = await second.find_reference(str(steps / "0001"))
        assert reference is not None and reference.startswith(str(tmp_path / "two"))
        place = tmp_path / "server" / "probe"
        probe = await second.probe(ProbeRequest(path=str(place), lora=LoraSpec(r=4, alpha=8), rows=rows))
        assert probe.probe is not None and (place / "adapter_model.safetensors").exists()
        for one_client in (client, second):
            await one_client.aclose()
        await engine.close()


async def test_a_base_model_of_links_goes_the_same_way(tmp_path: Path) -> None:
    blob = write_folder(tmp_path / "blobs", {"b1": b"weights"}) / "b1"
    snapshot = write_folder(tmp_path / "snapshot", {"config.json": b"{}"})
    (snapshot / "model.safetensors").symlink_to(blob)
    async with served_shelf(tmp_path / "a") as server, served_shelf(tmp_path / "b") as node:
        disk = disk_to(server, node)
        with pytest.raises(StorageError, match="is no plain file"):
            await disk.fetch(snapshot)  # a checkpoint has no links
        found = await disk.fetch_base_model(snapshot)
        assert read_folder(found) == {"config.json": b"{}", "model.safetensors": b"weights"}
        assert not (found / "model.safetensors").is_symlink()


async def test_what_was_not_written_is_not_collected(tmp_path: Path) -> None:
    async with served_shelf(tmp_path / "a") as server, served_shelf(tmp_path / "b") as node:
        disk, target = disk_to(server, node), tmp_path / "steps" / "0001"
        with pytest.raises(StorageError, match="no worker writes the files of"):
            await disk.collect(target)
        place = disk.place(target)
        with pytest.raises(StorageError, match="is no folder that a worker wrote"):
            await disk.collect(target)
        write_folder(place, {"a": b"a"})
        await disk.collect(target)
        assert read_folder(target) == {"a": b"a"}
        assert disk.place(target) != place


async def test_a_node_that_died_is_named(tmp_path: Path) -> None:
    async with served_shelf(tmp_path / "a") as server, served_shelf(tmp_path / "b") as node:
        disk, target = disk_to(server, node), tmp_path / "steps" / "0001"
        write_folder(disk.place(target), {"a": b"a"})
        await node.server.stop()
        with pytest.raises(WorkerDiedError, match=r"the node's shelf at .* is gone"):
            await disk.collect(target)
        with pytest.raises(WorkerDiedError, match=r"the node's shelf at .* is gone"):
            await disk.fetch(random_adapter(tmp_path / "adapter", 100))
        assert not target.exists()


async def test_nodes_get_their_copies_from_each_other(tmp_path: Path) -> None:
    """Five nodes; the server gives to two at most at a time, and sends two copies."""
    folder = random_adapter(tmp_path / "adapter")
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(served_shelf(tmp_path / "server"))
        nodes = [
            await stack.enter_async_context(served_shelf(tmp_path / str(n), host=f"127.0.0.1{n}"))
            for n in range(1, 6)
        ]
        sent = {
            name: count_sent(node) for name, node in [("server", server), *zip("12345", nodes, strict=True)]
        }
        fan_out = FanOut(server.source)
        disks = [disk_to(server, node, fan_out) for node in nodes]
        paths = await asyncio.gather(*(disk.fetch(folder) for disk in disks))
        assert all(read_folder(path) == read_folder(folder) for path in paths)
        copies = [counts.count("adapter_model.safetensors") for counts in sent.values()]
        assert sum(copies) == 5  # one for each node
        assert 1 <= copies[0] <= 2
        before = sum(copies)
        await asyncio.gather(*(disk.fetch(folder) for disk in disks))  # it is there
        assert sum(counts.count("adapter_model.safetensors") for counts in sent.values()) == before


async def test_a_lost_peer_costs_nothing_but_its_turn(tmp_path: Path) -> None:
    folder = random_adapter(tmp_path / "adapter")
    async with (
        served_shelf(tmp_path / "a") as server,
        served_shelf(tmp_path / "b", host="127.0.0.11") as lost,
        served_shelf(tmp_path / "c", host="127.0.0.12") as node,
    ):
        fan_out = FanOut(server.source)
        await disk_to(server, lost, fan_out).fetch(folder)
        await lost.server.stop()
        path = await disk_to(server, node, fan_out).fetch(folder)
        assert read_folder(path) == read_folder(folder)


async def test_a_source_gives_to_few_at_a_time() -> None:
    server, nodes = Source(url="http://server"), [Source(url=f"http://node{n}") for n in range(6)]
    fan_out = FanOut(server, most_at_once=1, patience=60.0)
    go = {node.url: asyncio.Event() for node in nodes}
    given: dict[str, list[str]] = {}

    async def get(node: Source) -> None:
        async with fan_out.choose_sources("d", node) as sources:
            given[node.url] = [source.url for source in sources]
            await go[node.url].wait()

    tasks = [asyncio.create_task(get(node)) for node in nodes]
    await until(lambda: len(given) == 1)
    assert given == {"http://node0": ["http://server"]}
    go["http://node0"].set()
    await until(lambda: len(given) == 2)
    assert given["http://node1"] == ["http://node0", "http://server"]  # the server is always the last resort
    tasks[1].cancel()  # it gives up: its source is free for the next one, and it has nothing to give
    await until(lambda: len(given) == 3)
    assert given["http://node2"] == ["http://node0", "http://server"]
    go["http://node2"].set()
    await until(lambda: len(given) == 5)
    assert {given[f"http://node{n}"][0] for n in (3, 4)} == {"http://node0", "http://node2"}
    fan_out.forget(nodes[0])
    for event in go.values():
        event.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert "http://node0" not in given["http://node5"]


async def test_a_turn_that_never_comes_has_a_deadline() -> None:
    server, one, two = (Source(url=f"http://{name}") for name in ("server", "one", "two"))
    fan_out = FanOut(server, most_at_once=1, patience=0.05)
    async with fan_out.choose_sources("d" * 64, one):
        with pytest.raises(DeadlineError, match=r"no node and no server was free .* for 0\.05 s"):
            async with fan_out.choose_sources("d" * 64, two):
                raise AssertionError("it was not its turn")
        async with fan_out.choose_sources("d" * 64, one) as sources:  # another worker of the node
            assert sources == [server]


def count_sent(node: Node) -> list[str]:
    sent: list[str] = []
    open_file = node.shelf.open_file

    async def counting(digest: str, name: str) -> object:
        sent.append(name)
        return await open_file(digest, name)

    node.shelf.open_file = counting  # type: ignore[assignment,method-assign]
    return sent


async def test_a_node_that_dies_before_a_checkpoint_is_brought_is_a_lost_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "steps" / "0001"
    target.parent.mkdir()
    async with (
        served_shelf(tmp_path / "server") as server,
        served_shelf(tmp_path / "one", host="127.0.0.11") as one,
    ):
        disk, bring = disk_to(server, one), server.shelf.bring
        write_folder(disk.place(target), {"adapter_config.json": b"{}"})

        async def bring_too_late(digest: str, sources: list[Source], folder: Path) -> None:
            await one.server.stop()
            await bring(digest, sources, folder)

        monkeypatch.setattr(server.shelf, "bring", bring_too_late)
        with pytest.raises(WorkerDiedError, match=r"shelf at .* is gone"):
            await disk.collect(target)
        assert not target.exists()


async def test_a_node_that_hands_nothing_over_is_its_trainers_trouble(tmp_path: Path) -> None:
    """It is started again before the job is: a trainer that answers on would fail each attempt."""
    checkpoint = random_adapter(tmp_path / "0001", 100)
    told: list[Exception] = []
    async with (
        served_shelf(tmp_path / "server") as server,
        served_shelf(tmp_path / "one", host="127.0.0.11") as one,
    ):
        client = TrainerClient(
            "http://127.0.0.1:1", "key", timeout=5.0, idle=5.0, trouble=told.append, disk=disk_to(server, one)
        )
        asked = OpenRequest(model="games/player", lora=LoraSpec(), checkpoint=str(checkpoint))
        await one.server.stop()
        for _ in range(2):  # the node's shelf does not answer; then it was closed with the worker
            with pytest.raises(WorkerDiedError, match=r"shelf at .* is gone"):
                await client.open(asked)
            await one.view.close()
        assert [type(error) for error in told] == [NodeLostError, WorkerDiedError]
        await client.aclose()
