"""A hard limit on what may be asked: in calls, in tokens, in US dollars.

What was spent counts for this process and for those before and beside it, through a file that they share.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sqlite3
import threading
import uuid
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from art.errors import BudgetExceededError, ConfigurationError
from art.process.files import take_lock
from art.rewards.llm.database import exclusive_transaction, open_private
from art.rewards.llm.request import Request, Usage
from art.tracking.prices import MILLION, TokenPricing

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
    """The amounts spent by one process, or by several together."""

    spent: Spending = field(default_factory=Spending)
    reserved: Spending = field(default_factory=Spending)
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
            # Nobody takes the lock for one that was left behind.
            with exclusive_transaction(self._connection):
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
                with exclusive_transaction(self._connection):
                    yield self._other_accounts()
                    self._write(own)
            except (OSError, sqlite3.Error) as error:
                raise BudgetExceededError(
                    f"the budget's file {str(self.path)!r} failed ({error}), so nothing more is asked"
                ) from error

    def _other_accounts(self) -> Account:
        total = Account()
        rows = self._connection.execute("select * from accounts where owner != ?", (self._owner,)).fetchall()
        for owner, calls, tokens, usd, held_calls, held_tokens, held_usd, longest in rows:
            reserved = Spending(calls=held_calls, tokens=held_tokens, usd=held_usd)
            total.spent += Spending(calls=calls, tokens=tokens, usd=usd)
            total.longest = max(total.longest, longest)
            if reserved != Spending() and self._is_gone(owner):
                total.spent += reserved
            else:
                total.reserved += reserved
        return total

    def _write(self, own: Account) -> None:
        amounts = (own.spent.calls, own.spent.tokens, own.spent.usd)
        reserved = (own.reserved.calls, own.reserved.tokens, own.reserved.usd)
        self._connection.execute(
            "insert or replace into accounts values (?, ?, ?, ?, ?, ?, ?, ?)",
            (self._owner, *amounts, *reserved, own.longest),
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


_LOGGER = logging.getLogger(__name__)

BYTES_PER_TOKEN = 3
"""The assumed bytes of UTF-8 per token. English and JSON have more; about 3 where a character is a token."""
ASSUMED_COMPLETION = 512
"""Tokens of an answer that has no limit, until a longer one was seen."""
OTHERS_S = 0.2
"""Seconds between two looks at what other processes gave back."""


class Budget:
    """Set aside before a call, settled after it. Each attempt counts. Channels of one event loop share it;
    with a file also processes, and a run that goes on after it was killed.

    An answer without `max_tokens` is assumed as long as the longest so far, and at least `assumed_completion`
    tokens. So the most that is spent above a limit in tokens or dollars is, for each of the calls under way
    at the end, what its answer is longer than that; the next one is refused.
    """

    def __init__(
        self,
        *,
        calls: int | None = None,
        tokens: int | None = None,
        usd: float | None = None,
        assumed_completion: int = ASSUMED_COMPLETION,
        path: str | Path | None = None,
    ) -> None:
        """Limits; None: none. path: a file in which is kept what was spent, under these limits or others;
        None: nothing is, unless `keep` says where.

        Raises ConfigurationError for a limit that is not above 0, and a file that cannot be used.
        """
        self.limits = {"calls": calls, "tokens": tokens, "usd": usd}
        for name, limit in {**self.limits, "assumed_completion": assumed_completion}.items():
            if limit is not None and not limit > 0:
                raise ConfigurationError(f"Budget({name}={limit!r}): a limit above 0, or None for no limit")
        self._own = Account(longest=assumed_completion)
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._file: SpendingFile | None = None
        if path is not None:
            self.keep(path)

    @property
    def path(self) -> Path | None:
        """The file of the budget."""
        return None if self._file is None else self._file.path

    def keep(self, path: str | Path) -> None:
        """Stores the budget in this file from now on, with the amounts that it has already. A budget that has
        a file keeps it.

        Raises ConfigurationError for a file that cannot be used.
        """
        if self._file is None:
            self._file = SpendingFile(path)

    @property
    def spent(self) -> Spending:
        """The amounts spent so far by all processes that share the budget."""
        with self._other_accounts() as others:
            return self._own.spent + others.spent

    def accepts(self, pricing: TokenPricing | None, name: str) -> None:
        """Raises ConfigurationError when there is a limit in dollars and the model's price is not known."""
        if self.limits["usd"] is not None and pricing is None:
            raise ConfigurationError(
                f"a budget in US dollars needs the price of {name!r}: give params="
                "{'input_cost_per_token': ..., 'output_cost_per_token': ...}, or a budget in calls or tokens"
            )

    async def reserve(
        self, request: Request, pricing: TokenPricing | None, *, limit: int | None = None
    ) -> Spending:
        """Set aside what the request may cost; waits for calls under way where only they stand in the way.

        limit: of the answer, in tokens, where the model has one of its own.
        Raises BudgetExceededError, and then nothing may be asked.
        """
        while True:
            with self._other_accounts() as others:
                longest = max(self._own.longest, others.longest)
                need = _estimate(request, pricing, limit or request.max_tokens or longest)
                spent = self._own.spent + others.spent
                if (over := self._exceeded_limit(spent + need)) is not None:
                    raise BudgetExceededError(self._refusal_text(over, spent, need))
                if self._exceeded_limit(spent + self._own.reserved + others.reserved + need) is None:
                    self._own.reserved += need
                    return need
            await self._wait_for_settlement()

    def charge(self, reserved: Spending, usage: Usage | None, *, asked: bool = True) -> None:
        """Replaces the reservation by the amounts used; None: there was no answer.

        A usage that tells no tokens, or no price, counts as what was set aside. asked: whether the attempt
        was made at all.
        """
        tokens = 0 if usage is None else usage.prompt_tokens + usage.completion_tokens or reserved.tokens
        usd = 0.0 if usage is None else (reserved.usd if usage.usd is None else usage.usd)
        own = self._own
        own.reserved -= reserved
        own.spent += Spending(calls=reserved.calls if asked else 0, tokens=tokens, usd=usd)
        own.longest = max(own.longest, 0 if usage is None else usage.completion_tokens)
        try:
            with self._other_accounts():
                pass  # what is our own is written down
        except BudgetExceededError as error:  # the next reservation says so, too, and writes it if it can
            _LOGGER.warning("%s", error)
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)

    @contextmanager
    def _other_accounts(self) -> Iterator[Account]:
        """Returns the amounts that others who share the file spent and hold; the file is locked meanwhile."""
        if self._file is None:
            yield Account()
            return
        with self._file.turn(self._own) as others:
            yield others

    def _exceeded_limit(self, amount: Spending) -> str | None:
        for name, limit in self.limits.items():
            if limit is not None and getattr(amount, name) > limit:
                return name
        return None

    def _refusal_text(self, over: str, spent: Spending, need: Spending) -> str:
        note = "" if self._file is None else f" (kept in {str(self._file.path)!r}; a larger limit goes on)"
        return (
            f"the budget is spent: {over}={self.limits[over]} and {getattr(spent, over)} used, "
            f"the next question needs about {getattr(need, over)}{note}"
        )

    async def _wait_for_settlement(self) -> None:
        """Waits until one of its own requests is settled; if others have the file, at most a moment."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        if self._file is None:
            await waiter
        else:
            await asyncio.wait([waiter], timeout=OTHERS_S)
            waiter.cancel()


def _estimate(request: Request, pricing: TokenPricing | None, completion: int) -> Spending:
    texts = [*map(str, request.messages), str(request.schema or "")]
    prompt = sum(len(text.encode("utf-8", "replace")) for text in texts) // BYTES_PER_TOKEN + 1
    usd = 0.0
    if pricing is not None:
        usd = prompt * (pricing.prompt_per_million or 0) + completion * (pricing.completion_per_million or 0)
    return Spending(calls=1, tokens=prompt + completion, usd=usd / MILLION)
