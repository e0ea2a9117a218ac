"""A bucket as a source of copies: a real S3 server, over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from shelves import PLENTY, QUICK, random_adapter, read_folder, served_shelf

from art.cluster.shelf import Shelf
from art.cluster.sources import Source
from art.errors import StorageError

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
