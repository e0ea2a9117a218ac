"""What became of each rollout of a step, kept beside the model's log: `steps/NNNN/rollouts.jsonl`.

It is written before the step is committed, so that a step that exists has its record; a job that runs again
after a crash writes the same again. The format is in `art.wire.rollout_record`, its reader is
`art.tracking.step_record`. A record that cannot be written is one warning: the step goes on without it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from art.batch.balance_sheet import MASKED, UNTRAINABLE
from art.batch.batch_types import Batch, GroupRow, RolloutFate, RolloutRow
from art.process.files import write_whole
from art.wire.jobs import TrainGroup, TrainJobRequest, TrainTrajectory
from art.wire.rollout_record import ROLLOUT_FILE, ContextRow, RolloutFailure, RolloutRecord

_log = logging.getLogger(__name__)
_SHOWS_CONTEXT = frozenset({"trained", MASKED, UNTRAINABLE})


def write_rollouts(steps: Path, step: int, records: Iterable[RolloutRecord]) -> Path | None:
    """Write the record of the step that is being made. Returns its path; None where a disk refused."""
    path = steps / f"{step:04d}" / ROLLOUT_FILE
    try:
        write_whole(path, "".join(one.line() for one in records))
    except OSError as error:
        _log.warning("step %d has no record of its rollouts in %s: %s", step, steps, error)
        return None
    return path


def rollout_records(
    request: TrainJobRequest, rows: Sequence[GroupRow], batch: Batch, *, masked: bool = False
) -> Iterator[RolloutRecord]:
    """Yields a record for each rollout that started, in the order of the request.

    rows: the request's groups, the discarded ones last. masked: the step trained nothing after all.
    """
    groups = [*request.groups, *request.discarded]
    for number, (group, row, fates) in enumerate(zip(groups, rows, batch.fates, strict=True)):
        for place, (trajectory, rollout, fate) in enumerate(
            zip(group.trajectories, row.rollouts, fates, strict=True)
        ):
            shown = MASKED if masked and fate.fate == "trained" else fate.fate
            yield _record(number, place, trajectory, rollout, fate, shown, discarded=row.discarded)
        yield from _failed(number, group, discarded=row.discarded)


def _record(
    group: int,
    place: int,
    trajectory: TrainTrajectory,
    row: RolloutRow,
    fate: RolloutFate,
    shown: str,
    *,
    discarded: bool,
) -> RolloutRecord:
    drawn = [sample.step for sample in row.samples if sample.step is not None]
    context = _context(row) if shown in _SHOWS_CONTEXT else {}
    return RolloutRecord(
        **trajectory.notes.model_dump(),
        rollout=trajectory.rollout,
        group=group,
        place=place,
        fate=shown,
        discarded=discarded,
        reward=trajectory.reward,
        unscored_reason=trajectory.unscored_reason,
        advantage=fate.advantage,
        tokens=fate.tokens,
        context=context,
        policy_steps=(min(drawn), max(drawn)) if drawn else None,
        forks=dict(Counter(sample.fork_reason for sample in row.samples if sample.fork_reason is not None)),
        truncated=bool(row.samples) and row.samples[-1].truncated,
        samples=list(trajectory.samples),
    )


def _context(row: RolloutRow) -> dict[str, ContextRow]:
    found: dict[str, ContextRow] = {}
    for sample in row.samples:
        if sample.untrainable is not None:
            seen = found.get(sample.untrainable.reason, ContextRow())
            tokens = seen.tokens + len(sample.completion_ids)
            found[sample.untrainable.reason] = ContextRow(samples=seen.samples + 1, tokens=tokens)
    return found


def _failed(number: int, group: TrainGroup, *, discarded: bool) -> Iterator[RolloutRecord]:
    """A record for each rollout that ended in an exception; older programs do not say in which."""
    told: list[RolloutFailure | None] = [*group.failures[: group.failed]]
    told += [None] * (group.failed - len(told))
    for place, failure in enumerate(told, len(group.trajectories)):
        yield RolloutRecord(
            rollout=f"g{number}.failed{place}",
            group=number,
            place=place,
            fate="failed",
            discarded=discarded,
            failure=failure,
        )
