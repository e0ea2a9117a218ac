"""What is committed is exact and stays, whatever happens to the process."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from homes import Home
from made_samples import sample

from art.errors import ConfigurationError, NotFoundError
from art.server.ledger.face import SampleLedger
from art.server.ledger.ledger import Ledger, LedgerError
from art.server.ledger.schema import LostImageError, SampleRecord, keep_images, read_images
from art.wire.samples import candidates_record, image_name
from waiting import DEADLINE_S, until


@pytest.fixture
async def ledger(home: Home) -> AsyncIterator[SampleLedger]:
    opened = await home.open_ledger()
    yield opened
    await opened.close()


async def test_records_come_back_exactly(ledger: SampleLedger) -> None:
    record = sample("a", range(5), [2**31 - 1, 0, 7], rollout_id="r", fork_reason="history_edited")
    await ledger.writer.append([record])
    assert await ledger.samples(["a"]) == [record]


async def test_candidates_come_back_exactly_and_are_stored_small(ledger: SampleLedger, home: Home) -> None:
    told = b"".join(candidates_record(range(token, token + 40)) for token in range(500))
    record = sample("a", range(5), range(500), candidates=told)
    await ledger.writer.append([record, sample("b")])
    assert await ledger.samples(["a", "b"]) == [record, sample("b")]
    stored = home.sql("SELECT LENGTH(candidates) FROM samples ORDER BY rowid")
    assert stored[1] == (None,) and 0 < stored[0][0] < len(told) / 2


async def test_a_file_from_before_there_were_candidates_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    first = Ledger(path)
    await first.writer.append([sample("a")])
    await first.close()
    with sqlite3.connect(path) as old:
        old.executescript(
            "DROP TABLE images; ALTER TABLE samples DROP COLUMN candidates; PRAGMA user_version = 5;"
        )
    ledger = Ledger(path)
    record = sample("b", candidates=candidates_record([3, 4]))
    await ledger.writer.append([record])
    assert await ledger.samples(["a", "b"]) == [sample("a"), record]
    await ledger.close()


async def test_an_extending_prompt_is_stored_as_its_tail(ledger: SampleLedger, home: Home) -> None:
    records = [sample("s0", range(1000), [5, 6], rollout_id="r")]
    for n in range(1, 40):
        before = records[-1]
        prompt = [*before.prompt_ids, *before.completion_ids, n]
        records.append(
            sample(
                f"s{n}", prompt, [n, n], rollout_id="r", parent_id=before.sample_id, shared=len(prompt) - 1
            )
        )
    await ledger.writer.append(records)
    assert await ledger.rollout("r") == records
    assert await ledger.samples(["s39", "s3"]) == [records[39], records[3]]
    ((stored,),) = home.sql("SELECT SUM(LENGTH(prompt)) FROM samples")
    assert stored == 4 * (1000 + 39)


async def test_unknown_samples_are_named(ledger: SampleLedger) -> None:
    await ledger.writer.append([sample("a")])
    with pytest.raises(NotFoundError, match="'b', 'c'"):
        await ledger.samples(["a", "b", "c"])
    assert await ledger.rollout("nobody") == []


async def test_writers_at_the_same_time_share_a_commit_but_not_a_cancellation(ledger: SampleLedger) -> None:
    writers = [asyncio.create_task(ledger.writer.append([sample(f"s{n}")])) for n in range(200)]
    await asyncio.sleep(0)
    writers[0].cancel()
    results = await asyncio.gather(*writers, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert results[1:] == [None] * 199
    assert len(await ledger.samples([f"s{n}" for n in range(200)])) == 200


async def test_a_refused_row_fails_its_writers_and_no_other(ledger: SampleLedger) -> None:
    await ledger.writer.append([sample("a")])
    with pytest.raises(LedgerError, match="cannot write 1 samples"):
        await ledger.writer.append([sample("a")])
    await ledger.writer.append([sample("b")])
    assert len(await ledger.samples(["a", "b"])) == 2


async def test_turns_are_found_newest_first_and_own_rollout_first(ledger: SampleLedger) -> None:
    for name, rollout in (("a", "r1"), ("b", "r2"), ("c", None)):
        await ledger.writer.append([sample(name, rollout_id=rollout, turn_key=b"k")])

    async def found(keys: list[bytes], rollout: str | None) -> str | None:
        record = await ledger.find_turn(keys, rollout)
        return record and record.sample_id

    assert await found([b"k"], "r1") == "a"
    assert await found([b"k"], "other") == "c"
    assert await found([b"no", b"k"], None) == "c"
    assert await found([b"no"], "r1") is None


async def test_closing_commits_what_waits_and_then_refuses(home: Home) -> None:
    ledger = await home.open_ledger()
    writing = asyncio.create_task(ledger.writer.append([sample("a")]))
    await asyncio.sleep(0)
    await ledger.close()
    await writing
    await ledger.close()
    with pytest.raises(LedgerError, match="closed"):
        await ledger.writer.append([sample("b")])
    again = await home.open_ledger()
    assert len(await again.samples(["a"])) == 1
    await again.close()


def test_other_files_and_versions_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not a database, but long enough to look at" * 10)
    with pytest.raises(ConfigurationError, match="not a ledger"):
        Ledger(tmp_path / "text")
    with sqlite3.connect(tmp_path / "newer") as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(ConfigurationError, match="version 99"):
        Ledger(tmp_path / "newer")


WRITER = """
import asyncio, sys
sys.path[:0] = {tests!r}
from homes import Home
from made_samples import sample
from made_samples import sample

async def main():
    ledger = await Home.of_child().open_ledger()
    async def write(worker):
        n = 0
        while True:
            name = f"{{worker}}-{{n}}"
            await ledger.writer.append([sample(name, range(n % 7 + 1), range(n % 5 + 1))])
            sys.stdout.write(name + "\\n")
            sys.stdout.flush()
            n += 1
    await asyncio.gather(*(write(worker) for worker in range(8)))

asyncio.run(main())
"""


def start_child(code: str, home: Home) -> subprocess.Popen[str]:
    """A process that writes to the same ledger."""
    here = Path(__file__).parent
    code = code.format(tests=[str(here), str(here.parent)])
    environment = {**os.environ, **home.environment}
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)


@pytest.mark.slow
def test_what_was_acknowledged_survives_kill_9(home: Home) -> None:
    child = start_child(WRITER, home)
    assert child.stdout is not None
    acknowledged = [child.stdout.readline().strip() for _ in range(300)]
    os.kill(child.pid, signal.SIGKILL)
    acknowledged += [line.strip() for line in child.stdout if line.endswith("\n")]
    child.wait(DEADLINE_S)
    assert len(acknowledged) >= 300

    async def read() -> list[SampleRecord]:
        ledger = await home.open_ledger()
        records = await ledger.samples(acknowledged)
        await ledger.writer.append([sample("after")])
        await ledger.close()
        await home.close()
        return records

    for name, record in zip(acknowledged, asyncio.run(read()), strict=True):
        n = int(name.partition("-")[2])
        assert record == sample(name, range(n % 7 + 1), range(n % 5 + 1))


async def test_notes_are_committed_before_what_is_appended_later_and_at_the_end(home: Home) -> None:
    ledger, text = await home.open_ledger(), "INSERT INTO delivered VALUES ('', 'r', ?)"
    ledger.writer.note([(text, ("a",))])
    await ledger.writer.append([sample("one")])
    assert await ledger.rows("SELECT request_id FROM delivered") == [("a",)]
    ledger.writer.note([(text, ("b",))])
    await ledger.close()
    ledger.writer.note([(text, ("c",))])
    after = await home.open_ledger()
    assert await after.rows("SELECT request_id FROM delivered") == [("a",), ("b",)]
    await after.close()


async def test_a_file_of_the_first_version_keeps_all_rows_as_the_operators(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    first = Ledger(path)
    records = [
        sample("a", rollout_id="r"),
        sample("b", (1, 2, 3, 4), parent_id="a", shared=3, rollout_id="r"),
    ]
    await first.writer.append(records)
    await first.close()
    with sqlite3.connect(path) as old:  # as it was before there were tenants
        old.executescript("DROP TABLE rollouts; DROP TABLE exchanges; DROP TABLE delivered;")
        old.executescript("ALTER TABLE samples DROP COLUMN tenant; ALTER TABLE samples DROP COLUMN checksum;")
        old.executescript("DROP TABLE images; ALTER TABLE samples DROP COLUMN candidates;")
        old.execute("PRAGMA user_version = 1")
    ledger = Ledger(path)
    assert await ledger.samples(["a", "b"]) == records
    assert await ledger.rollout("r") == records and await ledger.rollout("r", tenant="alice") == []
    assert await ledger.has_rollout("r") and not await ledger.has_rollout("r", tenant="alice")
    await ledger.writer.append([replace(sample("c", rollout_id="r"), tenant="alice")])
    with pytest.raises(NotFoundError, match="no such sample: 'a'"):
        await ledger.samples(["a", "c"], tenant="alice")
    assert [one.sample_id for one in await ledger.rollout("r", tenant="alice")] == ["c"]
    assert [one.sample_id for one in await ledger.rollout("r")] == ["a", "b", "c"]
    assert await ledger.rows("SELECT * FROM delivered") == []
    await ledger.close()


async def test_a_note_that_cannot_be_written_is_told_by_the_log(
    ledger: SampleLedger, caplog: pytest.LogCaptureFixture
) -> None:
    ledger.writer.note([("INSERT INTO no_such_table VALUES (?)", ("a",))])
    await until(lambda: "no_such_table" in caplog.text)
    await ledger.writer.append([sample("a")])


REMOVER = """
import asyncio, sys
sys.path[:0] = {tests!r}
from homes import Home
from made_samples import sample
from made_samples import sample

async def main():
    ledger = await Home.of_child().open_ledger(removes=True)
    async def write(worker):
        n = 0
        while True:
            first, second = f"{{worker}}-{{n}}-a", f"{{worker}}-{{n}}-b"
            chain = sample(second, (1, 2, 3, 4), (5,), parent_id=first, shared=3)
            await ledger.writer.append([sample(first), chain])
            sys.stdout.write(f"{{first}} {{second}}\\n")
            sys.stdout.flush()
            if n % 2:
                await ledger.remove([first, second])
            n += 1
    await asyncio.gather(*(write(worker) for worker in range(8)))

asyncio.run(main())
"""


@pytest.mark.slow
def test_a_kill_in_a_removal_leaves_each_sample_whole_or_removed(home: Home) -> None:
    child = start_child(REMOVER, home)
    assert child.stdout is not None
    written = [child.stdout.readline().split() for _ in range(400)]
    os.kill(child.pid, signal.SIGKILL)
    written += [line.split() for line in child.stdout if line.endswith("-b\n")]
    child.wait(DEADLINE_S)

    async def read() -> tuple[dict[str, SampleRecord], frozenset[str], int]:
        ledger = await home.open_ledger()
        records, damaged, removed = await ledger.readable([name for pair in written for name in pair])
        size = await ledger.size()
        await ledger.close()
        await home.close()
        assert not damaged
        return records, removed, size.removed

    records, removed, number = asyncio.run(read())
    assert records and removed and number >= len(removed)
    for first, second in written:
        assert (first in removed) == (second in removed), "both or none"
        assert first in removed or list(records[second].prompt_ids) == [1, 2, 3, 4]


async def test_images_stay_as_long_as_a_sample_of_their_time(home: Home) -> None:
    ledger = await home.open_ledger(removes=True)
    first, second, day = b"first", b"second", 86_400.0
    names = {image_name(file): file for file in (first, second)}
    await ledger.writer.append([sample("a", created_at=day)], keep_images([first, first, second], day))
    await ledger.writer.append([sample("b", created_at=3 * day)], keep_images([second], 3 * day))
    assert await read_images(ledger.rows, names) == names
    assert await ledger.remove(["a"]) == 1
    assert await read_images(ledger.rows, [image_name(second)]) == {image_name(second): second}
    with pytest.raises(LostImageError, match=f"1 images no more.*{image_name(first)}"):
        await read_images(ledger.rows, names)
    await ledger.close()
