"""The rollouts of a run's steps, as `art ui` and `art explain` read them: what was sampled from the run since
the step before, group by group, and what of it the step's batches trained.

    samples of one prompt                                  a group
    a sample whose prompt begins with another one's ids    the next turn of its rollout
    a datum that begins with a sample's ids                trained it

The ledger of this machine says what was sampled. Where it is elsewhere, a step has no record.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from art.process.files import write_whole
from art.server.data_folder import DataLayout
from art.server.ledger.face import LedgerError
from art.server.ledger.ledger import open_read_only, read_samples
from art.server.ledger.schema import SampleRecord
from art.tracking.folders import ModelPaths
from art.wire.rollout_record import RolloutRecord
from art_extensions.tinker.art_server import PROJECT
from art_extensions.tinker.forward_backward import ForwardBackwardCall, LossDatum
from art_extensions.tinker.loss_functions import ADVANTAGES, WEIGHTS
from art_extensions.tinker.store import QueuedRequest, Run, Tables, TinkerStore

_log = logging.getLogger(__name__)

MOST_SAMPLES = 20_000
"""The newest samples of a step, which alone are recorded."""
TRAINED, NOT_TRAINED = "trained", "discarded"
"""The reason codes of a rollout."""
_ID = 4
"""Bytes of an id."""


V = TypeVar("V")


class PrefixIndex(Generic[V]):
    """Values by ids, as bytes; finds the longest ids that others begin with.

    Sorted ids: what begins others stands before them, and after all that is less than both. A search costs a
    few comparisons, however many lengths there are.
    """

    def __init__(self) -> None:
        self._sorted: list[bytes] = []
        self._values: dict[bytes, list[V]] = {}

    def add(self, ids: bytes, value: V) -> None:
        if ids not in self._values:
            insort(self._sorted, ids)
        self._values.setdefault(ids, []).append(value)

    def longest(self, ids: bytes) -> bytes | None:
        """Returns the longest ids that these begin with, or are."""
        while (place := bisect_right(self._sorted, ids)) > 0:
            found = self._sorted[place - 1]
            if ids.startswith(found):
                return found
            # What begins these and is longer than what both share would stand between the two.
            size = min(len(ids), len(found)) // _ID
            one, other = (np.frombuffer(what, "<i4", size) for what in (ids, found))
            ids = ids[: _ID * int(np.argmin(np.append(one == other, False)))]
        return None

    def first(self, ids: bytes) -> V:
        """Returns the oldest value of ids that are here."""
        return self._values[ids][0]

    def take(self, ids: bytes) -> V:
        """Removes the oldest value of ids that are here, and returns it."""
        value = self._values[ids].pop(0)
        if not self._values[ids]:
            del self._values[ids]
            del self._sorted[bisect_right(self._sorted, ids) - 1]
        return value


@dataclass(kw_only=True, slots=True, eq=False)
class SampledRollout:
    """One rollout: its samples, a turn each."""

    group: int
    place: int
    turns: list[SampleRecord]
    is_trained: bool = False
    advantages: list[float] = field(default_factory=list)
    """Those of its trained tokens."""

    def record(self) -> RolloutRecord:
        last, steps = self.turns[-1], [one.step for one in self.turns if one.step is not None]
        return RolloutRecord(
            rollout=self.turns[0].sample_id,
            group=self.group,
            place=self.place,
            fate=TRAINED if self.is_trained else NOT_TRAINED,
            advantage=float(np.mean(self.advantages)) if self.advantages else None,
            tokens=sum(len(one.completion_ids) for one in self.turns),
            policy_steps=(min(steps), max(steps)) if steps else None,
            truncated=last.finish_reason == "length",
            samples=[one.sample_id for one in self.turns],
            started_at=self.turns[0].created_at,
        )


class StepRollouts:
    """Writes the records. call_of: the checked call of a stored request."""

    def __init__(self, store: TinkerStore, call_of: Callable[[QueuedRequest], ForwardBackwardCall]) -> None:
        self._store, self._call_of = store, call_of
        self._read: dict[str, int] = {}
        """The last row of the ledger that was read for each run."""

    def forget(self, run_id: str) -> None:
        """Forgets a run that has ended."""
        self._read.pop(run_id, None)

    async def record(
        self, run: Run, folder: Path, step: int, seq: int, batches: Sequence[QueuedRequest]
    ) -> None:
        """Records a step that the request of this number made of batches. A ledger that cannot be read and a
        full disk cost the record, not the step. folder: of the model.
        """
        ledger = DataLayout(folder.parents[2]).ledger_file
        try:
            since = 0.0
            if run.run_id not in self._read:  # after a start of this process
                since = await self._store.run(partial(_time_of_step_before, run=run, seq=seq))
            rollouts = await asyncio.to_thread(lambda: stitch(self._samples(ledger, run, since)))
            if not rollouts:
                return
            finder = await asyncio.to_thread(SampleFinder, rollouts)
            for one in batches:
                find = partial(Tables.find, kind=QueuedRequest, request_id=one.request_id)
                whole = await self._store.run(find)
                await asyncio.to_thread(lambda stored: finder.note(self._call_of(stored)), whole or one)
            await asyncio.to_thread(_write, ModelPaths(folder).rollouts(step), rollouts)
        except (OSError, LedgerError, sqlite3.Error) as error:
            _log.warning("step %d of %s has no record of its rollouts: %s", step, run.name, error)

    def _samples(self, ledger: Path, run: Run, since: float) -> list[SampleRecord]:
        """Returns what was sampled from the run since the step before, in the order of the ledger. since: its
        time, where no step of the run was read yet.
        """
        if not ledger.is_file():
            return []
        begin = f"{PROJECT}/{run.name}@"
        with closing(open_read_only(ledger)) as connection:
            first = self._read.get(run.run_id)
            if first is None:
                first = _row_before(connection, since)
            (last,) = connection.execute("SELECT coalesce(max(rowid), 0) FROM samples").fetchone()
            found = connection.execute(
                "SELECT sample_id FROM samples WHERE rowid > ? AND rowid <= ? AND substr(adapter, 1, ?) = ? "
                "ORDER BY rowid DESC LIMIT ?",
                (first, last, len(begin), begin, MOST_SAMPLES),
            ).fetchall()
        self._read[run.run_id] = last
        ids = [row[0] for row in reversed(found)]
        samples = read_samples(ledger, ids)
        return [samples[one] for one in ids if one in samples]


def _write(path: Path, rollouts: Sequence[SampledRollout]) -> None:
    write_whole(path, "".join(one.record().line() for one in without_scores(rollouts)))


def _time_of_step_before(tables: Tables, run: Run, seq: int) -> float:
    """The time of the request for the step before, in Unix seconds; of a first step, that of the run."""
    asked = tables.select(QueuedRequest, without="result", run_id=run.run_id, state="done")
    earlier = (one.created_at for one in asked if one.seq < seq and one.kind == "optim_step")
    return max(earlier, default=run.created_at)


def _row_before(connection: sqlite3.Connection, since: float) -> int:
    """The last row that is older, as rows lie in about the order of their times."""
    (low, high) = connection.execute(
        "SELECT coalesce(min(rowid), 1), coalesce(max(rowid), 0) FROM samples"
    ).fetchone()
    query = "SELECT rowid, created_at FROM samples WHERE rowid >= ? ORDER BY rowid LIMIT 1"
    while low <= high:
        middle = (low + high) // 2
        row, created_at = connection.execute(query, (middle,)).fetchone()
        if created_at < since:
            low = row + 1
        else:
            high = middle - 1
    return int(low) - 1


def stitch(samples: Iterable[SampleRecord]) -> list[SampledRollout]:
    """The rollouts of samples, group by group, groups in the order of their first samples."""
    rollouts: list[SampledRollout] = []
    groups: dict[bytes, list[SampledRollout]] = {}
    going_on = PrefixIndex[SampledRollout]()
    """Rollouts by the ids of their last prompt and completion."""
    for one in samples:
        prompt = _bytes(one.prompt_ids)
        begun = going_on.longest(prompt[:-_ID])
        if begun is not None:
            rollout = going_on.take(begun)
            rollout.turns.append(one)
        else:
            group = groups.setdefault(prompt, [])
            number = group[0].group if group else len(groups) - 1
            rollout = SampledRollout(group=number, place=len(group), turns=[one])
            group.append(rollout)
            rollouts.append(rollout)
        going_on.add(prompt + _bytes(one.completion_ids), rollout)
    return sorted(rollouts, key=lambda rollout: (rollout.group, rollout.place))


def without_scores(rollouts: Sequence[SampledRollout]) -> list[SampledRollout]:
    """Leaves out what was asked for the logprobs of its prompt: one token, where nothing of the group is
    trained or others have more.
    """
    trained = {one.group for one in rollouts if one.is_trained}
    longer = {one.group for one in rollouts if not _is_one_token(one.turns)}
    return [one for one in rollouts if one.group in trained - longer or not _is_one_token(one.turns)]


def _is_one_token(turns: Sequence[SampleRecord]) -> bool:
    return len(turns) == 1 and turns[0].sampling.get("max_tokens") == 1


class SampleFinder:
    """Finds the rollouts of a batch's datums by their ids."""

    def __init__(self, rollouts: Sequence[SampledRollout]) -> None:
        self._left = PrefixIndex[tuple[SampledRollout, SampleRecord]]()
        for rollout in rollouts:
            for one in rollout.turns:
                self._left.add(_bytes(one.prompt_ids) + _bytes(one.completion_ids), (rollout, one))

    def note(self, call: ForwardBackwardCall) -> None:
        """Notes what a batch trains. Of equal samples each datum has one, the others are left."""
        for datum in call.data:
            if call.forward_only or datum.targets.ndim != 1:
                continue
            ids = _bytes(np.append(datum.input_ids, datum.targets[-1:]))
            while (found := self._left.longest(ids)) is not None:
                rollout, sample = self._left.first(found)
                ids = found[:-_ID]
                if _note(rollout, sample, datum, len(found) // _ID):
                    self._left.take(found)
                    ids = found[: len(found) - _ID * max(1, len(sample.completion_ids))]


def _note(rollout: SampledRollout, sample: SampleRecord, datum: LossDatum, length: int) -> bool:
    """Returns whether a datum trains a sample, whose prompt and completion are its first so many ids."""
    column = datum.columns.get(ADVANTAGES, datum.columns.get(WEIGHTS))
    if column is not None:
        trained = column[length - 1 - len(sample.completion_ids) : length - 1]
        if not trained.any():
            return False
        if ADVANTAGES in datum.columns:
            rollout.advantages += trained.tolist()
    rollout.is_trained = True
    return True


def _bytes(ids: object) -> bytes:
    return np.asarray(ids, "<i4").tobytes()
