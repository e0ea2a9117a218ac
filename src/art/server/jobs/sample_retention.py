"""Removes old samples from the ledger: those that no step can be trained on, and nothing names any more.

After each step of a model, the samples of its steps before the newest `keep_samples_steps` go, in small
batches between the ledger's commits. Never removed are samples

- young enough to be trained: of the newest `max_off_policy_steps`;
- that the record of a kept checkpoint's step names, or that a queued or running job names;
- of a rollout that is open, or has a sample of one of those newest steps;
- whose ids a sample that stays begins with.

What stays for one of these reasons goes when the reason is gone. Samples of base models have no step: they
stay.

Of the jobs of these steps, and of failed ones before them, the settings and the outcome stay: their requests
name the samples that are gone, and their events were followed long ago. Jobs of kept checkpoints stay whole.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from art.errors import ARTError
from art.process.steady_time import steady_time
from art.server.checkpoints.checkpoints import Checkpoints
from art.server.checkpoints.registered_models import RegisteredModels, Registration
from art.server.jobs.training_jobs import TrainingJobs
from art.server.ledger.face import LedgerSize, SampleLedger
from art.server.settings import ControlSettings
from art.wire.rollout_record import ROLLOUT_FILE, fold_lines

_log = logging.getLogger(__name__)

BATCH = 256
"""Samples that are removed in one transaction: some milliseconds, between which others write."""
ADAPTERS = 64
"""Whose samples are looked at after one step; the others' after the next."""
STEPS_MEASURED = 16
"""The number of newest steps over which the growth of the ledger is averaged."""


@dataclass(frozen=True, slots=True)
class _Settled:
    """An adapter of which nothing is left but what the records of these steps name."""

    newest: int
    """The row of its newest sample then."""
    steps: frozenset[int]

    def holds(self, newest: int, steps: frozenset[int]) -> bool:
        return newest == self.newest and self.steps <= steps


class SampleRetention:
    """Looks after each step what may go. One event loop owns it."""

    def __init__(
        self, ledger: SampleLedger, *, models: RegisteredModels, jobs: TrainingJobs, settings: ControlSettings
    ) -> None:
        self._ledger, self._models, self._jobs, self._settings = ledger, models, jobs, settings
        self._settled: dict[str, dict[str, _Settled]] = {}
        """The settled adapters, by model and by adapter."""
        self._whole: dict[str, tuple[int, dict[str, int]]] = {}
        """The number up to which a model's jobs were shortened, and the steps of those that stayed whole."""
        self._waiting: dict[tuple[str, str], None] = {}
        self._task: asyncio.Task[None] | None = None
        self._used: int | None = None
        self._growth: deque[int] = deque(maxlen=STEPS_MEASURED)
        self.size: LedgerSize | None = None
        """The size of the ledger after the last step; None before the first one."""

    def after_step(self, project: str, name: str) -> None:
        """A step of the model was made: measure the ledger and remove what may go, in the background."""
        self._waiting[project, name] = None
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work(), name="sample retention")

    async def close(self) -> None:
        """Stop. What is not removed yet is removed after a later step."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def described(self) -> dict[str, float | None]:
        """Returns the ledger's size for whoever asks how the server is; empty before the first step."""
        if self.size is None:
            return {}
        growth = sum(self._growth) / len(self._growth) if self._growth else None
        return {
            "samples": self.size.samples,
            "bytes": self.size.stored,
            "free_bytes": self.size.free,
            "removed_samples": self.size.removed,
            "bytes_a_step": growth,
            "keep_samples_steps": self._settings.keep_samples_steps,
        }

    async def _work(self) -> None:
        while self._waiting:
            (project, name), _ = self._waiting.popitem()
            try:
                await self._measure()
                if self._settings.keep_samples_steps is not None:
                    await self.remove_old(self._models.get(project, name))
                    self.size = await self._ledger.size()
            except (ARTError, OSError) as error:
                _log.warning("old samples of %s/%s stay in the ledger for now: %s", project, name, error)

    async def _measure(self) -> None:
        self.size = await self._ledger.size()
        used, before = self.size.stored - self.size.free, self._used
        self._used = used
        if before is not None:
            self._growth.append(max(0, used - before))

    async def remove_old(self, model: Registration) -> int:
        """Returns how many of the model's samples were removed. Raises LedgerError, DiskError, OSError."""
        keep, youngest = self._settings.keep_samples_steps, self._settings.max_off_policy_steps
        checkpoints = self._models.checkpoints(model)
        steps = frozenset(await asyncio.to_thread(checkpoints.steps))
        if keep is None or not steps:
            return 0
        since = max(steps) - max(keep - 1, youngest)
        await self._shorten_jobs(model, steps, since)
        drawn = await self._ledger.adapters(model.key)
        known = self._settled.get(model.key, {})
        settled = self._settled[model.key] = {one: known[one] for one in drawn if one in known}
        old = [
            (step, adapter)
            for step, adapter in (_drawn_at(one, model.removals) for one in drawn)
            if step < since and not (adapter in settled and settled[adapter].holds(drawn[adapter], steps))
        ]
        old = sorted(old)[:ADAPTERS]
        if not old:
            return 0
        records = await asyncio.to_thread(read_records, checkpoints, [s for s in steps if s > old[0][0]])
        removed = 0
        for step, adapter in old:
            unknown = frozenset(one for one in records.missing if step < one <= step + youngest + 1)
            number, left = (0, unknown) if unknown else await self._remove_of(adapter, records.samples, since)
            removed += number
            if left is not None:
                settled[adapter] = _Settled(drawn[adapter], left)
        if removed:
            _log.info("removed %d samples of %s, drawn before step %d", removed, model.key, since)
        return removed

    async def _shorten_jobs(self, model: Registration, steps: frozenset[int], since: int) -> None:
        last, whole = self._whole.get(model.key, (0, {}))
        found = await self._jobs.store.ended_before(model.project, model.name, since, last)
        old = whole | {job: step for _, job, step in found}
        if doomed := [job for job, step in old.items() if step not in steps]:
            await self._jobs.store.shorten(doomed)
        last = max((number for number, _, _ in found), default=last)
        self._whole[model.key] = last, {job: step for job, step in old.items() if step in steps}

    async def _remove_of(
        self, adapter: str, names: dict[str, int], since: int
    ) -> tuple[int, frozenset[int] | None]:
        """Returns how many went, and the steps whose records hold what is left; None where something else
        holds a sample, too.
        """
        removed, below, by_records, for_good = 0, None, set[int](), True
        while True:
            # A job that is accepted from here on waits until these are gone, and finds them gone.
            async with self._jobs.accepting:
                pending = await self._jobs.pending_samples()
                old = await self._ledger.old_samples(
                    adapter, since=since, below=below, now=steady_time(), most=BATCH
                )
                doomed = [
                    one.sample_id
                    for one in old
                    if not (one.in_use or one.sample_id in names or one.sample_id in pending)
                ]
                gone = await self._ledger.remove(doomed) if doomed else 0
            removed += gone
            by_records.update(names[one.sample_id] for one in old if one.sample_id in names)
            used_elsewhere = any(one.in_use or one.sample_id in pending for one in old)
            for_good = for_good and gone == len(doomed) and not used_elsewhere
            if len(old) < BATCH:
                return removed, frozenset(by_records) if for_good else None
            below = old[-1].row


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedSamples:
    """The samples of the steps whose checkpoints are kept."""

    samples: dict[str, int]
    """The sample, and a step whose record names it."""
    missing: frozenset[int]
    """Steps that were trained on samples and have no record: what they name is not known."""


def read_records(checkpoints: Checkpoints, steps: Iterable[int]) -> NamedSamples:
    """Returns what the records of these steps name. Raises OSError, CheckpointError."""
    named, missing = dict[str, int](), set[int]()
    for step in steps:
        try:
            with (checkpoints.records / f"{step:04d}" / ROLLOUT_FILE).open("rb") as lines:
                named.update((sample, step) for one in fold_lines(lines) for sample in one.samples)
        except FileNotFoundError:
            note = checkpoints.note(step)
            if note is not None and note.kind in (None, "rl"):
                missing.add(step)
    return NamedSamples(samples=named, missing=frozenset(missing))


def _drawn_at(adapter: str, removals: int) -> tuple[int, str]:
    """The step in the name of an adapter, and the name. An earlier model of this name drew before any step.

    >>> _drawn_at("games/player@12.1", 1), _drawn_at("games/player@12", 1)
    ((12, 'games/player@12.1'), (-1, 'games/player@12'))
    """
    step, _, number = adapter.rpartition("@")[2].partition(".")
    return (int(step) if int(number or 0) == removals else -1), adapter
