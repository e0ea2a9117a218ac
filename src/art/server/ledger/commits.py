"""Records wait a few milliseconds for company and are committed together, by a thread of their own."""

from __future__ import annotations

import asyncio
import logging
import queue
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path

from art.errors import ARTError
from art.process.disk import disk_error, disk_trouble
from art.server.ledger.schema import INSERT, SampleRecord, Statement, to_row

_log = logging.getLogger(__name__)

_GATHER_SECONDS = 0.002
_COMMITTED_TOGETHER = 48
"""Those who wait for one commit all go on in the same turn of the event loop: it must be short."""


class LedgerError(ARTError):
    """A sample could not be written or read: the disk is full, or the file is damaged."""


class _Batch:
    """Records that are committed together, and their writers, who wait."""

    __slots__ = ("also", "records", "waiting")

    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[None]] = []
        self.records: list[SampleRecord] = []
        self.also: list[Statement] = []


class Commits:
    """Writes samples, and what goes with them. One event loop owns it."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection, self._path = connection, path
        self._batches: queue.SimpleQueue[tuple[_Batch, asyncio.AbstractEventLoop] | None] = (
            queue.SimpleQueue()
        )
        self._pending: _Batch | None = None
        self._busy = False
        self._closed = False
        self._writer = threading.Thread(target=self._write_batches, name="ledger-write", daemon=True)
        self._writer.start()

    async def append(self, records: Sequence[SampleRecord], also: Sequence[Statement] = ()) -> None:
        """See `Ledger.append`."""
        if self._closed:
            raise LedgerError(f"the ledger {self._path} is closed")
        # Of each writer its own: one that is cancelled must not cancel the others' commit.
        committed = asyncio.get_running_loop().create_future()
        self._gather(records, also, committed)
        await committed

    def note(self, also: Sequence[Statement]) -> None:
        """See `Ledger.note`."""
        if not self._closed:
            self._gather((), also)

    async def close(self, *, seconds: float) -> None:
        """Commit what waits, for so long."""
        self._closed = True
        if self._pending is not None:
            self._flush(self._pending, asyncio.get_running_loop())
        self._batches.put(None)
        await asyncio.to_thread(self._writer.join, seconds)

    def _gather(
        self,
        records: Sequence[SampleRecord],
        also: Sequence[Statement],
        committed: asyncio.Future[None] | None = None,
    ) -> None:
        batch, loop = self._pending, asyncio.get_running_loop()
        if batch is None:
            batch = self._pending = _Batch()
            # Under load waiting saves commits; a lone writer is not kept waiting.
            if self._busy:
                loop.call_later(_GATHER_SECONDS, self._flush, batch, loop)
            else:
                loop.call_soon(self._flush, batch, loop)
        batch.records.extend(records)
        batch.also.extend(also)
        if committed is not None:
            batch.waiting.append(committed)
        if len(batch.records) >= _COMMITTED_TOGETHER:
            self._flush(batch, loop)

    def _flush(self, batch: _Batch, loop: asyncio.AbstractEventLoop) -> None:
        if self._pending is batch:
            self._pending = None
            # Notes come after their samples: they do not tell how many writers there are.
            self._busy = len(batch.records) > 1 or (self._busy and not batch.records)
            self._batches.put((batch, loop))

    def _write_batches(self) -> None:
        while (item := self._batches.get()) is not None:
            batch, loop = item
            error: Exception | None = None
            try:
                with self._connection:
                    self._connection.executemany(INSERT, map(to_row, batch.records))
                    for text, values in batch.also:
                        self._connection.execute(text, values)
            except (sqlite3.Error, TypeError, ValueError, OverflowError) as problem:
                error = _told(problem, f"cannot write {len(batch.records)} samples", self._path)
            try:
                loop.call_soon_threadsafe(_settle, batch, error)
            except RuntimeError:
                # The loop ended meanwhile: nobody waits for the answer.
                continue


def _told(problem: Exception, what: str, path: Path) -> ARTError:
    if disk_trouble(problem, path):
        return disk_error(problem, path, what)
    return LedgerError(f"{what} to {path}: {problem}")


def _settle(batch: _Batch, error: Exception | None) -> None:
    if error is not None and not batch.waiting:
        _log.error("%s", error)
    for committed in batch.waiting:
        if committed.done():
            continue
        if error is None:
            committed.set_result(None)
        else:
            committed.set_exception(error)
