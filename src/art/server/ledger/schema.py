"""The ledger's tables, and how a record becomes a row and a row a record.

The pictures that negative ids of prompts name (`art.wire.samples`) lie beside the samples, each once. One
goes when no sample is as old as its last use.

A prompt that extends an earlier sample of the ledger is kept as the tail behind that sample's ids, so that a
long conversation costs its length once, not once a turn.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from art.errors import ServerError
from art.server.tenancy import Tenant
from art.wire.samples import image_name

SCHEMA_VERSION = 7

_ROLLOUTS = """
CREATE TABLE rollouts (
    tenant TEXT NOT NULL,
    rollout_id TEXT NOT NULL,
    scope BLOB NOT NULL,
    opened_at REAL NOT NULL,
    expires_at REAL NOT NULL,
    closed_at REAL,
    PRIMARY KEY (tenant, rollout_id)
);
CREATE TABLE exchanges (
    sample_id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    rollout_id TEXT NOT NULL,
    request_id TEXT NOT NULL,
    extends TEXT,
    shared INTEGER NOT NULL,
    size INTEGER NOT NULL,
    said BLOB NOT NULL
);
CREATE INDEX exchanges_by_rollout ON exchanges (tenant, rollout_id);
"""
"""Scoped rollouts (`art.server.rollouts`) and their texts; tenant '' is the operator."""

_DELIVERED = """
CREATE TABLE delivered (
    tenant TEXT NOT NULL,
    rollout_id TEXT NOT NULL,
    request_id TEXT NOT NULL,
    PRIMARY KEY (tenant, rollout_id, request_id)
) WITHOUT ROWID;
"""
"""Requests of scoped rollouts whose replies were sent to their ends."""

_IMAGES = """
CREATE TABLE images (
    name TEXT PRIMARY KEY,
    used_at REAL NOT NULL,
    file BLOB NOT NULL
) WITHOUT ROWID;
"""
"""PNG files as the model saw them, and about when they were used last, in Unix seconds."""

REMOVED = """
CREATE TABLE IF NOT EXISTS removed (sample_id TEXT PRIMARY KEY, tenant TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS removals (number INTEGER NOT NULL);
"""
"""Ids of samples that the retention removed, and how many they are; a ledger of any version may have them."""
RETENTION_INDEXES = """
CREATE INDEX IF NOT EXISTS samples_by_adapter ON samples (adapter) WHERE adapter IS NOT NULL;
CREATE INDEX IF NOT EXISTS samples_by_parent ON samples (parent_id) WHERE shared > 0;
"""
"""What the retention asks by. A ledger that keeps every sample does not pay for them."""

CREATE = (
    """
CREATE TABLE samples (
    sample_id TEXT NOT NULL UNIQUE,
    rollout_id TEXT,
    project TEXT,
    model TEXT NOT NULL,
    base_model TEXT NOT NULL,
    step INTEGER,
    adapter TEXT,
    parent_id TEXT,
    fork_reason TEXT,
    shared INTEGER NOT NULL,
    prompt BLOB NOT NULL,
    completion BLOB NOT NULL,
    logprobs BLOB NOT NULL,
    sampling BLOB NOT NULL,
    finish_reason TEXT NOT NULL,
    turn_key BLOB NOT NULL,
    tools_key BLOB NOT NULL,
    created_at REAL NOT NULL,
    tenant TEXT,
    checksum INTEGER,
    candidates BLOB
);
CREATE INDEX samples_by_rollout ON samples (rollout_id) WHERE rollout_id IS NOT NULL;
CREATE INDEX samples_by_turn ON samples (turn_key, rollout_id);
"""
    + _ROLLOUTS
    + _DELIVERED
    + _IMAGES
)

MIGRATE = {
    1: "ALTER TABLE samples ADD COLUMN tenant TEXT;",
    2: _ROLLOUTS,
    3: _DELIVERED,
    4: "ALTER TABLE samples ADD COLUMN checksum INTEGER;",
    5: "ALTER TABLE samples ADD COLUMN candidates BLOB;",
    6: _IMAGES,
}
"""The statements from each older version to the next. Before there were tenants every sample was the
operator's. Rows that are older than the checksum have none, and are taken as they are. The candidates of
older samples are not known."""

Statement = tuple[str, tuple[Any, ...]]
"""SQL and its values."""

_USED_AGAIN_S = 3600.0
"""The time of use is that old at most: to write it with each turn would write the picture again, too."""
_KEEP_IMAGE = (
    "INSERT INTO images (name, used_at, file) VALUES (?1, ?2, ?3) ON CONFLICT (name) DO UPDATE "
    f"SET used_at = ?2 WHERE images.used_at < ?2 - {_USED_AGAIN_S}"
)
REMOVE_IMAGES = (
    "DELETE FROM images WHERE used_at < "
    f"(SELECT created_at FROM samples ORDER BY rowid LIMIT 1) - {_USED_AGAIN_S}"
)
"""The statement that removes the images last used before the oldest remaining sample was made."""
_MOST_AT_ONCE = 200


class LedgerRow(NamedTuple):
    """A row of the samples, its columns in their order."""

    sample_id: str
    rollout_id: str | None
    project: str | None
    model: str
    base_model: str
    step: int | None
    adapter: str | None
    parent_id: str | None
    fork_reason: str | None
    shared: int
    prompt: bytes
    """The prompt's ids without those that are the parent's."""
    completion: bytes
    logprobs: bytes
    sampling: bytes
    finish_reason: str
    turn_key: bytes
    tools_key: bytes
    created_at: float
    tenant: str | None
    candidates: bytes | None
    checksum: int | None
    """The checksum of all values before it; None: the row is older than the checksum."""


COLUMNS = ", ".join(LedgerRow._fields)
_NAMES = [name.encode() for name in LedgerRow._fields[:-1]]
INSERT = f"INSERT INTO samples ({COLUMNS}) VALUES ({', '.join('?' * len(LedgerRow._fields))})"
_FAST = 1
"""zlib's level for them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleRecord:
    """One completion as it was sampled. Ids are int32, logprobs float32, one a completion id."""

    sample_id: str
    rollout_id: str | None
    project: str | None
    model: str
    """The name the request asked for."""
    base_model: str
    step: int | None
    """Adapter version that sampled it; None for the base model."""
    adapter: str | None
    """The engine's name of that adapter."""
    parent_id: str | None
    """The sample whose prompt and completion this prompt begins with."""
    fork_reason: str | None
    prompt_ids: array[int]
    completion_ids: array[int]
    completion_logprobs: array[float]
    sampling: dict[str, Any]
    finish_reason: str
    """The reason of the end that the engine gave: `stop` or `length`."""
    turn_key: bytes
    """Names the conversation up to and with this reply; see `stitching`."""
    tools_key: bytes
    created_at: float
    """Unix seconds."""
    tenant: Tenant = None
    """Whose it is; None: the operator's."""
    shared: int = 0
    """The number of the prompt's first ids that are the parent's; they are stored with the parent alone."""
    candidates: bytes = b""
    """The ids among which each token was drawn: a record of `art.wire.samples`. Stored compressed."""


def int_array(values: Sequence[int]) -> array[int]:
    """Ids as int32."""
    return values if isinstance(values, array) else array("i", values)


def float_array(values: Sequence[float]) -> array[float]:
    """Logprobs as float32."""
    return array("f", values)


def to_row(record: SampleRecord) -> LedgerRow:
    """The row that `INSERT` wants."""
    row = LedgerRow(
        sample_id=record.sample_id,
        rollout_id=record.rollout_id,
        project=record.project,
        model=record.model,
        base_model=record.base_model,
        step=record.step,
        adapter=record.adapter,
        parent_id=record.parent_id,
        fork_reason=record.fork_reason,
        shared=record.shared,
        prompt=record.prompt_ids[record.shared :].tobytes(),
        completion=record.completion_ids.tobytes(),
        logprobs=record.completion_logprobs.tobytes(),
        sampling=orjson.dumps(record.sampling),
        finish_reason=record.finish_reason,
        turn_key=record.turn_key,
        tools_key=record.tools_key,
        created_at=record.created_at,
        tenant=record.tenant,
        candidates=zlib.compress(record.candidates, _FAST) if record.candidates else None,
        checksum=None,
    )
    return row._replace(checksum=checksum(row[:-1]))


def checksum(values: Sequence[Any]) -> int:
    """CRC-32 of a row's values with their names. What is NULL does not count, so that a column which a later
    version adds leaves the checksums of older rows as they are.
    """
    parts = []
    for name, value in zip(_NAMES, values, strict=False):
        if value is None:
            continue
        if isinstance(value, str):
            value = value.encode()
        elif not isinstance(value, bytes):
            value = repr(float(value)).encode()
        parts.append(b"%s %d:" % (name, len(value)))
        parts.append(value)
    return zlib.crc32(b"".join(parts))


def is_as_written(row: LedgerRow) -> bool:
    """Returns whether a row's values fit its checksum; one without is believed."""
    return row.checksum is None or row.checksum == checksum(row[:-1])


def from_row(row: LedgerRow, parent: SampleRecord | None) -> SampleRecord:
    """The record of a row; `parent` must be given where the row shares ids with it."""
    prompt: array[int] = array("i")
    if row.shared:
        if parent is None:
            raise ValueError(
                f"sample {row.sample_id!r} shares ids with {row.parent_id!r}, which was not given"
            )
        prompt = (parent.prompt_ids + parent.completion_ids)[: row.shared]
    prompt.frombytes(row.prompt)
    completion: array[int] = array("i")
    completion.frombytes(row.completion)
    logprobs: array[float] = array("f")
    logprobs.frombytes(row.logprobs)
    return SampleRecord(
        sample_id=row.sample_id,
        rollout_id=row.rollout_id,
        project=row.project,
        model=row.model,
        base_model=row.base_model,
        step=row.step,
        adapter=row.adapter,
        parent_id=row.parent_id,
        fork_reason=row.fork_reason,
        shared=row.shared,
        prompt_ids=prompt,
        completion_ids=completion,
        completion_logprobs=logprobs,
        sampling=orjson.loads(row.sampling),
        finish_reason=row.finish_reason,
        turn_key=row.turn_key,
        tools_key=row.tools_key,
        created_at=row.created_at,
        tenant=row.tenant,
        candidates=_unpacked(row.candidates),
    )


def _unpacked(candidates: bytes | None) -> bytes:
    if candidates is None:
        return b""
    try:
        return zlib.decompress(candidates)
    except zlib.error as error:
        raise ValueError(f"its candidates: {error}") from error


class LostImageError(ServerError):
    """A picture that samples were drawn with is not in the ledger, or not what was written."""


def keep_images(files: Sequence[bytes], now: float) -> list[Statement]:
    """Returns the statements that write a prompt's pictures with its samples. `now`: Unix seconds."""
    return [(_KEEP_IMAGE, (image_name(file), now, file)) for file in dict.fromkeys(files)]


async def read_images(
    rows: Callable[[str, tuple[Any, ...]], Awaitable[list[tuple[Any, ...]]]], names: Collection[str]
) -> dict[str, bytes]:
    """Returns pictures by their names. `rows`: asks the ledger. Raises: LostImageError."""
    found: dict[str, bytes] = {}
    wanted = sorted(names)
    for start in range(0, len(wanted), _MOST_AT_ONCE):
        part = tuple(wanted[start : start + _MOST_AT_ONCE])
        marks = ",".join("?" * len(part))
        found.update(await rows(f"SELECT name, file FROM images WHERE name IN ({marks})", part))
    lost = [name for name in wanted if name not in found or image_name(found[name]) != name]
    if lost:
        raise LostImageError(
            f"the ledger has {len(lost)} images no more that samples were drawn with, {lost[0]} first: train "
            "on other trajectories, or restore a backup of the file",
            status=500,
            code="image_lost",
        )
    return found
