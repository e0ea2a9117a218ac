"""What was spent out of a budget: by this process, and by those before and beside it."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import uuid
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from art.errors import BudgetExceededError, ConfigurationError
from art.llm.database import alone, open_private
from art.process.file_lock import take_lock

SCHEMA = """
create table if not exists accounts (
    owner text primary key, calls integer not null, tokens integer not null, usd real not null,
    held_calls integer not null, held_tokens integer not null, held_usd real not null,
    longest integer not null
) without rowid
"""


@dataclass(frozen=True, kw_only=True)
class Spending:
    """An amount, spent or set aside."""

    calls: int = 0
    tokens: int = 0
    usd: float = 0.0

    def __add__(self, other: Spending) -> Spending:
        return Spending(
            calls=self.calls + other.calls, tokens=self.tokens + other.tokens, usd=self.usd + other.usd
        )

    def __sub__(self, other: Spending) -> Spending:
        return Spending(
            calls=self.calls - other.calls, tokens=self.tokens - other.tokens, usd=self.usd - other.usd
        )


@dataclass(kw_only=True)
class Account:
    """Of one process, or of several together."""

    spent: Spending = field(default_factory=Spending)
    held: Spending = field(default_factory=Spending)
    """Set aside for calls under way."""
    longest: int = 0
    """Tokens of the longest answer."""


class SpendingFile:
    """One SQLite file, in which each process that has the budget has an account of its own.

    What a process held when it was killed may have been paid: it counts as spent. That a process lives says
    a lock, which the kernel drops when it dies.
    """

    def __init__(self, path: str | Path) -> None:
        """Opens the file. Raises ConfigurationError."""
        self.path = Path(path)
        self._owner = uuid.uuid4().hex
        self._mutex = threading.Lock()
        try:
            self._connection = open_private(self.path, SCHEMA)
            lock = self._lock_of(self._owner)
            with alone(self._connection):  # nobody takes the lock for one that was left behind
                descriptor = take_lock(lock)
                self._sweep()
        except (OSError, sqlite3.Error) as error:
            raise ConfigurationError(
                f"the budget's file {str(self.path)!r} cannot be used ({error}): give another path, or "
                "delete it to begin with a full budget"
            ) from error
        self._close = weakref.finalize(self, _let_go, self._connection, descriptor, lock)

    @contextmanager
    def turn(self, own: Account) -> Iterator[Account]:
        """Alone with the file: the others' accounts together. At the end `own` is written.

        Raises BudgetExceededError where the file fails: what is not written down cannot be held to.
        """
        with self._mutex:
            try:
                with alone(self._connection):
                    yield self._others()
                    self._write(own)
            except (OSError, sqlite3.Error) as error:
                raise BudgetExceededError(
                    f"the budget's file {str(self.path)!r} failed ({error}), so nothing more is asked"
                ) from error

    def _others(self) -> Account:
        total = Account()
        rows = self._connection.execute("select * from accounts where owner != ?", (self._owner,)).fetchall()
        for owner, calls, tokens, usd, held_calls, held_tokens, held_usd, longest in rows:
            held = Spending(calls=held_calls, tokens=held_tokens, usd=held_usd)
            total.spent += Spending(calls=calls, tokens=tokens, usd=usd)
            total.longest = max(total.longest, longest)
            if held != Spending() and self._is_gone(owner):
                total.spent += held
            else:
                total.held += held
        return total

    def _write(self, own: Account) -> None:
        amounts = (own.spent.calls, own.spent.tokens, own.spent.usd)
        held = (own.held.calls, own.held.tokens, own.held.usd)
        self._connection.execute(
            "insert or replace into accounts values (?, ?, ?, ?, ?, ?, ?, ?)",
            (self._owner, *amounts, *held, own.longest),
        )

    def _lock_of(self, owner: str) -> Path:
        return self.path.with_name(f"{self.path.name}-{owner}.lock")

    def _is_gone(self, owner: str) -> bool:
        lock = self._lock_of(owner)
        if not lock.exists():
            return True
        descriptor = take_lock(lock)
        if descriptor is None:
            return False
        os.close(descriptor)
        return True

    def _sweep(self) -> None:
        """Remove locks that killed processes left behind."""
        for lock in self.path.parent.glob(f"{self.path.name}-*.lock"):
            owner = lock.name.removeprefix(f"{self.path.name}-").removesuffix(".lock")
            if owner != self._owner and self._is_gone(owner):
                lock.unlink(missing_ok=True)


def _let_go(connection: sqlite3.Connection, descriptor: int | None, lock: Path) -> None:
    connection.close()
    if descriptor is not None:
        os.close(descriptor)
    with contextlib.suppress(OSError):
        lock.unlink()
