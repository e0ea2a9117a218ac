"""Rows a second that a ledger takes and gives, in Postgres beside SQLite, and how long a commit takes alone.

Both keep what is committed when their process is killed; Postgres waits for the disk besides (`fsync`). 256
writers wait for their commits, as requests do. A row is a sample of 500 prompt and 250 sampled ids: 4.4 KB.
The bench starts a Postgres of its own, on a loopback port: sh tests/install_programs.sh.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from array import array
from pathlib import Path

from art.server.ledger.face import SampleLedger
from art.server.ledger.ledger import Ledger
from art.server.ledger.schema import SampleRecord
from art_extensions.postgres.database import PostgresDatabase, parse_address
from art_extensions.postgres.samples import PostgresLedger
from bench.rows import Row, write_rows

GOAL_ROWS, WRITERS, PROMPT, COMPLETION = 3000, 256, 500, 250
ALONE = 200
"""Commits of one row each, one after the other."""


def sample(number: int) -> SampleRecord:
    """A sample of a rollout of eight turns, whose ids look like a tokenizer's."""
    return SampleRecord(
        sample_id=f"sample-{number:08d}",
        rollout_id=f"rollout-{number // 8}",
        project="games",
        model="player",
        base_model="org/base",
        step=number // 2000,
        adapter=f"games/player@{number // 2000}",
        parent_id=None,
        fork_reason=None,
        prompt_ids=array("i", [(number * 7919 + place * 104_729) % 150_000 for place in range(PROMPT)]),
        completion_ids=array(
            "i", [(number * 104_729 + place * 7919) % 150_000 for place in range(COMPLETION)]
        ),
        completion_logprobs=array("f", [-((number + place * 31) % 997) / 211 for place in range(COMPLETION)]),
        sampling={"temperature": 1.0},
        finish_reason="stop",
        turn_key=number.to_bytes(16, "big"),
        tools_key=b"",
        created_at=time.time(),
    )


async def measure(ledger: SampleLedger, number: int) -> dict[str, float]:
    """Figures of one ledger."""
    records = [sample(one) for one in range(number + ALONE)]
    waiting = iter(records[:number])

    async def write() -> None:
        for record in waiting:
            await ledger.writer.append([record])

    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(write() for _ in range(WRITERS)))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    alone = time.perf_counter()
    for record in records[number:]:
        await ledger.writer.append([record])
    alone = time.perf_counter() - alone
    names = [record.sample_id for record in records[:number]]
    read = time.perf_counter()
    for start in range(0, number, 500):
        assert len(await ledger.samples(names[start : start + 500])) == min(500, number - start)
    read = time.perf_counter() - read
    return {
        "written": number / wall,
        "written_cpu": number / cpu,
        "alone": alone / ALONE * 1e3,
        "read": number / read,
    }


async def compare(url: str, number: int) -> list[Row]:
    """Measures both, one after the other."""
    with tempfile.TemporaryDirectory() as folder:
        sqlite = Ledger(Path(folder) / "server" / "ledger.sqlite")
        theirs = await measure(sqlite, number)
        await sqlite.close()
        database = await PostgresDatabase.open(parse_address(url))
        postgres = await PostgresLedger.open(database, Path(folder))
        ours = await measure(postgres, number)
        await postgres.close()
        await database.close()
    size = f"{PROMPT} + {COMPLETION} ids a row"
    return [
        Row(
            name=f"Postgres: rows written, {WRITERS} writers, {size}",
            ours=ours["written"],
            unit="rows/s",
            goal=GOAL_ROWS,
        ),
        Row(name=f"SQLite: the same, {size}", ours=theirs["written"], unit="rows/s"),
        Row(name="Postgres: rows for a second of the server's CPU", ours=ours["written_cpu"], unit="rows"),
        Row(name="SQLite: the same", ours=theirs["written_cpu"], unit="rows"),
        Row(name="Postgres: one row's commit, alone", ours=ours["alone"], unit="ms"),
        Row(name="SQLite: the same, without waiting for the disk", ours=theirs["alone"], unit="ms"),
        Row(name="Postgres: rows read by their ids", ours=ours["read"], unit="rows/s"),
        Row(name="SQLite: the same", ours=theirs["read"], unit="rows/s"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    number = parser.parse_args().rows
    sys.path.append(str(Path(__file__).parents[2] / "tests" / "server"))
    from private_postgres import programs, running_postgres

    if programs() is None:
        sys.exit("no Postgres on this machine: sh tests/install_programs.sh")
    with running_postgres(durable=True) as server:
        rows = asyncio.run(compare(server.create_database(), number))
    write_rows("postgres", rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
