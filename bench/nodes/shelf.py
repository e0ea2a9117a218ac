"""An adapter of 100 MB from the server to four nodes: seconds, and how often it leaves the server.

ours    the shelf: each node has one verified copy on its disk (sha256, fsync), from the server or a peer
naive   each node downloads the files from the same server with `httpx` and writes them; nothing is checked

Four processes on loopback addresses of their own stand for the nodes. They share this machine's cores and
disk, so the seconds say what the computation costs, and nothing about a network. Each repetition has a new
adapter; the two ways take turns; the median counts.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import httpx

from art.wire.models import ManifestEntry
from art_extensions.cluster.shelf import Shelf
from art_extensions.cluster.shelf_app import NodeShelf, ShelfAddress, ShelfServer
from art_extensions.cluster.shelf_disk import FanOut, ShelfDisk
from art_extensions.cluster.sources import Source
from bench.rows import Row, write_rows

NODES = 4
ADAPTER_BYTES = 100_000_000
REPETITIONS = 5
MOST_SECONDS = 2.0
PLENTY = 1 << 40
DEADLINE_S = 300.0
WEIGHTS = "adapter_model.safetensors"


class CountingShelf(Shelf):
    """Counts the weights that leave it."""

    sent = 0

    async def open_file(self, digest: str, name: str) -> tuple[int, ManifestEntry]:
        self.sent += name == WEIGHTS
        return await super().open_file(digest, name)


class NodeProcess:
    """One node: `python -m bench.nodes.shelf HOST FOLDER`."""

    def __init__(self, process: asyncio.subprocess.Process, address: ShelfAddress) -> None:
        self.process = process
        self.shelf = NodeShelf(address)

    @classmethod
    async def start(cls, host: str, folder: Path) -> NodeProcess:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.nodes.shelf", host, str(folder)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        return cls(process, ShelfAddress.model_validate_json(await _line(process)))

    async def download(self, source: Source, digest: str) -> None:
        """The naive way."""
        assert self.process.stdin is not None
        order = {**source.model_dump(), "digest": digest}
        self.process.stdin.write(json.dumps(order).encode() + b"\n")
        assert await _line(self.process) == b"done\n"

    async def end(self) -> None:
        assert self.process.stdin is not None
        await self.shelf.close()
        self.process.stdin.close()
        await asyncio.wait_for(self.process.wait(), DEADLINE_S)


async def _line(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    return await asyncio.wait_for(process.stdout.readline(), DEADLINE_S)


async def run_node(host: str, folder: Path) -> None:
    """Serves a shelf, and downloads in the naive way what it is told to, until standard input ends."""
    shelf = Shelf(folder / "shelf", PLENTY)
    server = await ShelfServer.start(shelf, host, takes_orders=True)
    print(server.address.model_dump_json(), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        order = json.loads(line)
        await download(order, folder)
        print("done", flush=True)
        os.unlink(folder / f"{order['digest']}-{WEIGHTS}")
    await server.stop()
    await shelf.close()


async def download(order: dict[str, str], folder: Path) -> None:
    headers = {"Authorization": f"Bearer {order['key']}"}
    async with httpx.AsyncClient(base_url=order["url"], headers=headers, trust_env=False) as client:
        route = f"/shelf/{order['digest']}"
        files = (await client.get(f"{route}/manifest")).json()["files"]
        for name in files:
            with (folder / f"{order['digest']}-{name}").open("wb") as file:
                async with client.stream("GET", f"{route}/files/{name}", timeout=DEADLINE_S) as reply:
                    reply.raise_for_status()
                    async for chunk in reply.aiter_bytes(1 << 20):
                        file.write(chunk)


def new_adapter(folder: Path, size: int) -> Path:
    folder.mkdir()
    (folder / WEIGHTS).write_bytes(os.urandom(size))
    (folder / "adapter_config.json").write_text("{}")
    return folder


async def measure(folder: Path, size: int, repetitions: int) -> list[Row]:
    shelf = CountingShelf(folder / "server", PLENTY)
    server = await ShelfServer.start(shelf, "127.0.0.2", takes_orders=False)
    hosts = [f"127.0.0.{11 + number}" for number in range(NODES)]
    for host in hosts:
        (folder / host).mkdir()
    nodes = await asyncio.gather(*(NodeProcess.start(host, folder / host) for host in hosts))
    fan_out = FanOut(server.address.source)
    disks = [ShelfDisk(shelf, node.shelf, fan_out) for node in nodes]
    ours, naive, sent = [], [], {"ours": 0, "naive": 0}
    try:
        for number in range(repetitions):
            adapter, before, start = new_adapter(folder / f"a{number}", size), shelf.sent, time.perf_counter()
            await asyncio.gather(*(disk.fetch(adapter) for disk in disks))
            ours.append(time.perf_counter() - start)
            sent["ours"] += shelf.sent - before
            digest = await shelf.offer(new_adapter(folder / f"b{number}", size))
            before, start = shelf.sent, time.perf_counter()
            await asyncio.gather(*(node.download(server.address.source, digest) for node in nodes))
            naive.append(time.perf_counter() - start)
            sent["naive"] += shelf.sent - before
        copies = [len(list((folder / host / "shelf" / "copies").iterdir())) for host in hosts]
    finally:
        await asyncio.gather(*(node.end() for node in nodes))
        await server.stop()
        await shelf.close()
    return to_rows(size, ours, naive, {name: count / repetitions for name, count in sent.items()}, copies)


def to_rows(
    size: int, ours: list[float], naive: list[float], sent: dict[str, float], copies: list[int]
) -> list[Row]:
    what, mine, theirs = (
        f"{size / 1e6:g} MB to {NODES} nodes",
        statistics.median(ours),
        statistics.median(naive),
    )
    return [
        Row(name=f"{what}, verified and on disk", ours=mine, unit="s", goal=MOST_SECONDS, at_most=True),
        Row(name=f"{what}, beside plain downloads", ours=mine, peer=theirs, unit="s", ratio=theirs / mine),
        Row(
            name="copies that leave the server, for each step",
            ours=sent["ours"],
            peer=sent["naive"],
            unit="",
            ratio=sent["naive"] / sent["ours"],
        ),
        Row(
            name="copies on a node, for each step",
            ours=max(copies) / len(ours),
            unit="",
            goal=1,
            at_most=True,
        ),
    ]


def main(arguments: list[str]) -> None:
    if len(arguments) == 2:
        asyncio.run(run_node(arguments[0], Path(arguments[1])))
        return
    with tempfile.TemporaryDirectory() as folder:
        write_rows("shelf", asyncio.run(measure(Path(folder), ADAPTER_BYTES, REPETITIONS)))


if __name__ == "__main__":
    main(sys.argv[1:])
