"""The keys of tenants: made once, shown once, kept as digests in `{data_dir}/server/tenants.json`.

A key is 256 random bits. Its plain SHA-256 is enough to keep: salts and slow hashes protect secrets that can
be guessed, and nobody guesses these or has a table of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field, ValidationError

from art.errors import ConfigurationError, DeadlineError
from art.process.durable import write_whole
from art.process.file_lock import take_lock
from art.server.data_layout import check_name
from art.wire.flaws import flaws_without_values
from art.wire.strict import Strict

_log = logging.getLogger(__name__)

TENANTS_FILE = "tenants.json"
KEY_PREFIX = "art-tenant-"
_TICK_SECONDS = 2.0
_PATIENCE_SECONDS = 30.0
LOOK_SECONDS = 0.5
"""So long a running server may heed a key that was revoked."""
_LOOK_SECONDS_UNKNOWN = 0.02


class TenantRecord(Strict):
    """One tenant and the digest of its key."""

    name: str
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    created_at: float
    """Unix seconds."""


class TenantsRecord(Strict):
    """The file."""

    tenants: list[TenantRecord] = Field(default_factory=list)


class Tenants:
    """The file as `art keys` changes it. A running server sees each change by itself."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def all(self) -> list[TenantRecord]:
        """In the order of their names. Raises ConfigurationError when the file cannot be read."""
        return sorted(_read(self.path).tenants, key=lambda record: record.name)

    def create(self, name: str) -> str:
        """A key for a new tenant. It is nowhere else: not even in the file.

        Raises RequestError for an unfit name, ConfigurationError for one that has a key.
        """
        check_name("tenant", name)
        with self._changing() as known:
            if any(record.name == name for record in known):
                raise ConfigurationError(
                    f"tenant {name!r} has a key; for a new one, revoke that first (art keys revoke {name})"
                )
            key = KEY_PREFIX + secrets.token_urlsafe(32)
            known.append(TenantRecord(name=name, sha256=digest(key).hex(), created_at=time.time()))
        return key

    def revoke(self, name: str) -> None:
        """The tenant's key is none any more; its models stay. Raises ConfigurationError if unknown."""
        with self._changing() as known:
            left = [record for record in known if record.name != name]
            if len(left) == len(known):
                names = ", ".join(sorted(record.name for record in known)) or "none"
                raise ConfigurationError(f"no tenant {name!r}; tenants with a key: {names}")
            known[:] = left

    @contextlib.contextmanager
    def _changing(self) -> Iterator[list[TenantRecord]]:
        """The records, to be changed; written whole when the block ends well. One process at a time."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lock = self.path.with_name(".tenants.lock")
        descriptor = take_lock(lock, patience=_PATIENCE_SECONDS)
        if descriptor is None:
            raise DeadlineError(
                f"another process has been changing {self.path} for {_PATIENCE_SECONDS:g} s: look for a "
                f"stopped process that holds {lock}"
            )
        try:
            records = _read(self.path).tenants
            yield records
            # Its owner's alone: digests of keys.
            write_whole(self.path, TenantsRecord(tenants=records).model_dump_json(indent=2), mode=0o600)
        finally:
            os.close(descriptor)


class TenantKeys:
    """The file as a server heeds it: one `stat` every half second, read again when it changed.

    A file that cannot be read admits nobody: a key that was revoked must not live on because of a typo.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, ...] | None = None
        self._names: dict[bytes, str] = {}
        self._looked = -LOOK_SECONDS

    def owner(self, key_digest: bytes) -> str | None:
        """The tenant whose key has this SHA-256, or None."""
        self._heed(key_digest in self._names)
        return self._names.get(key_digest)

    def digest_of(self, tenant: str) -> bytes | None:
        """The SHA-256 of a tenant's key, or None for one without a key."""
        self._heed(tenant in self._names.values())
        return next((kept for kept, owner in self._names.items() if owner == tenant), None)

    def _heed(self, known: bool) -> None:
        now = time.monotonic()
        # An unknown key may have been made a moment ago. Wrong keys in a flood cost no more than a look each
        # 20 ms.
        if now - self._looked >= (LOOK_SECONDS if known else _LOOK_SECONDS_UNKNOWN):
            self._looked = now
            self._look()

    def _look(self) -> None:
        try:
            if _signature(os.stat(self._path)) == self._seen:
                return
            with self._path.open("rb") as file:
                # Of the file that is read, not of one that replaced it meanwhile.
                seen = os.fstat(file.fileno())
                records = TenantsRecord.model_validate_json(file.read()).tenants
            self._names = {bytes.fromhex(record.sha256): record.name for record in records}
            # A file so new may be replaced within the same tick of the clock: it is read once more.
            settled = time.time() - seen.st_mtime > _TICK_SECONDS
            self._seen = _signature(seen) if settled else None
        except FileNotFoundError:
            self._seen, self._names = None, {}
        except (OSError, ValidationError) as error:
            self._names = {}
            _log.error("%s cannot be read, so no tenant is admitted: %s", self._path, _why(error))


def digest(key: str) -> bytes:
    """What is kept of a key."""
    return hashlib.sha256(key.encode()).digest()


def _signature(stat: os.stat_result) -> tuple[int, ...]:
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def _read(path: Path) -> TenantsRecord:
    try:
        return TenantsRecord.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return TenantsRecord()
    except (OSError, ValidationError) as error:
        raise ConfigurationError(
            f"{path} cannot be read ({_why(error)}); restore it from a backup. Without it, every tenant "
            "needs a new key"
        ) from error


def _why(error: OSError | ValidationError) -> str:
    return str(error) if isinstance(error, OSError) else flaws_without_values(error)
