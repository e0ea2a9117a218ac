"""What is damaged on disk is named, is trained nowhere, and is never replaced by something empty."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from array import array
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from test_ledger import sample

from art.errors import ConfigurationError, DiskError, NotFoundError
from art.server.checkpoints.registered_models import Registration
from art.server.jobs.job_store import JobStore
from art.server.ledger.face import DamagedSampleError
from art.server.ledger.ledger import Ledger
from art.server.ledger.schema import checksum, to_row
from art.wire.samples import candidates_record


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """A ledger with a chain of two samples and one for itself."""
    ledger = Ledger(tmp_path / "ledger.sqlite")
    chain = [sample("a", (1, 2), (3,)), sample("b", (1, 2, 3, 4), (5,), parent_id="a", shared=3)]
    await ledger.writer.append([*chain, sample("c", (7, 8), (9, 10), rollout_id="r", tenant="alice")])
    await ledger.close()
    return tmp_path / "ledger.sqlite"


def flip(path: Path, column: str, name: str) -> None:
    """One bit of one row's value, as a disk flips it: behind the back of the checksum."""
    with sqlite3.connect(path) as database:
        query = f"SELECT typeof({column}), {column} FROM samples WHERE sample_id = ?"
        kind, value = database.execute(query, (name,)).fetchone()
        if kind == "blob":
            changed = bytes([value[0] ^ 1, *value[1:]])
        elif kind == "text":
            changed = chr(ord(value[0]) ^ 1) + value[1:]
        else:
            changed = value + 1
        database.execute(f"UPDATE samples SET {column} = ? WHERE sample_id = ?", (changed, name))
    database.close()


FLIPPED = ["prompt", "completion", "logprobs", "sampling", "step", "adapter", "finish_reason", "created_at"]


@pytest.mark.parametrize("column", [*FLIPPED, "turn_key", "rollout_id", "checksum"])
async def test_a_flipped_bit_in_a_row_is_found_when_it_is_read(path: Path, column: str) -> None:
    flip(path, column, "c")
    ledger = Ledger(path)
    with pytest.raises(
        DamagedSampleError, match=r"ledger\.sqlite: sample 'c' \(its row does not fit"
    ) as damaged:
        await ledger.samples(["a", "c"])
    assert damaged.value.code == "sample_damaged" and damaged.value.status == 500
    assert [one.sample_id for one in await ledger.samples(["a", "b"])] == ["a", "b"]
    records, why, _ = await ledger.readable(["a", "c"])
    assert set(records) == {"a"} and set(why) == {"c"}
    assert await ledger.known(["a", "c"], tenant=None) == {"a": records["a"]}
    with pytest.raises(NotFoundError):
        await ledger.samples(["c"], tenant="bob")
    await ledger.close()


async def test_what_begins_with_damaged_ids_is_damaged_too(path: Path) -> None:
    flip(path, "completion", "a")
    ledger = Ledger(path)
    with pytest.raises(DamagedSampleError, match="the row of 'a', whose ids it begins with"):
        await ledger.samples(["b"])
    await ledger.close()
    with sqlite3.connect(path) as database:
        database.execute("DELETE FROM samples WHERE sample_id = 'a'")
    ledger = Ledger(path)
    with pytest.raises(DamagedSampleError, match="is lost or damaged"):
        await ledger.samples(["b"])
    assert await ledger.find_turn([b"b"], None) is None
    await ledger.close()


async def test_rows_without_a_checksum_are_read_as_they_are(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.executescript("DROP TABLE images; ALTER TABLE samples DROP COLUMN candidates;")
        database.executescript("ALTER TABLE samples DROP COLUMN checksum; PRAGMA user_version = 4;")
    ledger = Ledger(path)
    assert [one.sample_id for one in await ledger.samples(["a", "b", "c"])] == ["a", "b", "c"]
    await ledger.writer.append([sample("d")])
    await ledger.close()
    flip(path, "prompt", "d")
    with sqlite3.connect(path) as database:  # rows that even an older version cannot have written
        database.execute("UPDATE samples SET sampling = x'ff' WHERE sample_id = 'c'")
        database.execute("UPDATE samples SET parent_id = 'b', shared = 1 WHERE sample_id = 'a'")
    ledger = Ledger(path)
    _, why, _ = await ledger.readable(["a", "b", "c", "d"])
    assert set(why) == {"a", "b", "c", "d"}
    assert why["d"].startswith("its row does not fit") and why["c"].startswith("its row cannot be read")
    await ledger.close()


def test_the_checksum_holds_every_value_and_outlives_new_columns() -> None:
    told = candidates_record([3, 4])
    one = sample("a", rollout_id="r", parent_id="p", fork_reason="f", tenant="t", candidates=told)
    row = to_row(one)
    assert row[-1] == checksum(row[:-1]) == checksum((*row[:-1], None))
    for place, value in enumerate(row[:-1]):
        other = (
            value + b"x" if isinstance(value, bytes) else value + "x" if isinstance(value, str) else value + 1
        )
        changed = (*row[:place], other, *row[place + 1 : -1])
        assert checksum(changed) != row[-1], place
    moved = replace(one, completion_ids=array("i"), prompt_ids=one.prompt_ids + one.completion_ids)
    assert to_row(moved)[-1] != row[-1], "what stands where counts"


@pytest.mark.parametrize("content", [b"", b"garbage" * 2000])
def test_a_ledger_that_cannot_be_read_is_not_to_be_thrown_away(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(content)
    if not content:
        asyncio.run(Ledger(path).close())  # whether a new one is wanted, the server has asked
        return
    with pytest.raises(ConfigurationError, match=r"holds every sample: keep a copy") as refused:
        Ledger(path)
    assert "move it away" not in str(refused.value) and path.read_bytes() == content


async def test_a_damaged_table_of_jobs_is_named_with_a_remedy_that_works(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite"
    await JobStore(path).close()
    whole = path.read_bytes()
    for damage in (b"garbage" * 2000, whole[: len(whole) // 2], whole[:100] + b"\xff" * (len(whole) - 100)):
        path.write_bytes(damage)
        with pytest.raises(ConfigurationError, match=r"jobs\.sqlite .* is damaged .* move it away"):
            JobStore(path)
        assert path.read_bytes() == damage
    path.unlink()
    await JobStore(path).close()


def start(folder: Path, **control: object) -> dict[str, object]:
    """What a server says first, in a process of its own."""
    line = json.dumps({"data_dir": str(folder), "key": "a-key-for-tests", "control": control}) + "\n"
    command = [sys.executable, "-m", "art.server"]
    done = subprocess.run(command, input=line, capture_output=True, text=True, timeout=240, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    said = json.loads(done.stdout.splitlines()[0])
    assert done.returncode == (0 if said["ready"] else 1)
    return dict(said)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["missing", "empty"])
@pytest.mark.parametrize("trace", ["jobs", "step"])
def test_no_empty_ledger_beside_what_was_trained(tmp_path: Path, how: str, trace: str) -> None:
    server = tmp_path / "server"
    assert start(tmp_path)["ready"]
    if trace == "step":
        shutil.rmtree(server)
        server.mkdir()
        step = tmp_path / "games" / "models" / "player" / "checkpoints" / "0001"
        step.mkdir(parents=True)
        (step / "job.json").write_text("{}")
        registered = Registration(project="games", name="player", base_model="art/nano", lora=None)
        (step.parent.parent / "registration.json").write_text(registered.model_dump_json())
    for left in server.glob("ledger.sqlite*"):
        left.unlink()
    if how == "empty":
        (server / "ledger.sqlite").touch()
    said = start(tmp_path)
    assert said["ready"] is False
    for named in (f"ledger.sqlite is {how}", "Restore it", "--new-ledger", "'new_ledger': True"):
        assert named in str(said["error"])
    assert start(tmp_path, new_ledger=True)["ready"] and start(tmp_path)["ready"]


@pytest.mark.slow
def test_checkpoints_that_were_brought_need_no_ledger(tmp_path: Path) -> None:
    """Pulled from a bucket, or written by an older program: no server has kept samples here."""
    (tmp_path / "games" / "models" / "player" / "checkpoints" / "0001").mkdir(parents=True)
    assert start(tmp_path)["ready"]


@pytest.mark.slow
def test_a_ledger_that_was_killed_at_once_is_not_taken_for_a_lost_one(tmp_path: Path) -> None:
    """A kill right after the first start: the file is not empty while all stands in the log beside it."""
    code = (
        "import os, sys; from pathlib import Path; from art.server.ledger.ledger import Ledger\n"
        "Ledger(Path(sys.argv[1])); os._exit(9)"
    )
    path = tmp_path / "ledger.sqlite"
    subprocess.run([sys.executable, "-c", code, str(path)], timeout=240, check=False)
    assert path.stat().st_size > 0


@pytest.fixture
def closed_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that nobody can write into."""
    folder = tmp_path / "closed"
    folder.mkdir()
    if os.geteuid() != 0:
        folder.chmod(0o500)
        yield folder
        folder.chmod(0o700)
        return
    command = ["mount", "-t", "tmpfs", "-o", "ro,size=64k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("root may mount nothing here, and no folder is closed to root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True, timeout=240)


@pytest.mark.slow
def test_a_read_only_folder_is_named(closed_folder: Path) -> None:
    said = start(closed_folder / "art")
    assert said["ready"] is False
    assert f"{closed_folder}/art" in str(said["error"]) and "permissions" in str(said["error"])


@pytest.mark.slow
def test_a_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = start(tmp_path / "file" / "art")
    assert said["ready"] is False and f"{tmp_path}/file/art" in str(said["error"])


@pytest.mark.slow
def test_damaged_databases_are_told_by_the_ready_line(tmp_path: Path) -> None:
    assert start(tmp_path)["ready"]
    for name in ("jobs.sqlite", "ledger.sqlite"):
        file = tmp_path / "server" / name
        whole = file.read_bytes()
        file.write_bytes(b"garbage" * 2000)
        said = start(tmp_path)
        assert said["ready"] is False and f"{name} is n" in str(said["error"])
        file.write_bytes(whole)
    assert start(tmp_path)["ready"]


async def test_a_full_disk_is_named_and_costs_nothing(path: Path) -> None:
    """SQLite's own refusal to grow a file: the same error as a disk without room."""
    ledger = Ledger(path)
    pages = ledger._writing.execute("PRAGMA page_count").fetchone()[0]
    ledger._writing.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(DiskError, match=r"cannot write 1 samples: the disk is full: .*bytes free.*is kept"):
        await ledger.writer.append([sample("large", range(20_000))])
    assert len(await ledger.samples(["a", "b", "c"])) == 3
    ledger._writing.execute("PRAGMA max_page_count = 1000000")
    await ledger.writer.append([sample("large", range(20_000))])
    await ledger.close()
