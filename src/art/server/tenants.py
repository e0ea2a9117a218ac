"""The keys of requests (the operator's, a tenant's, a scoped rollout's), and how much one tenant may ask.

    the server's own key                                               the operator
    {data_dir}/server/tenants.json                                     digests of the tenants' keys
    art-rollout-{tenant~rollout_id in base64url}.{HMAC-SHA256, hex}    one scoped rollout

A tenant's key is 256 random bits, shown once. Its plain SHA-256 is enough to keep: salts and slow hashes
protect secrets that can be guessed, and nobody guesses these or has a table of them. A rollout's key is made
from the server's key and checked without a look into any table; the HMAC of a tenant's rollout covers the
digest of the tenant's own key, so it dies when that is revoked.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hashlib
import hmac
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, ValidationError

from art.errors import AuthenticationError, ConfigurationError, DeadlineError, OverloadedError
from art.process.files import make_private_folder, take_lock, write_whole
from art.process.in_use import InUse, Use
from art.server.data_folder import check_name
from art.server.http import Scope
from art.server.settings import is_key
from art.server.tenancy import SEPARATOR, Tenant
from art.wire.models import SHORTEST_KEY
from art.wire.records import Strict, flaws_without_values

_log = logging.getLogger(__name__)

TENANTS_FILE = "tenants.json"
KEY_PREFIX = "art-tenant-"
_TICK_SECONDS = 2.0
_PATIENCE_SECONDS = 30.0
REFUSED_A_SECOND = 100
"""Refusals of a tenant that are answered at once."""
HELD_BACK_S = 5.0
"""The longest that one of them waits."""
LOOK_SECONDS = 0.5
"""The longest time in seconds for which a running server may accept a key after it was revoked."""
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

    def list_tenants(self) -> list[TenantRecord]:
        """Returns the tenants in the order of their names. Raises ConfigurationError if the file cannot be
        read.
        """
        return sorted(_read(self.path).tenants, key=lambda record: record.name)

    def create(self, name: str) -> str:
        """A key for a new tenant. It is nowhere else: not even in the file.

        Raises RequestError for an unfit name, ConfigurationError for one that has a key.
        """
        check_name("tenant", name)
        with self._changed_records() as known:
            if any(record.name == name for record in known):
                raise ConfigurationError(
                    f"tenant {name!r} has a key; for a new one, revoke that first (art keys revoke {name})"
                )
            key = KEY_PREFIX + secrets.token_urlsafe(32)
            known.append(TenantRecord(name=name, sha256=digest_of_key(key).hex(), created_at=time.time()))
        return key

    def revoke(self, name: str) -> None:
        """The tenant's key is none any more; its models stay. Raises ConfigurationError if unknown."""
        with self._changed_records() as known:
            left = [record for record in known if record.name != name]
            if len(left) == len(known):
                names = ", ".join(sorted(record.name for record in known)) or "none"
                raise ConfigurationError(f"no tenant {name!r}; tenants with a key: {names}")
            known[:] = left

    @contextlib.contextmanager
    def _changed_records(self) -> Iterator[list[TenantRecord]]:
        """The records, to be changed; written whole when the block ends well. One process at a time."""
        make_private_folder(self.path.parent)
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
            write_whole(self.path, TenantsRecord(tenants=records).model_dump_json(indent=2))
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
        self._heed_change(key_digest in self._names)
        return self._names.get(key_digest)

    def digest_of(self, tenant: str) -> bytes | None:
        """The SHA-256 of a tenant's key, or None for one without a key."""
        self._heed_change(tenant in self._names.values())
        return next((digest for digest, owner in self._names.items() if owner == tenant), None)

    def _heed_change(self, known: bool) -> None:
        now = time.monotonic()
        # An unknown key may have been made a moment ago. Wrong keys in a flood cost no more than a look each
        # 20 ms.
        if now - self._looked >= (LOOK_SECONDS if known else _LOOK_SECONDS_UNKNOWN):
            self._looked = now
            self._read_if_changed()

    def _read_if_changed(self) -> None:
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
            _log.error("%s cannot be read, so no tenant is admitted: %s", self._path, _read_error_text(error))


def digest_of_key(key: str) -> bytes:
    """Returns the digest that is stored of a key."""
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
            f"{path} cannot be read ({_read_error_text(error)}); restore it from a backup. Without it, every "
            "tenant needs a new key"
        ) from error


def _read_error_text(error: OSError | ValidationError) -> str:
    return str(error) if isinstance(error, OSError) else flaws_without_values(error)


class TenantConcurrency:
    """Counts what each tenant has open. The operator, who holds the server's own key, is not bounded."""

    def __init__(self, most: int, what: str) -> None:
        """`what` is counted, in the words of the error: `requests`, `completions`."""
        self._most = most
        self._what = what
        self._in_use = InUse[str]()

    def count_request(self, tenant: Tenant) -> Use[str]:
        """One more while the block runs. Raises: OverloadedError."""
        if tenant is not None and (count := self._in_use.count(tenant)) >= self._most:
            raise OverloadedError(
                f"you have {count} {self._what} in flight, the limit is {self._most}: wait for some of them",
                code="too_many_in_flight",
            )
        return self._in_use.using(tenant)


class RefusalPace:
    """Holds back the refusals of a tenant that asks again at once: a thousand a second cost the others."""

    def __init__(self) -> None:
        self._due: dict[str, float] = {}

    async def hold_back(self, error: Exception, tenant: Tenant) -> None:
        if tenant is not None and isinstance(error, OverloadedError):
            await asyncio.sleep(self.wait_of(tenant))

    def wait_of(self, tenant: str) -> float:
        """Returns the seconds that a refusal waits: none while there are few."""
        now = time.monotonic()
        due = max(now, self._due.get(tenant, 0.0)) + 1 / REFUSED_A_SECOND
        self._due[tenant] = due = min(due, now + 1.0 + HELD_BACK_S)
        return max(0.0, due - now - 1.0)


ROLLOUT_KEY_PREFIX = "art-rollout-"

DigestOf = Callable[[str], bytes | None]
"""Tenant -> digest of its key, None for one without a key."""


class RolloutKeys:
    """Makes and checks them."""

    def __init__(self, server_key: str, digest_of: DigestOf) -> None:
        # A key of its own purpose: what is made of it tells nothing about the server's key.
        self._secret = hmac.digest(server_key.encode(), b"art: keys of rollouts", hashlib.sha256)
        self._digest_of = digest_of

    def __repr__(self) -> str:
        return "RolloutKeys(...)"

    def issue(self, tenant: Tenant, rollout_id: str) -> str:
        """The key of a rollout; always the same one."""
        named = base64.urlsafe_b64encode(f"{tenant or ''}{SEPARATOR}{rollout_id}".encode()).rstrip(b"=")
        return f"{ROLLOUT_KEY_PREFIX}{named.decode()}.{self._mac(tenant, named) or ''}"

    def read(self, key: str) -> tuple[Tenant, str] | None:
        """Returns the rollout of a key, and its owner; None for a wrong key."""
        named, _, mac = key.removeprefix(ROLLOUT_KEY_PREFIX).partition(".")
        try:
            padded = named + "=" * (-len(named) % 4)
            text = base64.b64decode(padded.encode("ascii"), altchars=b"-_", validate=True).decode()
        except (ValueError, binascii.Error):
            return None
        owner, _, rollout_id = text.partition(SEPARATOR)
        expected = self._mac(owner or None, named.encode("ascii"))
        if expected is None or not hmac.compare_digest(expected.encode(), mac.encode()):
            return None
        return owner or None, rollout_id

    def _mac(self, tenant: Tenant, rollout_bytes: bytes) -> str | None:
        owner = b"" if tenant is None else self._digest_of(tenant)
        if owner is None:
            return None
        return hmac.new(self._secret, owner + b"\0" + rollout_bytes, hashlib.sha256).hexdigest()


_BEARER = b"Bearer "
_SCOPED = _BEARER + ROLLOUT_KEY_PREFIX.encode()
_NOTHING = (b"", _BEARER.strip())
"""A header without a key."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    """The owner of a request's key."""

    tenant: Tenant
    rollout_id: str | None = None
    """The one rollout that the key opens; None: it is nobody's in particular."""


_OPERATOR = Caller(tenant=None)


class KeyCheck:
    """Compares the key of a request in constant time. The keys themselves are never shown."""

    def __init__(self, key: str, tenants: TenantKeys | None = None) -> None:
        """Raises ConfigurationError for a key that would let anybody in."""
        if not is_key(key):
            raise ConfigurationError(
                f"the server's key must be at least {SHORTEST_KEY} printable ASCII characters without "
                f"spaces, this one has {len(key)} characters"
            )
        self._expected = _BEARER + key.encode("ascii")
        self._tenants = tenants
        self.rollouts = RolloutKeys(key, tenants.digest_of if tenants is not None else lambda tenant: None)

    def __repr__(self) -> str:
        return "KeyCheck(...)"

    def require(self, scope: Scope) -> Caller:
        """Returns the caller. Raises: AuthenticationError (401)."""
        for sent in _sent(scope):
            asker = self._asker(sent)
            if asker is not None:
                return asker
        raise self.refusal(scope)

    def _asker(self, sent: bytes) -> Caller | None:
        if hmac.compare_digest(sent, self._expected):
            return _OPERATOR
        if sent.startswith(_SCOPED):
            opened = self.rollouts.read(sent[len(_BEARER) :].decode("latin-1"))
            return None if opened is None else Caller(tenant=opened[0], rollout_id=opened[1])
        if self._tenants is not None and sent.startswith(_BEARER):
            # Found by its digest: how long that takes tells nothing about the keys.
            tenant = self._tenants.owner(hashlib.sha256(sent[len(_BEARER) :]).digest())
            if tenant is not None:
                return Caller(tenant=tenant)
        return None

    def proof_of(self, tenant: Tenant) -> bytes | None:
        """Returns what tells the owner's key from a later one; None: it has no key any more."""
        return b"" if tenant is None else self._tenants.digest_of(tenant) if self._tenants else None

    def is_still_valid(self, scope: Scope, asker: Caller) -> bool:
        """Returns whether the request's key is still the asker's: a long reply may outlive it."""
        if asker.tenant is None:
            return True
        try:
            return self.require(scope) == asker
        except AuthenticationError:
            return False

    def refusal(self, scope: Scope) -> AuthenticationError:
        """Returns the response to a request without a valid key."""
        what = "the key is wrong" if _sent(scope) else "no key was sent"
        return AuthenticationError(
            f"{what}: send the server's key as 'Authorization: Bearer <key>' or 'x-api-key: <key>'",
            status=401,
            code="invalid_api_key",
        )


def _sent(scope: Scope) -> list[bytes]:
    """The keys, as bearer headers. Anthropic's clients name theirs `x-api-key`, and where the environment has
    a token for Anthropic itself they send that as `authorization` beside it.
    """
    found: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name == b"authorization":
            found.setdefault(name, bytes(value))
        elif name == b"x-api-key":
            found.setdefault(name, _BEARER + bytes(value))
    sent = [found[name] for name in (b"authorization", b"x-api-key") if name in found]
    return [one for one in sent if one.strip() not in _NOTHING]
