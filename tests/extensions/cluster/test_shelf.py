"""A shelf: fetched once, verified, never damaged, evicted by last use; what it says when it cannot."""

from __future__ import annotations

import asyncio
import os
import re
import socket
from pathlib import Path

import pytest
from shelves import PLENTY, QUICK, random_adapter, read_folder, served_shelf, write_folder

from art.errors import DeadlineError, DiskError, NotFoundError, StorageError
from art_extensions.cluster.shelf import Shelf
from art_extensions.cluster.sources import PullLimits, Source


async def test_a_folder_arrives_as_it_is(tmp_path: Path) -> None:
    folder = random_adapter(tmp_path / "adapter")
    async with served_shelf(tmp_path / "a") as a, served_shelf(tmp_path / "b", host="127.0.0.12") as b:
        digest = await a.shelf.offer(folder)
        path = await b.shelf.fetch(digest, [a.source])
        assert read_folder(path) == read_folder(folder)
        assert not list((tmp_path / "b" / "arriving").iterdir())
        assert path == await b.shelf.fetch(digest, [])  # it is there: nobody is asked


async def test_many_askers_cost_one_fetch(tmp_path: Path) -> None:
    folder = random_adapter(tmp_path / "adapter")
    async with served_shelf(tmp_path / "a") as a, served_shelf(tmp_path / "b") as b:
        digest = await a.shelf.offer(folder)
        opened = count_opened(a.shelf)
        paths = await asyncio.gather(*(b.shelf.fetch(digest, [a.source]) for _ in range(8)))
        assert len(set(paths)) == 1
        assert sorted(opened) == [
            "adapter_config.json",
            "adapter_model.safetensors",
        ]  # the empty one is not asked for


async def test_one_asker_that_gives_up_does_not_end_the_fetch_of_the_other(tmp_path: Path) -> None:
    folder = random_adapter(tmp_path / "adapter", 8_000_000)
    async with served_shelf(tmp_path / "a") as a, served_shelf(tmp_path / "b") as b:
        digest = await a.shelf.offer(folder)
        first = asyncio.create_task(b.shelf.fetch(digest, [a.source]))
        second = asyncio.create_task(b.shelf.fetch(digest, [a.source]))
        await asyncio.sleep(0)
        first.cancel()
        assert read_folder(await second) == read_folder(folder)


@pytest.mark.parametrize("damage", ["truncated", "flipped", "missing", "additional", "replaced by a link"])
@pytest.mark.parametrize("restarted", [True, False])
async def test_a_damaged_copy_is_fetched_again(tmp_path: Path, damage: str, restarted: bool) -> None:
    folder = random_adapter(tmp_path / "adapter")
    async with served_shelf(tmp_path / "a") as a:
        digest = await a.shelf.offer(folder)
        shelf = Shelf(tmp_path / "b", PLENTY, limits=QUICK)
        path = await shelf.fetch(digest, [a.source])
        harm(path / "adapter_model.safetensors", damage)
        if restarted:
            await shelf.close()
            shelf = Shelf(tmp_path / "b", PLENTY, limits=QUICK)
        with pytest.raises(StorageError, match="none was named"):
            await shelf.fetch(digest, [])
        assert read_folder(await shelf.fetch(digest, [a.source])) == read_folder(folder)
        await shelf.close()


async def test_a_flipped_bit_that_left_no_trace_is_found_after_a_start(tmp_path: Path) -> None:
    folder = random_adapter(tmp_path / "adapter")
    async with served_shelf(tmp_path / "a") as a:
        digest = await a.shelf.offer(folder)
        shelf = Shelf(tmp_path / "b", PLENTY, limits=QUICK)
        file = await shelf.fetch(digest, [a.source]) / "adapter_model.safetensors"
        before = file.stat()
        harm(file, "flipped")
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        await shelf.close()
        shelf = Shelf(tmp_path / "b", PLENTY, limits=QUICK)
        with pytest.raises(NotFoundError):
            await shelf.manifest(digest)  # a peer does not get it either
        assert read_folder(await shelf.fetch(digest, [a.source])) == read_folder(folder)
        await shelf.close()


async def test_a_source_that_sends_other_bytes_is_left_for_the_next(tmp_path: Path) -> None:
    """Its file changed in place after its digest was taken."""
    bad, good = random_adapter(tmp_path / "bad"), tmp_path / "good"
    write_folder(good, read_folder(bad))
    async with (
        served_shelf(tmp_path / "a") as a,
        served_shelf(tmp_path / "b") as b,
        served_shelf(tmp_path / "c") as c,
    ):
        digest = await a.shelf.offer(bad)
        harm(bad / "adapter_model.safetensors", "flipped")
        with pytest.raises(
            StorageError, match=rf"{re.escape(a.source.url)}: adapter_model.* has another sha256"
        ):
            await c.shelf.fetch(digest, [a.source])
        assert digest == await b.shelf.offer(good)
        assert read_folder(await c.shelf.fetch(digest, [a.source, b.source])) == read_folder(good)


async def test_each_source_is_named_with_its_failure(tmp_path: Path) -> None:
    async with served_shelf(tmp_path / "a") as a, served_shelf(tmp_path / "b") as b:
        with socket.create_server(("127.0.0.14", 0)) as taken:
            port = taken.getsockname()[1]
        dead = Source(url=f"http://127.0.0.14:{port}", key="k")
        wrong = Source(url=a.source.url, key="wrong")
        empty = Source(url=b.source.url, key=b.source.key)
        shelf = Shelf(tmp_path / "c", PLENTY, limits=QUICK)
        with pytest.raises(StorageError) as failure:
            await shelf.fetch("0" * 64, [dead, wrong, empty])
        told = str(failure.value)
        assert f"{dead.url}: ConnectError" in told
        assert f"{wrong.url}: it refuses the key" in told
        assert f"{empty.url}: it has no such copy" in told
        assert a.source.key not in told and b.source.key not in told
        await shelf.close()


async def test_an_unreachable_source_costs_its_turn_only(tmp_path: Path) -> None:
    folder = random_adapter(tmp_path / "adapter")
    async with served_shelf(tmp_path / "a") as a, served_shelf(tmp_path / "b") as b:
        digest = await a.shelf.offer(folder)
        with socket.create_server(("127.0.0.14", 0)) as silent:  # it accepts, and never answers
            quick = PullLimits(total=60.0, connect=0.3, silence=0.3, rounds=1)
            shelf = Shelf(tmp_path / "c", PLENTY, limits=quick)
            sources = [Source(url=f"http://127.0.0.14:{silent.getsockname()[1]}"), b.source, a.source]
            assert read_folder(await shelf.fetch(digest, sources)) == read_folder(folder)
            await shelf.close()


async def test_a_fetch_has_a_deadline(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.14", 0)) as silent:
        shelf = Shelf(tmp_path / "c", PLENTY, limits=PullLimits(total=0.2))
        with pytest.raises(DeadlineError, match=r"was not here within 0\.2 s; sources: http://127\.0\.0\.14"):
            await shelf.fetch("0" * 64, [Source(url=f"http://127.0.0.14:{silent.getsockname()[1]}")])
        await shelf.close()


async def test_the_least_recently_used_makes_room(tmp_path: Path) -> None:
    async with served_shelf(tmp_path / "a") as a:
        digests = [
            await a.shelf.offer(random_adapter(tmp_path / f"adapter{number}", 1000)) for number in range(4)
        ]
        shelf = Shelf(tmp_path / "b", 3100, limits=QUICK, keep_s=0.0)
        for digest in digests[:3]:
            await shelf.fetch(digest, [a.source])
            await asyncio.sleep(0.02)
        await shelf.fetch(digests[0], [])  # used again
        await shelf.fetch(digests[3], [a.source])
        assert {one.digest for one in shelf.list_copies()} == {digests[0], digests[2], digests[3]}
        await shelf.close()


async def test_what_is_in_use_is_never_evicted(tmp_path: Path) -> None:
    async with served_shelf(tmp_path / "a") as a:
        one, two = [await a.shelf.offer(random_adapter(tmp_path / str(n), 1000)) for n in range(2)]
        shelf = Shelf(tmp_path / "b", 1500, limits=QUICK, keep_s=0.0)
        other_process = Shelf(tmp_path / "b", 1500, limits=QUICK, keep_s=0.0)
        path = await shelf.fetch(one, [a.source])
        async with shelf.using(one):
            for asker in (shelf, other_process):
                with pytest.raises(DiskError, match=r"are in use\. Raise its limit"):
                    await asker.fetch(two, [a.source])
            assert path.exists()
        await other_process.fetch(two, [a.source])
        assert not path.exists()
        await shelf.close()
        await other_process.close()


async def test_what_was_just_given_out_stays_for_its_reader(tmp_path: Path) -> None:
    async with served_shelf(tmp_path / "a") as a:
        one, two = [await a.shelf.offer(random_adapter(tmp_path / str(n), 1000)) for n in range(2)]
        shelf = Shelf(tmp_path / "b", 1500, limits=QUICK, keep_s=60.0)
        await shelf.fetch(one, [a.source])
        with pytest.raises(DiskError, match="in use"):
            await shelf.fetch(two, [a.source])
        await shelf.close()


async def test_what_is_held_stays_for_as_long_as_the_shelf(tmp_path: Path) -> None:
    """A base model was used least recently, and its worker may be started again."""
    async with served_shelf(tmp_path / "a") as a:
        digests = [await a.shelf.offer(random_adapter(tmp_path / str(n), 1000)) for n in range(3)]
        shelf = Shelf(tmp_path / "b", 2100, limits=QUICK, keep_s=0.0)
        await shelf.fetch(digests[0], [a.source], hold=True)
        for digest in (*digests[1:], digests[0]):
            await asyncio.sleep(0.02)
            await shelf.fetch(digest, [a.source])
        for digest in digests[1:]:
            await shelf.fetch(digest, [a.source])
            assert digests[0] in {one.digest for one in shelf.list_copies()}
        await shelf.close()
        other = Shelf(tmp_path / "b", 1500, limits=QUICK, keep_s=0.0)
        await other.fetch(digests[1], [a.source])
        assert [one.digest for one in other.list_copies()] == [digests[1]]
        await other.close()


async def test_a_folder_larger_than_the_shelf_is_refused(tmp_path: Path) -> None:
    async with served_shelf(tmp_path / "a") as a:
        digest = await a.shelf.offer(random_adapter(tmp_path / "adapter", 5000))
        shelf = Shelf(tmp_path / "b", 4000, limits=QUICK)
        with pytest.raises(DiskError, match=r"5,002 bytes, the shelf .* takes 4,000: raise its limit"):
            await shelf.fetch(digest, [a.source])
        await shelf.close()


@pytest.mark.slow
@pytest.mark.parametrize("small_disk", ["1m"], indirect=True)
async def test_a_full_disk_is_told_and_nothing_half_stays(tmp_path: Path, small_disk: Path) -> None:
    async with served_shelf(tmp_path / "a") as a:
        large = await a.shelf.offer(random_adapter(tmp_path / "large", 2_000_000))
        small = await a.shelf.offer(random_adapter(tmp_path / "small", 100_000))
        shelf = Shelf(small_disk / "shelf", PLENTY, limits=QUICK)
        with pytest.raises(DiskError, match=f"the disk is full: {small_disk}"):
            await shelf.fetch(large, [a.source])
        assert shelf.list_copies() == []
        assert (await shelf.fetch(small, [a.source])).exists()
        await shelf.close()


@pytest.mark.slow
@pytest.mark.parametrize("small_disk", ["3m"], indirect=True)
async def test_a_disk_that_fills_in_the_middle_is_told(
    tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else takes the room after it was counted."""
    async with served_shelf(tmp_path / "a") as a:
        digest = await a.shelf.offer(random_adapter(tmp_path / "large", 2_500_000))
        shelf = Shelf(small_disk / "shelf", PLENTY, limits=QUICK)
        begin = shelf.copies.begin

        def begin_and_fill(*arguments: object) -> Path:
            folder = begin(*arguments)  # type: ignore[arg-type]
            (small_disk / "other").write_bytes(bytes(2_000_000))
            return folder

        monkeypatch.setattr(shelf.copies, "begin", begin_and_fill)
        with pytest.raises(DiskError, match=r"the copy .* could not be written: the disk is full"):
            await shelf.fetch(digest, [a.source])
        assert shelf.list_copies() == []
        await shelf.close()


async def test_an_old_copy_makes_room_on_a_full_disk(tmp_path: Path) -> None:
    async with served_shelf(tmp_path / "a") as a:
        one, two = [await a.shelf.offer(random_adapter(tmp_path / str(n), 1000)) for n in range(2)]
        shelf = Shelf(tmp_path / "b", PLENTY, limits=QUICK, keep_s=0.0)
        await shelf.fetch(one, [a.source])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(shelf.copies, "_has_free", lambda size: not shelf.copies.files(one).exists())
            await shelf.fetch(two, [a.source])
        assert [copy.digest for copy in shelf.list_copies()] == [two]
        await shelf.close()


async def test_a_bucket_is_a_source(tmp_path: Path) -> None:
    folder = random_adapter(tmp_path / "adapter")
    url = f"file://{tmp_path}/bucket"
    here, there = (Shelf(tmp_path / name, PLENTY, limits=QUICK) for name in "ab")
    digest = await here.offer(folder)
    with pytest.raises(StorageError, match="it has no such copy"):
        await there.fetch(digest, [Source(url=url)])
    await here.publish(digest, url)
    assert read_folder(await there.fetch(digest, [Source(url=url)])) == read_folder(folder)
    with pytest.raises(StorageError, match="'gopher' is no kind of address"):
        await there.fetch("0" * 64, [Source(url="gopher://x/y")])
    await here.close()
    await there.close()


async def test_a_folder_is_read_once_for_as_long_as_it_stays_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = random_adapter(tmp_path / "adapter")
    for path in folder.rglob("*"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    shelf, read = Shelf(tmp_path / "a", PLENTY), []
    import art_extensions.cluster.folder_manifest as under_test

    entry_of = under_test.manifest_entry
    monkeypatch.setattr(under_test, "manifest_entry", lambda path: read.append(path.name) or entry_of(path))
    first = await shelf.offer(folder)
    assert sorted(read) == ["adapter_config.json", "adapter_model.safetensors", "empty"]
    folder.rename(tmp_path / "renamed")
    assert await shelf.offer(tmp_path / "renamed") == first
    assert len(read) == 3
    (tmp_path / "renamed" / "adapter_config.json").write_bytes(b"[]")
    assert await shelf.offer(tmp_path / "renamed") != first
    assert len(read) == 4
    await shelf.close()


async def test_what_another_copy_has_is_not_sent_again(tmp_path: Path) -> None:
    """The adapter for an engine, on the node whose trainer has all of the checkpoint."""
    files = {"adapter_model.safetensors": os.urandom(10_000), "optimizer.safetensors": os.urandom(20_000)}
    folder = write_folder(tmp_path / "step", files)
    async with served_shelf(tmp_path / "a") as a, served_shelf(tmp_path / "b") as b:
        whole = await b.shelf.fetch(await a.shelf.offer(folder), [a.source])
        opened = count_opened(a.shelf)
        digest = await a.shelf.offer(folder, without={"optimizer.safetensors"})
        part = await b.shelf.fetch(digest, [a.source])
        assert list(read_folder(part)) == ["adapter_model.safetensors"] and opened == []
        assert (part / "adapter_model.safetensors").samefile(whole / "adapter_model.safetensors")

        harm(part / "adapter_model.safetensors", "flipped")  # one file in two copies
        again = await b.shelf.fetch(digest, [a.source])
        assert read_folder(again) == {"adapter_model.safetensors": files["adapter_model.safetensors"]}
        assert opened == ["adapter_model.safetensors"]
        whole = await b.shelf.fetch(await a.shelf.offer(folder), [a.source])
        assert read_folder(whole) == files and opened == [
            "adapter_model.safetensors",
            "optimizer.safetensors",
        ]


async def test_what_a_worker_wrote_becomes_a_copy(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "a", PLENTY, limits=QUICK)
    written = random_adapter(shelf.copies.written / "w1", 1000)
    content = read_folder(written)
    digest = await shelf.adopt(written)
    assert not written.exists()
    assert digest == await shelf.adopt(written)  # asked again, because the answer was lost
    assert read_folder(await shelf.fetch(digest, [])) == content
    for elsewhere in (tmp_path / "elsewhere", shelf.copies.written / ".." / "copies", shelf.copies.written):
        elsewhere.mkdir(exist_ok=True)
        with pytest.raises(StorageError, match="is no folder that a worker wrote"):
            await shelf.adopt(elsewhere)
    linked = write_folder(shelf.copies.written / "w2", {"a": b"a"})
    (linked / "b").symlink_to("/etc/hostname")
    with pytest.raises(StorageError, match="is no plain file"):
        await shelf.adopt(linked)
    await shelf.close()
    assert not shelf.copies.written.exists()


def test_what_a_killed_process_wrote_is_removed(tmp_path: Path) -> None:
    first = Shelf(tmp_path / "a", PLENTY)
    left = write_folder(first.copies.written / "w1", {"a": b"a"})
    second = Shelf(tmp_path / "a", PLENTY)
    assert left.exists()  # its process lives
    os.close(first.copies._written_lock or -1)  # what the kernel does with a killed process
    third = Shelf(tmp_path / "a", PLENTY)
    assert not left.exists()
    asyncio.run(second.close())
    asyncio.run(third.close())


async def test_brought_folders_replace_nothing(tmp_path: Path) -> None:
    folder = random_adapter(tmp_path / "adapter", 1000)
    async with served_shelf(tmp_path / "a") as a:
        digest = await a.shelf.offer(folder)
        server = Shelf(tmp_path / "b", PLENTY, limits=QUICK)
        target = tmp_path / "steps" / ".0003.saving"
        await server.bring(digest, [a.source], target)
        assert read_folder(target) == read_folder(folder)
        with pytest.raises(StorageError, match="exists already"):
            await server.bring(digest, [a.source], target)
        with pytest.raises(StorageError, match="it has no such copy"):
            await server.bring("0" * 64, [a.source], tmp_path / "steps" / "0004")
        assert [path.name for path in target.parent.iterdir()] == [".0003.saving"]
        await server.close()


def harm(file: Path, damage: str) -> None:
    content = file.read_bytes()
    file.chmod(0o600)
    if damage == "truncated":
        file.write_bytes(content[:-1])
    elif damage == "flipped":
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "missing":
        file.unlink()
    elif damage == "additional":
        file.with_name("more.py").write_bytes(b"import os")
    else:
        file.unlink()
        elsewhere = file.parents[4] / "elsewhere"
        elsewhere.write_bytes(content)
        file.symlink_to(elsewhere)


def count_opened(shelf: Shelf) -> list[str]:
    """The names of the files that others read from this shelf, from now on."""
    opened: list[str] = []
    open_file = shelf.open_file

    async def counting(digest: str, name: str) -> object:
        opened.append(name)
        return await open_file(digest, name)

    shelf.open_file = counting  # type: ignore[assignment,method-assign]
    return opened
