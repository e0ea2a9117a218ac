"""What a shelf answers over HTTP: with its key, ranges, nothing else; and sources that lie."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import uvicorn
from shelves import PLENTY, QUICK, Node, random_adapter, read_folder, served_shelf, write_folder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from art.errors import (
    AuthenticationError,
    ConfigurationError,
    DiskError,
    StorageError,
    WorkerDiedError,
)
from art.process.resources import listen
from art.wire.models import Manifest, ManifestEntry
from art_extensions.cluster.folder_manifest import canonical_json, digest_of_manifest
from art_extensions.cluster.shelf import Shelf
from art_extensions.cluster.shelf_app import NodeShelf, ShelfAddress, ShelfServer
from art_extensions.cluster.sources import PullLimits, Source
from waiting import DEADLINE_S


@contextlib.asynccontextmanager
async def client_of(node: Node, key: str | None = None) -> AsyncIterator[httpx.AsyncClient]:
    sent = {"Authorization": f"Bearer {node.source.key if key is None else key}"}
    async with httpx.AsyncClient(
        base_url=node.source.url, headers=sent, trust_env=False, timeout=DEADLINE_S
    ) as client:
        yield client


async def test_a_file_is_read_in_parts(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder", {"a b/ü%.bin": b"0123456789", "empty": b""})
    async with served_shelf(tmp_path / "a") as node, client_of(node) as client:
        digest = await node.shelf.offer(folder)
        manifest = await client.get(f"/shelf/{digest}/manifest")
        assert hashlib.sha256(manifest.content).hexdigest() == digest
        route = f"/shelf/{digest}/files/a%20b/%C3%BC%25.bin"
        for asked, status, content, told in [
            (None, 200, b"0123456789", None),
            ("bytes=3-", 206, b"3456789", "bytes 3-9/10"),
            ("bytes=3-4", 206, b"34", "bytes 3-4/10"),
            ("bytes=8-99", 206, b"89", "bytes 8-9/10"),
            ("bytes=10-", 416, b"", "bytes */10"),
            ("bytes=5-2", 416, b"", "bytes */10"),
            ("bytes=-2", 200, b"0123456789", None),
            ("bytes=0-1,4-5", 200, b"0123456789", None),
        ]:
            reply = await client.get(route, headers={"Range": asked} if asked else {})
            assert (reply.status_code, reply.content) == (status, content), asked
            assert reply.headers.get("content-range") == told
        assert (await client.get(f"/shelf/{digest}/files/empty")).content == b""


@pytest.mark.parametrize("key", ["", "wrong", "ö"])
async def test_nothing_is_read_without_the_key(tmp_path: Path, key: str) -> None:
    async with served_shelf(tmp_path / "a") as node:
        digest = await node.shelf.offer(random_adapter(tmp_path / "adapter", 10))
        sent = {"Authorization": f"Bearer {key}".encode()} if key else {}
        async with httpx.AsyncClient(base_url=node.source.url, trust_env=False, timeout=DEADLINE_S) as client:
            for route in (f"/shelf/{digest}/manifest", f"/shelf/{digest}/files/adapter_config.json"):
                assert (await client.get(route, headers=sent)).status_code == 401
            assert (await client.post("/fetch", headers=sent, content=b"{}")).status_code == 401


async def test_who_may_read_may_give_no_orders(tmp_path: Path) -> None:
    async with served_shelf(tmp_path / "a") as node, client_of(node) as client:
        assert (await client.post("/fetch", content=b"{}")).status_code == 401
        assert (await client.post("/adopt", content=b"{}")).status_code == 401


async def test_nothing_else_is_served(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder", {"a": b"a"})
    (tmp_path / "secret").write_text("secret")
    async with served_shelf(tmp_path / "a") as node, client_of(node) as client:
        digest = await node.shelf.offer(folder)
        for route in (
            "/",
            "/shelf",
            f"/shelf/{digest}",
            f"/shelf/{digest}/files/",
            f"/shelf/{digest}/files/b",
            f"/shelf/{digest}/files/../../../secret",
            f"/shelf/{digest}/files/..%2F..%2Fsecret",
            f"/shelf/{digest}/files/%2Fetc%2Fpasswd",
            f"/shelf/{digest.upper()}/manifest",
            f"/shelf/..%2F{digest}/manifest",
            f"/shelf/{'0' * 64}/manifest",
        ):
            assert (await client.get(route)).status_code == 404, route
        assert (await client.put(f"/shelf/{digest}/files/a", content=b"b")).status_code == 405
        assert (await client.get(f"/shelf/{digest}/files/a")).content == b"a"
        (folder / "a").unlink()
        (folder / "a").symlink_to(tmp_path / "secret")
        assert (await client.get(f"/shelf/{digest}/files/a")).status_code == 404


async def test_the_servers_own_shelf_takes_no_orders(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "a", PLENTY)
    server = await ShelfServer.start(shelf, "127.0.0.1", takes_orders=False)
    async with httpx.AsyncClient(base_url=server.address.url, trust_env=False, timeout=DEADLINE_S) as client:
        for key in (server.address.read_key, server.address.order_key, ""):
            reply = await client.post("/fetch", headers={"Authorization": f"Bearer {key}x"}, content=b"{}")
            assert reply.status_code == 404
    await server.stop()
    await server.stop()
    await shelf.close()


async def test_an_address_of_another_machine_is_refused(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "a", PLENTY)
    with pytest.raises(ConfigurationError, match=r"cannot listen on 192\.0\.2\.1:0 .*: name an address"):
        await ShelfServer.start(shelf, "192.0.2.1", takes_orders=True)
    await shelf.close()


async def test_keys_are_in_no_text(tmp_path: Path) -> None:
    async with served_shelf(tmp_path / "a") as node:
        address = node.server.address
        assert address.read_key != address.order_key
        for shown in (repr(address), str(address), repr(address.source), f"{node.source}"):
            assert address.read_key not in shown and address.order_key not in shown


async def test_a_node_is_told_what_to_fetch(tmp_path: Path) -> None:
    folder = random_adapter(tmp_path / "adapter")
    async with served_shelf(tmp_path / "a") as a, served_shelf(tmp_path / "b", host="127.0.0.12") as b:
        digest = await a.shelf.offer(folder)
        path = await b.view.fetch(digest, [a.source])
        assert path.is_relative_to(tmp_path / "b") and read_folder(path) == read_folder(folder)
        written = random_adapter(b.shelf.copies.written / "w1", 100)
        content = read_folder(written)
        adopted = await b.view.adopt(written)
        assert read_folder(await a.shelf.fetch(adopted, [b.source])) == content


async def test_the_errors_of_a_node_come_back_by_name(tmp_path: Path) -> None:
    async with served_shelf(tmp_path / "a") as a, served_shelf(tmp_path / "b", limit_bytes=50) as b:
        digest = await a.shelf.offer(random_adapter(tmp_path / "adapter", 100))
        with pytest.raises(DiskError, match="raise its limit"):
            await b.view.fetch(digest, [a.source])
        with pytest.raises(StorageError, match="it has no such copy"):
            await b.view.fetch("0" * 64, [a.source])
        with pytest.raises(StorageError, match="is no digest"):
            await b.view.fetch("../x", [a.source])
        with pytest.raises(StorageError, match="no folder that a worker wrote"):
            await b.view.adopt(Path("/etc"))
        stranger = NodeShelf(b.server.address.model_copy(update={"order_key": "wrong"}))
        with pytest.raises(AuthenticationError):
            await stranger.fetch(digest, [a.source])
        await stranger.close()
        await b.server.stop()
        with pytest.raises(WorkerDiedError, match=r"the node's shelf at http://127\.0\.0\.1:\d+ is gone"):
            await b.view.fetch(digest, [a.source])


async def test_an_order_that_takes_long_shows_signs_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import art_extensions.cluster.shelf_app as under_test

    monkeypatch.setattr(under_test, "_SIGN_S", 0.05)
    monkeypatch.setattr(under_test, "_SILENCE_S", 4.0)
    folder = random_adapter(tmp_path / "adapter", 100)
    async with served_shelf(tmp_path / "a") as a, served_shelf(tmp_path / "b") as b:
        digest = await a.shelf.offer(folder)
        fetch = b.shelf.fetch

        async def slow_fetch(digest: str, sources: list[Source], *, hold: bool) -> Path:
            await asyncio.sleep(6.0)  # longer than it may be silent
            return await fetch(digest, sources, hold=hold)

        b.shelf.fetch = slow_fetch  # type: ignore[assignment,method-assign]
        assert read_folder(await b.view.fetch(digest, [a.source])) == read_folder(folder)


# Sources that lie: a program of somebody else under the same routes.


class Liar:
    """A source of one file `a` whose replies the test decides."""

    def __init__(self, content: bytes, manifest: bytes | None = None) -> None:
        entry = ManifestEntry(sha256=hashlib.sha256(content).hexdigest(), size=len(content))
        told = Manifest(files={"a": entry})
        self.digest = digest_of_manifest(told)
        self.manifest = canonical_json(told) if manifest is None else manifest
        self.replies: list[Response] = []
        self.asked: list[str | None] = []

    async def answer(self, request: Request) -> Response:
        if request.url.path.endswith("/manifest"):
            return Response(self.manifest)
        self.asked.append(request.headers.get("range"))
        return self.replies.pop(0) if self.replies else Response(status_code=503)


@contextlib.asynccontextmanager
async def served_liar(liar: Liar) -> AsyncIterator[Source]:
    listener = listen("127.0.0.13", 0)
    app = Starlette(routes=[Route("/{path:path}", liar.answer)])
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1))
    server.capture_signals = contextlib.nullcontext  # type: ignore[assignment,method-assign]
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield Source(url=f"http://127.0.0.13:{listener.getsockname()[1]}", key="k")
    finally:
        server.should_exit = True
        await asyncio.wait_for(task, DEADLINE_S)


def part(content: bytes, start: int, size: int) -> Response:
    headers = {"Content-Range": f"bytes {start}-{size - 1}/{size}"}
    return Response(content, status_code=206, headers=headers)


def broken(content: bytes, size: int) -> Response:
    """The connection breaks after `content`."""

    async def chunks() -> AsyncIterator[bytes]:
        yield content
        await asyncio.sleep(0.05)  # so that it is read
        raise ConnectionResetError

    return StreamingResponse(chunks(), headers={"Content-Length": str(size)})


async def test_a_broken_connection_goes_on_where_it_was(tmp_path: Path) -> None:
    liar = Liar(b"0123456789")
    liar.replies = [broken(b"012", 10), part(b"3456789", 3, 10)]
    async with served_liar(liar) as source:
        shelf = Shelf(tmp_path / "a", PLENTY, limits=QUICK)
        assert (await shelf.fetch(liar.digest, [source]) / "a").read_bytes() == b"0123456789"
        assert liar.asked == [None, "bytes=3-"]
        await shelf.close()


async def test_the_next_source_goes_on_where_the_last_one_broke_off(tmp_path: Path) -> None:
    """And what the first one sent was wrong: the file is fetched from its beginning."""
    liar = Liar(b"0123456789")
    liar.replies = [broken(b"xxx", 10), Response(status_code=404)]
    folder = write_folder(tmp_path / "folder", {"a": b"0123456789"})
    async with served_liar(liar) as source, served_shelf(tmp_path / "b") as honest:
        assert await honest.shelf.offer(folder) == liar.digest
        shelf = Shelf(tmp_path / "a", PLENTY, limits=QUICK)
        path = await shelf.fetch(liar.digest, [source, honest.source])
        assert (path / "a").read_bytes() == b"0123456789"
        await shelf.close()


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (Response(b"x" * 10), "another sha256"),
        (Response(b"0123456789more"), "more than its 10 bytes"),
        (Response(b"01234"), "status 503"),
        (Response(b"0123456789", status_code=206), "status 206"),
        (Response(status_code=302, headers={"location": "http://127.0.0.1:1/"}), "status 302"),
    ],
)
async def test_wrong_answers_are_named(tmp_path: Path, reply: Response, told: str) -> None:
    liar = Liar(b"0123456789")
    liar.replies = [reply]
    async with served_liar(liar) as source:
        shelf = Shelf(tmp_path / "a", PLENTY, limits=PullLimits(total=60.0, rounds=1))
        with pytest.raises(StorageError, match=f"{source.url}: .*{told}"):
            await shelf.fetch(liar.digest, [source])
        assert not list((tmp_path / "a" / "copies").iterdir())
        await shelf.close()


async def test_a_wrong_part_is_not_taken(tmp_path: Path) -> None:
    liar = Liar(b"0123456789")
    liar.replies = [broken(b"012", 10), part(b"0123456789", 0, 10)]
    async with served_liar(liar) as source:
        shelf = Shelf(tmp_path / "a", PLENTY, limits=PullLimits(total=60.0, rounds=1))
        with pytest.raises(StorageError, match="it sent another part of a than the one asked for"):
            await shelf.fetch(liar.digest, [source])
        await shelf.close()


@pytest.mark.parametrize(
    "name", ["../../../../stolen", "/tmp/stolen", "a/../../stolen", "..", "a\\\\b", "a\\u0000b"]
)
async def test_an_evil_name_writes_nothing(tmp_path: Path, name: str) -> None:
    manifest = f'{{"files":{{"{name}":{{"sha256":"{"0" * 64}","size":3}}}}}}'.encode()
    liar = Liar(b"abc", manifest)
    async with served_liar(liar) as source:
        shelf = Shelf(tmp_path / "a", PLENTY, limits=QUICK)
        digests = (liar.digest, hashlib.sha256(manifest).hexdigest())
        for digest in digests:
            with pytest.raises(StorageError, match="which is no path in a folder"):
                await shelf.fetch(digest, [source])
        assert read_folder(tmp_path).keys() == {
            *(f"a/locks/{digest}.{kind}" for digest in digests for kind in ("fetch", "use")),
            f"a/written/{shelf.copies.written.name}.lock",
        }
        assert liar.asked == []
        await shelf.close()


async def test_a_manifest_of_another_digest_is_refused(tmp_path: Path) -> None:
    liar = Liar(b"abc")
    async with served_liar(liar) as source:
        shelf = Shelf(tmp_path / "a", PLENTY, limits=QUICK)
        with pytest.raises(StorageError, match=f"the manifest has the digest {liar.digest}, not 0000"):
            await shelf.fetch("0" * 64, [source])
        await shelf.close()


def test_an_address_crosses_as_json() -> None:
    address = ShelfAddress(url="http://10.0.0.1:1", read_key="r", order_key="o", written="/w")
    assert ShelfAddress.model_validate_json(address.model_dump_json()) == address
