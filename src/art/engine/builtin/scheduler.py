"""Requests on their way through the engine, with their stop strings, and their schedule: they wait for their
owner's turn, get a cache row (with a prefix that is there already), and leave when they end.

Owners are compared by the tokens that were forwarded for them while they had requests here; the one with the
fewest is next (the virtual token counter of Sheng et al., "Fairness in Serving Large Language Models", 2024).
An owner that comes begins where the one with the fewest stands: time spent away earns nothing.

Worked example: owner `a` has sent 500 requests of 100 tokens, then `b` sends one. `a` stands at 20,000, `b`
begins there too, and with `a`'s next request (100 more) `b` is the one with fewer: it waits for one request,
not for 500.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from art.engine.builtin.cache import BUCKET, EMPTY, PrefixMatch, RowCache, RowTable, bucket
from art.engine.builtin.sampler import LogitBias, Penalties, SamplingTable
from art.engine.constraints import Guide
from art.engine.protocol import Delta, FinishReason, GenerateRequest, TopLogprobs
from art.errors import ARTError, RequestError
from art.process.fair_queue import FairQueue
from art.process.imports import import_lock

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Decodes(Protocol):
    def decode(self, token_ids: list[int]) -> str: ...


class StopStrings:
    """The strings of one request and the text decoded so far.

    A token's text can depend on its neighbour and may be a part of a character, so a short tail of ids is
    decoded twice, with and without the new ones, and the difference is the new text (the scheme of vLLM and
    TGI).
    """

    def __init__(self, strings: tuple[str, ...], tokenizer: Decodes) -> None:
        self.strings = strings
        self.tokenizer = tokenizer
        self.keep = max(len(string) for string in strings) - 1
        self.tail = ""
        """The end of the settled text, long enough to begin any stop string."""
        self.context = 0
        self.settled = 0
        self.passed = 0
        """Characters of the text that is not settled which were passed over."""

    def find(self, completion: list[int]) -> str | None:
        """The first stop string that the completion contains now, or None. One that ends in text that was
        passed over is none.
        """
        new = self._new(completion)
        text, old = self.tail + new, len(self.tail) + self.passed
        places = [(text.find(string, max(0, old - len(string) + 1)), string) for string in self.strings]
        found = [place for place in places if place[0] >= 0]
        if found:
            return min(found)[1]
        self._settle_text(completion, new)
        return None

    def pass_over(self, completion: list[int]) -> None:
        """Marks the completion so far as free of stop strings, except for one that may begin at its end."""
        new = self._new(completion)
        self.passed = len(new.rstrip(REPLACEMENT))
        self._settle_text(completion, new)

    def _new(self, completion: list[int]) -> str:
        before = self.tokenizer.decode(completion[self.context : self.settled])
        return self.tokenizer.decode(completion[self.context :])[len(before) :]

    def _settle_text(self, completion: list[int], new: str) -> None:
        if new and not new.endswith(REPLACEMENT):
            self.context, self.settled, self.passed = self.settled, len(completion), 0
            self.tail = (self.tail + new)[-self.keep :] if self.keep else ""


class TokenizerLoader:
    """Loads the model folder's tokenizer when the first stop string asks for it."""

    def __init__(self, base_model: str) -> None:
        self.base_model = base_model
        self._tokenizer: Decodes | None = None

    def tokenizer(self) -> Decodes:
        """Raises: RequestError when the model has no fast tokenizer."""
        if self._tokenizer is None:
            self._tokenizer = _FastTokenizer(self.base_model)
        return self._tokenizer


class _FastTokenizer:
    def __init__(self, base_model: str) -> None:
        with import_lock:
            from transformers import PreTrainedTokenizerFast

        try:
            self._fast = PreTrainedTokenizerFast.from_pretrained(
                base_model, local_files_only=Path(base_model).is_dir()
            )
        except (OSError, ValueError) as error:
            raise RequestError(
                f"stop strings need a tokenizer, and {base_model!r} has none that loads ({error}); "
                "use stop_token_ids",
                status=400,
                code="unsupported_stop",
            ) from error

    def decode(self, token_ids: list[int]) -> str:
        """Special tokens are written out, so that they can be stop strings too."""
        return str(
            self._fast.decode(token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        )


NOWHERE = -1


@dataclass(slots=True, eq=False)
class Sequence:
    """A request, from its acceptance to its end; `row` is its cache row while it runs."""

    request: GenerateRequest
    adapter: int
    """Number of the adapter, 0 for the base model."""
    seed: int
    limit: int
    """Completion tokens that are wanted and fit in the context."""
    stops: StopStrings | None
    row: int = NOWHERE
    completion: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    tops: list[TopLogprobs] = field(default_factory=list)
    """Empty where they were not asked for."""
    candidates: list[bytes] = field(default_factory=list)
    """The candidates of each id: records of `art.wire.samples`; empty where nothing truncates."""
    delivered: int = 0
    stop_ids: frozenset[int] = frozenset()
    guide: Guide | None = None
    """What its constraint allows next."""
    bias: LogitBias | None = None
    penalties: Penalties | None = None
    forbidden: frozenset[int] = frozenset()
    """Ids that cannot be sampled now: those that would end it before `min_tokens`."""

    @property
    def owner(self) -> str:
        """The owner in the queue."""
        return self.request.owner

    def ids(self) -> np.ndarray:
        """All ids known so far; more than the prompt if the request was sent back to the queue."""
        return np.fromiter((*self.request.prompt_ids, *self.completion), np.int64)

    def append(
        self, token: int, logprob: float, top: TopLogprobs | None = None, candidates: bytes = b""
    ) -> Delta | None:
        """Take a sampled token; the delta to deliver now, if any. Raises: RequestError (constraint)."""
        self.completion.append(token)
        self.logprobs.append(logprob)
        if top is not None:
            self.tops.append(top)
        if candidates:
            self.candidates.append(candidates)
        if self.penalties is not None:
            self.penalties.count(token)
        if self.forbidden and len(self.completion) >= self.request.sampling.min_tokens:
            self.forbidden = frozenset()
        reason: FinishReason | None = None
        stop_string = self._stop_string()
        if stop_string is not None or token in self.stop_ids:
            reason = "stop"
        elif len(self.completion) >= self.limit:
            reason = "length"
        if reason is None and self.guide is not None:
            self.guide.advance(token)
            if self.guide.is_over:
                reason = "stop"
        if reason is None and not self.request.stream:
            return None
        first, self.delivered = self.delivered, len(self.completion)
        return Delta(
            token_ids=self.completion[first:],
            logprobs=self.logprobs[first:],
            finish_reason=reason,
            stop_string=stop_string,
            top_logprobs=self.tops[first:],
            candidates=b"".join(self.candidates[first:]),
        )

    def _stop_string(self) -> str | None:
        """The one that ends it now."""
        if self.stops is None:
            return None
        if len(self.completion) <= self.request.sampling.min_tokens:
            self.stops.pass_over(self.completion)
            return None
        return self.stops.find(self.completion)


def appended(
    sequence: Sequence, token: int, logprob: float, top: TopLogprobs | None, candidates: bytes
) -> Delta | ARTError | None:
    """`Sequence.append`, with a constraint that cannot be followed as news like any other."""
    try:
        return sequence.append(token, logprob, top, candidates)
    except RequestError as error:
        return error


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
        postponed: list[Sequence] = []
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
                postponed.append(sequence)
            elif not self._assign_row(sequence, ids, match) and not self._place_instead(sequence, ids):
                # Nobody overtakes it: a large request would wait for ever.
                self.waiting.put_back(sequence.owner, sequence)
                break
        for sequence in reversed(postponed):
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
            ids_by_owner: Counter[str] = Counter()
            for row, sequence in self.running.items():
                ids_by_owner[sequence.owner] += int(self.table.known[row])
            self._send_back_youngest(max(ids_by_owner, key=ids_by_owner.__getitem__))

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
        rows_by_owner = Counter(sequence.owner for sequence in self.running.values())
        most = max(rows_by_owner, key=rows_by_owner.__getitem__, default=owner)
        if rows_by_owner[owner] >= share or rows_by_owner[most] <= share:
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
