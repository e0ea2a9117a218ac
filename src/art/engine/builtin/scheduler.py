"""Schedules requests: they wait for their owner's turn, get a cache row (with a prefix that is there
already), and leave when they end.

Owners are compared by the tokens that were forwarded for them while they had requests here; the one with the
fewest is next (the virtual token counter of Sheng et al., "Fairness in Serving Large Language Models", 2024).
An owner that comes begins where the one with the fewest stands: time spent away earns nothing.

Worked example: owner `a` has sent 500 requests of 100 tokens, then `b` sends one. `a` stands at 20,000, `b`
begins there too, and with `a`'s next request (100 more) `b` is the one with fewer: it waits for one request,
not for 500.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from art.engine.builtin.cache import BUCKET, EMPTY, PrefixMatch, RowCache, RowTable, bucket
from art.engine.builtin.sampler import SamplingTable
from art.engine.builtin.sequence import NOWHERE, Sequence
from art.process.fair_queue import FairQueue

SAMPLED_COST = 2
"""A sampled token costs as much as so many of a prompt."""


class SequenceQueue(FairQueue[Sequence]):
    """Waiting requests by owner. Counters are kept of owners with open requests, waiting or running."""

    def __init__(self) -> None:
        super().__init__()
        self._open: Counter[str] = Counter()
        self._served: dict[str, int] = {}
        self._numbers: dict[str, int] = {}
        self._owners = 0

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._queues.get(sequence.owner, ())

    @property
    def owners(self) -> int:
        """Owners with open requests."""
        return len(self._open)

    def number(self, owner: str) -> int:
        """An owner with open requests, as a number."""
        return self._numbers[owner]

    def open(self, sequence: Sequence) -> None:
        """A request arrives, and begins to wait."""
        owner = sequence.owner
        if owner not in self._open:
            self._served[owner] = min(self._served.values(), default=0)
            self._owners += 1
            self._numbers[owner] = self._owners
        self._open[owner] += 1
        self.put(owner, sequence)

    def charge(self, owner: str, tokens: int) -> None:
        """Adds forwarded tokens to an owner's count."""
        self._served[owner] += tokens

    def close(self, sequence: Sequence) -> None:
        """An open request has ended, however it ended; one that waits is removed separately."""
        self._open[sequence.owner] -= 1
        if not self._open[sequence.owner]:
            for table in (self._open, self._served, self._numbers):
                del table[sequence.owner]

    def _next_owner(self) -> str:
        return min(self._queues, key=self._served.__getitem__)


WORTH_WAITING = 16
"""A request waits one step when a prompt that is being read now shares this many more ids with it than the
cache."""
FIRST_ROWS = 16
NOTHING = PrefixMatch(EMPTY, 0, 0)
"""No row begins like the prompt."""


class Scheduler:
    """Waiting and running requests over the cache's rows."""

    def __init__(self, cache: RowCache, *, max_running: int, max_rows: int, reuse: bool = True) -> None:
        """reuse: whether a request goes on from what others with the same first ids computed."""
        self.cache = cache
        self.reuse = reuse
        self.max_running = min(max_running, max_rows)
        self.max_rows = max_rows
        self.table = RowTable(max_rows)
        self.sampling = SamplingTable(max_rows)
        self.waiting = SequenceQueue()
        self.running: dict[int, Sequence] = {}
        self.prompt_tokens = 0
        self.reused_tokens = 0
        self.preempted = 0
        self._copies: list[tuple[int, int, int]] = []

    def admit(self) -> None:
        """Move waiting requests to rows, owners in turns, as far as there is room."""
        held: list[Sequence] = []
        if not self.reuse and not self.running and self.cache.rows:
            self.forget()  # the shape of the cache, too, decides how sums are rounded
        while self.waiting:
            sequence = self.waiting.take_next()
            if len(self.running) >= self.max_running and not self._give_way(sequence.owner):
                self.waiting.put_back(sequence.owner, sequence)
                break
            ids = sequence.ids()
            match = self._match(sequence, ids)
            if match.coming - match.ready >= WORTH_WAITING:
                held.append(sequence)
            elif not self._assign_row(sequence, ids, match) and not self._place_instead(sequence, ids):
                # Nobody overtakes it: a large request would wait for ever.
                self.waiting.put_back(sequence.owner, sequence)
                break
        for sequence in reversed(held):
            self.waiting.put_back(sequence.owner, sequence)
        self._flush_copies()

    def sampled(self, sequence: Sequence) -> None:
        """A token was sampled for it."""
        self.waiting.charge(sequence.owner, SAMPLED_COST)

    def make_room(self) -> None:
        """Every running row can take one more id; if it must be, the youngest requests of who holds the most
        ids go back to the queue."""
        while self.running:
            longest = int(self.table.known[self.table.running].max())
            if longest < self.cache.capacity or self._fit(self.cache.rows, longest + 1, new=0):
                return
            held: Counter[str] = Counter()
            for row, sequence in self.running.items():
                held[sequence.owner] += int(self.table.known[row])
            self._send_back_youngest(max(held, key=held.__getitem__))

    def leave(self, row: int) -> Sequence:
        """A request ended or was sent back; its row stays as a prefix for others."""
        sequence = self.running.pop(row)
        sequence.row = NOWHERE
        self.table.release(row)
        return sequence

    def forget(self) -> None:
        """Drop all cached rows; nothing may be running."""
        self.table.clear()
        self.table.widen(0)
        self.cache.free()

    def _give_way(self, owner: str) -> bool:
        """Send a request of the owner with the most back, if `owner` has less than its share.

        What was computed stays in its row as a prefix and its tokens are kept: it goes on from there.
        """
        if self.waiting.owners < 2:
            return False
        share = max(1, len(self.running) // self.waiting.owners)
        held = Counter(sequence.owner for sequence in self.running.values())
        most = max(held, key=held.__getitem__, default=owner)
        if held[owner] >= share or held[most] <= share:
            return False
        self._send_back_youngest(most)
        return True

    def _place_instead(self, sequence: Sequence, ids: np.ndarray) -> bool:
        """Takes the place of another owner's request, if it needs only one row more."""
        if len(ids) >= self.cache.capacity or not self._give_way(sequence.owner):
            return False
        return self._assign_row(sequence, ids, self._match(sequence, ids))

    def _match(self, sequence: Sequence, ids: np.ndarray) -> PrefixMatch:
        return self.table.match(sequence.adapter, ids[:-1]) if self.reuse else NOTHING

    def _send_back_youngest(self, owner: str) -> None:
        rows = [row for row, sequence in self.running.items() if sequence.owner == owner]
        sequence = self.leave(max(rows, key=lambda row: int(self.table.used[row])))
        self.waiting.put_back(sequence.owner, sequence)
        self.preempted += 1

    def _assign_row(self, sequence: Sequence, ids: np.ndarray, match: PrefixMatch) -> bool:
        size = self.cache.rows, self.cache.capacity
        if not self._fit_request(len(ids) + 1):
            return False
        if size != (self.cache.rows, self.cache.capacity):
            # Growing may have moved rows to other places.
            match = self._match(sequence, ids)
        row = self._choose_row(match)
        if row == EMPTY:
            return False
        if match.ready and row != match.row:
            if any(target in (match.row, row) for _, target, _ in self._copies):
                self._flush_copies()
            self._copies.append((match.row, row, match.ready))
        if not sequence.completion:
            self.prompt_tokens += len(ids)
            self.reused_tokens += match.ready
        self.waiting.charge(sequence.owner, len(ids) - match.ready)
        owner = self.waiting.number(sequence.owner)
        self.table.begin_request(row, sequence.adapter, ids, match.ready, owner)
        self.sampling.set(row, sequence.request.sampling, sequence.seed)
        sequence.row = row
        self.running[row] = sequence
        return True

    def _choose_row(self, match: PrefixMatch) -> int:
        """The matching row itself if it is idle and holds no more than the prefix, else a free or the oldest
        one."""
        table, rows = self.table, self.cache.rows
        idle = match.row != EMPTY and not table.running[match.row]
        if idle and table.computed[match.row] == match.ready:
            return match.row
        row = table.free_row(rows)
        if row == EMPTY and self._fit(rows + 1, 0, new=1):
            row = table.free_row(self.cache.rows)
        if row == EMPTY:
            row = table.oldest_idle(self.cache.rows, besides=match.row)
        return match.row if row == EMPTY and idle else row

    def _fit_request(self, tokens: int) -> bool:
        """Room for one more running row of this many ids, growing where the budget allows it."""
        if tokens <= self.cache.capacity and len(self.running) < self.cache.rows:
            return True
        return self._fit(max(self.cache.rows, len(self.running) + 1), tokens, new=1)

    def _fit(self, rows: int, tokens: int, *, new: int) -> bool:
        """Grow to at least this many rows of this many tokens, giving up idle rows if the budget asks for it.

        False when the running rows and `new` more do not fit.
        """
        cache = self.cache
        capacity, wanted_rows = cache.capacity, max(cache.rows, rows)
        if tokens > capacity:
            generous = bucket(max(tokens, capacity + capacity // 4))
            capacity = generous if generous * wanted_rows <= cache.budget else bucket(tokens)
        if rows > cache.rows:
            wanted_rows = min(max(FIRST_ROWS, 2 * cache.rows, rows), self.max_rows)
        wanted_rows = min(wanted_rows, cache.budget // max(capacity, BUCKET))
        if (wanted_rows, capacity) == (cache.rows, cache.capacity):
            return tokens <= capacity and rows <= wanted_rows
        if wanted_rows < len(self.running) + new or (not tokens and wanted_rows < rows):
            return False
        self._resize(wanted_rows, capacity, new)
        return True

    def _resize(self, rows: int, capacity: int, new: int) -> None:
        self._flush_copies()
        keep = list(range(self.cache.rows))
        if rows < self.cache.rows:
            keep = self.table.newest(rows - new)
        self.cache.resize(keep, rows, capacity)
        self.table.reorder(keep)
        self.table.widen(capacity)
        self.running = {row: self.running[old] for row, old in enumerate(keep) if old in self.running}
        for row, sequence in self.running.items():
            sequence.row = row
            self.sampling.set(row, sequence.request.sampling, sequence.seed)

    def _flush_copies(self) -> None:
        if self._copies:
            sources, targets, lengths = zip(*self._copies, strict=True)
            self._copies = []
            self.cache.copy(list(sources), list(targets), max(lengths))
