"""What every ledger can do, wherever its rows are: SQLite in the data folder (`ledger.py`), or Postgres.

A ledger gives rows; how rows become records, which of them are believed, and what is told of those that are
not there, is the same for all.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from art.errors import ARTError, NotFoundError, ServerError
from art.server.ledger.schema import LedgerRow, SampleRecord, Statement, from_row, is_as_written
from art.server.tenancy import Tenant

_log = logging.getLogger(__name__)


class LedgerError(ARTError):
    """A sample could not be written or read: the disk is full, or the file is damaged."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerSize:
    """The size of the ledger."""

    samples: int
    stored: int
    """Bytes of its files on disk."""
    free: int
    """Bytes of them that the next samples will use."""
    removed: int
    """Samples that the retention removed, ever."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OldSample:
    """A sample that may be removed, as far as the ledger knows."""

    row: int
    sample_id: str
    in_use: bool
    """Whether the sample's rollout is open, or goes on with a newer step."""


class DamagedSampleError(ServerError):
    """A sample's row in the ledger is not what was written."""


@dataclass(frozen=True, slots=True)
class FoundSamples:
    """The records of the wanted samples."""

    records: dict[str, SampleRecord] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)
    """Samples whose rows cannot be believed, and why."""
    tenants: dict[str, Tenant] = field(default_factory=dict)
    """The tenant of every row, by sample id."""

    def add_row(self, values: Iterable[Any], rows: dict[str, LedgerRow]) -> str | None:
        """Returns the sample whose row must be there, too: the one that this row shares ids with.

        values: of its columns, in their order.
        """
        row = LedgerRow._make(values)
        rows[row.sample_id] = row
        self.tenants[row.sample_id] = row.tenant
        if not is_as_written(row):
            self.damaged[row.sample_id] = "its row does not fit its checksum"
            return None
        return str(row.parent_id) if row.shared else None

    def read_rows(self, rows: Mapping[str, LedgerRow]) -> None:
        """Makes a record of each row, those first whose ids others share."""
        for sample_id in rows:
            chain = [sample_id]
            while (row := _unread(chain[-1], rows, self)) and row.shared and len(chain) <= len(rows):
                chain.append(str(row.parent_id))
            for member in reversed(chain):
                _read_row(member, rows, self)


class SampleWriter(Protocol):
    """Writes samples, and what goes with them."""

    async def append(self, records: Sequence[SampleRecord], also: Sequence[Statement] = ()) -> None:
        """Return once the records are committed, and with them what `also` writes. Raises: LedgerError."""

    def note(self, also: Sequence[Statement]) -> None:
        """Hand over what nobody waits for: committed before anything that is appended later.

        What cannot be written is told by the log; a closed ledger takes nothing.
        """


class SampleLedger(ABC):
    """Samples, each written once. One event loop owns it."""

    name: str
    """What messages call it."""
    data_dir: Path
    """The data folder of its server."""
    shared: bool
    """Whether other servers write to it, too."""
    writer: SampleWriter

    @abstractmethod
    async def rows(self, query: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """Returns the rows of a query of the tables beside the samples. Raises: LedgerError."""

    @abstractmethod
    async def find(self, sample_ids: Sequence[str]) -> FoundSamples:
        """Returns the wanted records and, on the way, every record that they share ids with."""

    @abstractmethod
    async def removed(self, sample_ids: Sequence[str], tenant: Tenant) -> frozenset[str]:
        """Returns those that the retention removed and that this tenant may know of."""

    @abstractmethod
    async def rollout_ids(self, rollout_id: str, tenant: Tenant) -> list[str]:
        """Returns the ids of a rollout's samples in the order of their creation."""

    async def samples(self, sample_ids: Sequence[str], *, tenant: Tenant = None) -> list[SampleRecord]:
        """Records in the order of the ids, of one tenant, or for the operator of anybody.

        Raises: NotFoundError naming the ids that are unknown; another tenant's are that, too; those that the
        retention removed (410). DamagedSampleError naming those that are not what was written.
        """
        records, damaged, removed = await self.readable(sample_ids, tenant=tenant)
        if removed:
            raise NotFoundError(
                f"removed from the ledger: sample {_shown(sorted(removed))}. The server keeps the samples of "
                "the newest `keep_samples_steps` steps: give it a larger number, or None for all",
                status=410,
                code="sample_removed",
            )
        if damaged:
            why = next(iter(damaged.values()))
            raise DamagedSampleError(
                f"damaged in {self.name}: sample {_shown(list(damaged))} ({why}). Others are as they "
                "were; restore a backup of the file where this one is needed",
                status=500,
                code="sample_damaged",
            )
        return [records[sample_id] for sample_id in sample_ids]

    async def readable(
        self, sample_ids: Sequence[str], *, tenant: Tenant = None
    ) -> tuple[dict[str, SampleRecord], dict[str, str], frozenset[str]]:
        """Returns the records of readable samples, the errors of damaged ones, and the removed ones.

        Raises: NotFoundError for unknown ones.
        """
        found = await self.find(sample_ids)
        lost = [sample_id for sample_id in sample_ids if sample_id not in found.tenants]
        removed = await self.removed(lost, tenant) if lost else frozenset[str]()
        missing = [
            sample_id
            for sample_id in sample_ids
            if (tenant is not None and found.tenants.get(sample_id, tenant) != tenant)
            or (sample_id not in found.tenants and sample_id not in removed)
        ]
        if missing:
            raise NotFoundError(f"no such sample: {_shown(missing)}", status=404, code="sample_not_found")
        return found.records, self._tell_damaged(found, sample_ids), removed

    async def known(self, sample_ids: Sequence[str], *, tenant: Tenant) -> dict[str, SampleRecord]:
        """Returns the samples that exist, only of this tenant (None: the operator's own)."""
        found = await self.find(sample_ids)
        self._tell_damaged(found, sample_ids)
        return {name: record for name, record in found.records.items() if record.tenant == tenant}

    def _tell_damaged(self, found: FoundSamples, sample_ids: Sequence[str]) -> dict[str, str]:
        """Returns the damaged ones of the wanted samples, and logs them."""
        damaged = {name: found.damaged[name] for name in sample_ids if name in found.damaged}
        for name, why in damaged.items():
            _log.error("sample %s in %s is damaged: %s", name, self.name, why)
        return damaged

    async def rollout(self, rollout_id: str, *, tenant: Tenant = None) -> list[SampleRecord]:
        """The samples of a rollout in the order of their creation; empty when there are none.

        The operator is given those of every tenant that used the id.
        """
        return await self.samples(await self.rollout_ids(rollout_id, tenant))

    @abstractmethod
    async def find_turn(self, turn_keys: Sequence[bytes], rollout_id: str | None) -> SampleRecord | None:
        """The newest sample that ended with the first known of these turns; one of the rollout first."""

    @abstractmethod
    async def is_empty(self) -> bool:
        """Returns whether no sample was ever written."""

    @abstractmethod
    async def size(self) -> LedgerSize:
        """Returns how much there is, at the cost of a few pages."""

    @abstractmethod
    async def adapters(self, model: str) -> dict[str, int]:
        """Returns the adapters of a model that samples were drawn with, and the row of the newest of each."""

    @abstractmethod
    async def old_samples(
        self, adapter: str, *, since: int, below: int | None, now: float, most: int
    ) -> list[OldSample]:
        """Returns the newest samples of an adapter, at most so many, newest first.

        since: a rollout with a sample of this step or a later one goes on. below: of rows before this one.
        """

    @abstractmethod
    async def remove(self, sample_ids: Sequence[str]) -> int:
        """Returns how many of these samples were removed: those that no other sample shares ids with.

        It is all done or nothing, whenever the process is killed. Raises: LedgerError, DiskError.
        """

    @abstractmethod
    async def has_rollout(self, rollout_id: str, *, tenant: Tenant = None) -> bool:
        """Returns whether the asker's rollout of this id has a sample."""

    @abstractmethod
    async def close(self) -> None:
        """Commit what waits, then close. Calling it twice is allowed."""


def _unread(sample_id: str, rows: Mapping[str, LedgerRow], found: FoundSamples) -> LedgerRow | None:
    known = sample_id in found.records or sample_id in found.damaged
    return None if known else rows.get(sample_id)


def _read_row(sample_id: str, rows: Mapping[str, LedgerRow], found: FoundSamples) -> None:
    """One more record, those it shares ids with having been read."""
    row = _unread(sample_id, rows, found)
    if row is None:
        return
    parent = found.records.get(str(row.parent_id))
    if row.shared and parent is None:
        found.damaged[sample_id] = (
            f"the row of {row.parent_id!r}, whose ids it begins with, is lost or damaged"
        )
        return
    try:
        found.records[sample_id] = from_row(row, parent)
    except (TypeError, ValueError) as error:
        found.damaged[sample_id] = f"its row cannot be read ({error})"


def _shown(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:5])) + (f" and {len(names) - 5} more" if names[5:] else "")
