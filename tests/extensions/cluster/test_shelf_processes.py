"""One shelf, several processes: one fetches, what a killed one began goes on, what one uses is kept."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from shelves import PLENTY, Node, random_adapter, read_folder, served_shelf, write_folder

from art.errors import DiskError
from art_extensions.cluster.shelf import Shelf
from waiting import DEADLINE_S, until

PROGRAM = Path(__file__).with_name("shelf_process.py")
pytestmark = pytest.mark.slow


class Asker:
    """A process that fetches a digest into a shelf."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def line(self) -> str:
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), DEADLINE_S)
        assert line, "it ended without an answer"
        return line.decode().strip()

    async def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert await asyncio.wait_for(self.process.wait(), DEADLINE_S) == 0


@contextlib.asynccontextmanager
async def asker(folder: Path, digest: str, *sources: Node, limit: int = PLENTY) -> AsyncIterator[Asker]:
    order = {
        "folder": str(folder),
        "limit": limit,
        "digest": digest,
        "sources": [node.source.model_dump() for node in sources],
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(PROGRAM), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(order).encode() + b"\n")
    try:
        yield Asker(process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


class Brake:
    """Counts what others read of a shelf, and lets them go on only when the test says so."""

    def __init__(self, node: Node, *, after: int) -> None:
        self.asked: list[tuple[str, str | None]] = []
        self.open = asyncio.Event()
        self.reached = asyncio.Event()
        self._after = after
        import art_extensions.cluster.shelf_app as app

        self._app, self._read = app, app._FileReply._read
        brake = self

        async def read(reply: object, start: int, end: int) -> AsyncIterator[bytes]:
            brake.asked.append((str(start), str(end)))
            async for chunk in brake._read(reply, start, end):  # type: ignore[arg-type]
                yield chunk
                start += len(chunk)
                if start >= brake._after:
                    brake.reached.set()
                    await brake.open.wait()

        app._FileReply._read = read  # type: ignore[assignment,method-assign]

    def release(self) -> None:
        self._app._FileReply._read = self._read  # type: ignore[method-assign]


@contextlib.contextmanager
def braked(node: Node, after: int):  # type: ignore[no-untyped-def]
    brake = Brake(node, after=after)
    try:
        yield brake
    finally:
        brake.open.set()
        brake.release()


async def test_of_two_processes_one_fetches(tmp_path: Path) -> None:
    folder = random_adapter(tmp_path / "adapter", 8_000_000)
    async with served_shelf(tmp_path / "a") as a:
        digest = await a.shelf.offer(folder)
        with braked(a, after=2_000_000) as brake:
            async with asker(tmp_path / "b", digest, a) as one:
                await asyncio.wait_for(brake.reached.wait(), DEADLINE_S)  # it has the lock, and a part
                async with asker(tmp_path / "b", digest, a) as two:
                    assert await one.line() == await two.line() == "begun"
                    await asyncio.sleep(0.3)
                    brake.open.set()
                    assert await one.line() == await two.line()
                    assert read_folder(tmp_path / "b" / "copies" / digest / "files") == read_folder(folder)
                    assert len(brake.asked) == 2  # one for each file that is not empty
                    await one.end()
                    await two.end()


async def test_a_fetch_that_was_killed_is_gone_on_from_where_it_was(tmp_path: Path) -> None:
    folder = random_adapter(tmp_path / "adapter", 20_000_000)
    async with served_shelf(tmp_path / "a") as a:
        digest = await a.shelf.offer(folder)
        arriving = tmp_path / "b" / "arriving" / digest / "files" / "adapter_model.safetensors"
        with braked(a, after=8_000_000) as brake:
            async with asker(tmp_path / "b", digest, a) as killed:
                await asyncio.wait_for(brake.reached.wait(), DEADLINE_S)
                await until(lambda: arriving.exists() and arriving.stat().st_size >= 4_000_000)
                killed.process.kill()
                await killed.process.wait()
            had = arriving.stat().st_size
            assert 4_000_000 <= had < 20_000_000
            brake.open.set()
            asked = len(brake.asked)
            async with asker(tmp_path / "b", digest, a) as next_one:
                assert await next_one.line() == "begun"
                path = Path(await next_one.line())
                assert read_folder(path) == read_folder(folder)
                assert brake.asked[asked:] == [(str(had), "20000000")]
                await next_one.end()


async def test_the_start_that_a_killed_fetch_left_is_not_believed(tmp_path: Path) -> None:
    folder = random_adapter(tmp_path / "adapter", 3_000_000)
    async with served_shelf(tmp_path / "a") as a:
        digest = await a.shelf.offer(folder)
        shelf = Shelf(tmp_path / "b", PLENTY)
        files = shelf.copies.begin(digest, await a.shelf.manifest(digest))
        left = {"adapter_model.safetensors": bytes(1_000_000), "adapter_config.json": b"[]", "older": b"?"}
        write_folder(files, left)
        assert read_folder(await shelf.fetch(digest, [a.source])) == read_folder(folder)
        await shelf.close()


async def test_what_another_process_uses_is_not_evicted(tmp_path: Path) -> None:
    async with served_shelf(tmp_path / "a") as a:
        one, two = [await a.shelf.offer(random_adapter(tmp_path / str(n), 1000)) for n in range(2)]
        async with asker(tmp_path / "b", one, a, limit=1500) as user:
            assert await user.line() == "begun"
            assert str(tmp_path / "b") in await user.line()
            shelf = Shelf(tmp_path / "b", 1500)
            with pytest.raises(DiskError, match="in use"):
                await shelf.fetch(two, [a.source])
            assert one in {copy.digest for copy in shelf.list_copies()}
            user.process.kill()  # the kernel drops its lock
            await user.process.wait()
            await shelf.fetch(two, [a.source])
            assert [copy.digest for copy in shelf.list_copies()] == [two]
            await shelf.close()
