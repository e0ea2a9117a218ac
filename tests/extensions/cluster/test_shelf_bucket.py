"""A bucket as a source of copies: a real S3 server, over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from shelves import PLENTY, QUICK, random_adapter, read_folder, served_shelf, write_folder

from art.errors import StorageError
from art_extensions.cluster.shelf import Shelf
from art_extensions.cluster.shelf_disk import Bucket, FanOut, ShelfDisk
from art_extensions.cluster.sources import Source
from waiting import until

pytestmark = pytest.mark.slow
URL = "s3://copies/shelf"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[fsspec.AbstractFileSystem]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("NO_PROXY", "*")
    files = fsspec.filesystem("s3", skip_instance_cache=True)
    files.makedirs("copies", exist_ok=True)  # what an earlier test left there has another digest
    try:
        yield files
    finally:
        server.stop()


async def test_a_copy_goes_through_a_bucket(tmp_path: Path, bucket: fsspec.AbstractFileSystem) -> None:
    folder = random_adapter(tmp_path / "adapter", 20_000_000)  # in three parts
    here, there = (Shelf(tmp_path / name, PLENTY, limits=QUICK) for name in "ab")
    digest = await here.offer(folder)
    with pytest.raises(StorageError, match="it has no such copy"):
        await there.fetch(digest, [Source(url=URL)])
    await here.publish(digest, URL)
    assert read_folder(await there.fetch(digest, [Source(url=URL)])) == read_folder(folder)
    await here.close()
    await there.close()


async def test_a_damaged_bucket_is_left_for_the_next_source(
    tmp_path: Path, bucket: fsspec.AbstractFileSystem
) -> None:
    folder = random_adapter(tmp_path / "adapter", 1000)
    async with served_shelf(tmp_path / "a") as a:
        digest = await a.shelf.offer(folder)
        await a.shelf.publish(digest, URL)
        path = f"copies/shelf/{digest}/files/adapter_model.safetensors"
        await asyncio.to_thread(bucket.pipe_file, path, bytes(1000))
        shelf = Shelf(tmp_path / "b", PLENTY, limits=QUICK)
        with pytest.raises(StorageError, match=rf"{URL}: adapter_model\.safetensors has another sha256"):
            await shelf.fetch(digest, [Source(url=URL)])
        path_here = await shelf.fetch(digest, [Source(url=URL), a.source])
        assert read_folder(path_here) == read_folder(folder)
        await shelf.close()


async def test_what_is_large_goes_to_nodes_through_the_bucket(
    tmp_path: Path, bucket: fsspec.AbstractFileSystem, caplog: pytest.LogCaptureFixture
) -> None:
    base = random_adapter(tmp_path / "base", 100_000)
    small = write_folder(tmp_path / "small", {"adapter_config.json": b'{"r": 8}'})
    caplog.set_level("INFO", "art_extensions.cluster.shelf")

    def pulled() -> list[object]:
        """The bytes of each source, of each copy."""
        ours = [record for record in caplog.records if record.name == "art_extensions.cluster.shelf"]
        return [record.args[1] for record in ours if isinstance(record.args, tuple)]

    async with (
        served_shelf(tmp_path / "server") as server,
        served_shelf(tmp_path / "one", host="127.0.0.11") as one,
        served_shelf(tmp_path / "two", host="127.0.0.12") as two,
    ):
        fan_out, through = FanOut(server.source), Bucket(server.shelf, URL, 50_000)
        disks = [ShelfDisk(server.shelf, node.view, fan_out, through) for node in (one, two)]
        paths = await asyncio.gather(*(disk.fetch_base_model(base) for disk in disks))
        assert [read_folder(path) for path in paths] == [read_folder(base)] * 2
        assert pulled() == [{URL: 100_002}] * 2, "neither from the server nor from each other"
        assert read_folder(await disks[0].fetch(small)) == read_folder(small)
        assert pulled()[2:] == [{server.source.url: 8}]
        await through.close()


async def test_nodes_get_their_copies_without_a_bucket_that_takes_none(
    tmp_path: Path, bucket: fsspec.AbstractFileSystem, caplog: pytest.LogCaptureFixture
) -> None:
    base = random_adapter(tmp_path / "base", 1000)
    async with (
        served_shelf(tmp_path / "server") as server,
        served_shelf(tmp_path / "one", host="127.0.0.11") as one,
    ):
        nowhere = Bucket(server.shelf, "s3://there-is-none/shelf", 0)
        disk = ShelfDisk(server.shelf, one.view, FanOut(server.source), nowhere)
        assert read_folder(await disk.fetch_base_model(base)) == read_folder(base)
        assert "without the bucket: s3://there-is-none/shelf did not take the copy" in caplog.text
        assert not bucket.exists("there-is-none"), "it is not made"
        await nowhere.close()


async def test_a_bucket_that_has_come_back_is_used_again(
    tmp_path: Path, bucket: fsspec.AbstractFileSystem
) -> None:
    base = random_adapter(tmp_path / "base", 1000)
    shelf = Shelf(tmp_path / "server", PLENTY, limits=QUICK)
    digest, late = await shelf.offer(base), Bucket(shelf, "s3://made-late/shelf", 0, again_s=0.1)
    assert not await late.has(digest)
    await asyncio.to_thread(bucket.makedirs, "made-late")
    await until(lambda: late.has(digest))
    assert bucket.exists(f"made-late/shelf/{digest}")
    await late.close()
    await shelf.close()
