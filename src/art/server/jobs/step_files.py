"""The record of a step, kept beside the model's log: what became of each rollout, and each trained token.

`steps/NNNN/rollouts.jsonl` is written before the step is committed, so that a step that exists has its
record; a job that runs again after a crash writes the same again. Of `steps/NNNN/tokens.safetensors`, the
trainer hands out the columns, one value for each loss entry; the job adds whose each is. The formats are in
`art.wire.rollout_record` and `art.wire.training`, their reader is `art.tracking.step_record`. A record that
cannot be made is one warning: the step goes on without it.

Letters: E = loss entries of the step, K = entries that are kept, S = trained samples.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from art.batch.balance_sheet import MASKED, UNTRAINABLE
from art.batch.batch_types import Batch, GroupRow, RolloutFate, RolloutRow, TrainedSample
from art.errors import ARTError, TrainingError
from art.process.files import write_whole
from art.server.settings import ControlSettings
from art.server.workers.trainer_worker import TrainedModel
from art.wire.jobs import SftJobRequest, TrainGroup, TrainJobRequest, TrainTrajectory
from art.wire.records import write_pieces
from art.wire.rollout_record import ROLLOUT_FILE, ContextRow, RolloutFailure, RolloutRecord
from art.wire.training import (
    COMPUTED_FILE,
    REQUEST_FILE,
    TOKEN_COLUMNS,
    TOKEN_FILE,
    ComputedStep,
    RecordTokens,
    TokenFileHeader,
)

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


COMPUTING = ("agent-reinforcement-trainer", "torch", "transformers", "peft")
"""The distributions whose versions decide the bits of a step, ART's first."""


def computing_versions() -> dict[str, str]:
    """Returns the versions of what computes here."""
    found = {}
    for name in COMPUTING:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def keep_replay(
    steps: Path, step: int, computed: ComputedStep, request: TrainJobRequest | SftJobRequest, *, newest: int
) -> None:
    """Write what the step can be done again from: how it was computed, and of the `newest` steps the whole
    request.
    """
    folder = steps / f"{step:04d}"
    try:
        write_whole(folder / COMPUTED_FILE, computed.model_dump_json(), durable=False)
        if newest:
            packed = gzip.compress(write_pieces(request).encode(), mtime=0)
            write_whole(folder / REQUEST_FILE, packed, durable=False)
            delete_old(steps, step - newest, REQUEST_FILE)
    except OSError as error:
        _log.warning("step %d cannot be done again by `art replay`: %s", step, error)


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
            yield _record(number, place, trajectory, rollout, fate, shown, row)
        yield from _failed(number, group, discarded=row.discarded)


def _record(
    group: int,
    place: int,
    trajectory: TrainTrajectory,
    row: RolloutRow,
    fate: RolloutFate,
    shown: str,
    of_group: GroupRow,
) -> RolloutRecord:
    drawn = [sample.step for sample in row.samples if sample.step is not None]
    context = _context(row) if shown in _SHOWS_CONTEXT else {}
    return RolloutRecord(
        **trajectory.notes.model_dump(),
        rollout=trajectory.rollout,
        group=group,
        place=place,
        fate=shown,
        discarded=of_group.discarded,
        weight=of_group.weight,
        reward=trajectory.reward,
        unscored_reason=trajectory.unscored_reason,
        advantage=fate.advantage,
        tokens=fate.tokens,
        context=context,
        policy_steps=(min(drawn), max(drawn)) if drawn else None,
        forks=dict(Counter(sample.fork_reason for sample in row.samples if sample.fork_reason is not None)),
        truncated=bool(row.samples) and row.samples[-1].truncated,
        samples=list(trajectory.samples),
        turn_rewards=_of_turns(trajectory.turn_rewards, trajectory.samples, 0.0),
        turn_returns=_of_turns(fate.turn_returns, trajectory.samples, None),
        turn_advantages=_of_turns(fate.turn_advantages, trajectory.samples, None),
    )


def _of_turns(
    values: Mapping[str, float], samples: Sequence[str], missing: float | None
) -> list[float | None]:
    return [values.get(sample, missing) for sample in samples] if values else []


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
    failures: list[RolloutFailure | None] = [*group.failures[: group.failed]]
    failures += [None] * (group.failed - len(failures))
    for place, failure in enumerate(failures, len(group.trajectories)):
        yield RolloutRecord(
            rollout=f"g{number}.failed{place}",
            group=number,
            place=place,
            fate="failed",
            discarded=discarded,
            failure=failure,
        )


AUTO_TOKENS = 200_000
"""The number of tokens of a step up to which `record_tokens="auto"` keeps those of all groups."""
MOST_GAP = 256
"""The number of steps in a row without a record at which the search for older records ends."""


async def keep_tokens(
    opened: TrainedModel,
    batch: Batch,
    request: TrainJobRequest,
    *,
    steps: Path,
    settings: ControlSettings,
) -> Path | None:
    """Write the record of the step that is being made into the folder of steps, and delete those of old
    steps. Returns its path; None where there is none. It raises nothing that a disk or a trainer may do.
    """
    if not settings.token_steps:
        return None
    step = opened.step + 1
    try:
        body = await opened.trainer.tokens(opened.model, opened.step, timeout=settings.token_record)
        if body is None:
            return None
        path = await asyncio.to_thread(write_tokens, steps, body, batch.samples, request, step)
        await asyncio.to_thread(delete_old, steps, step - settings.token_steps, TOKEN_FILE)
    except (ARTError, OSError, SafetensorError, ValueError) as error:
        _log.warning("Step %d of %s has no record of its tokens: %s", step, opened.model, error)
        return None
    return path


def write_tokens(
    steps: Path, body: bytes, samples: Sequence[TrainedSample], request: TrainJobRequest, step: int
) -> Path:
    """Write the trainer's columns with those that say whose each entry is. Returns the file's path.

    Raises TrainingError for columns that are not of these samples, OSError and SafetensorError.
    """
    columns_E = load_arrays(body)
    entries = sum(sample.tokens for sample in samples)
    shapes = {name: columns_E[name].shape for name in TOKEN_COLUMNS if name in columns_E}
    if shapes != dict.fromkeys(TOKEN_COLUMNS, (entries,)):
        raise TrainingError(
            f"the trainer's record has the columns {shapes}; it must have {', '.join(TOKEN_COLUMNS)} of "
            f"{entries} loss entries each"
        )
    groups = chosen_groups(samples, request.compute.record_tokens, request.job_id)
    content = encode_tokens(columns_E, samples, groups, job_id=request.job_id, step=step)
    path = steps / f"{step:04d}" / TOKEN_FILE
    write_whole(path, content, durable=False)
    return path


def encode_tokens(
    columns_E: Mapping[str, npt.NDArray[np.generic]],
    samples: Sequence[TrainedSample],
    groups: frozenset[int],
    *,
    job_id: str,
    step: int,
) -> bytes:
    """The file's content: the entries of these groups."""
    recorded = [sample for sample in samples if sample.group in groups]
    tokens_S = np.array([sample.tokens for sample in recorded], np.int64)
    rollouts = {sample.rollout: sample.group for sample in recorded}
    numbers = {name: number for number, name in enumerate(rollouts)}
    rollout_S = np.array([numbers[sample.rollout] for sample in recorded], np.int64)
    keep_E = np.repeat([sample.group in groups for sample in samples], [one.tokens for one in samples])
    columns = {name: np.ascontiguousarray(columns_E[name][keep_E]) for name in TOKEN_COLUMNS}
    first_S = np.cumsum(tokens_S) - tokens_S
    columns["rollout"] = _narrow(np.repeat(rollout_S, tokens_S))
    columns["sample"] = _narrow(np.repeat(np.arange(len(recorded)), tokens_S))
    columns["place"] = _narrow(np.arange(int(tokens_S.sum())) - np.repeat(first_S, tokens_S))
    header = TokenFileHeader(
        job_id=job_id,
        step=step,
        entries=len(keep_E),
        samples=[sample.sample_id for sample in recorded],
        rollouts=list(rollouts),
        groups=list(rollouts.values()),
    )
    return bytes(save_arrays(columns, metadata={"header": header.model_dump_json()}))


def _narrow(numbers_K: npt.NDArray[np.int64]) -> npt.NDArray[np.generic]:
    """The same in two bytes each where they fit, else in four."""
    small = int(numbers_K.max(initial=0)) < 2**16
    return numbers_K.astype(np.uint16 if small else np.uint32)


def chosen_groups(
    samples: Sequence[TrainedSample], record: RecordTokens, job_id: str, *, most: int = AUTO_TOKENS
) -> frozenset[int]:
    """Returns the groups whose tokens are recorded. auto: all, if they have at most so many tokens; else
    whole groups in the order of a hash of job and group, at least one, until the next is too many.

    >>> samples = [TrainedSample(sample_id=f"s{n}", rollout=f"r{n}", group=n, tokens=10) for n in range(4)]
    >>> sorted(chosen_groups(samples, "auto", "job", most=40))
    [0, 1, 2, 3]
    >>> [len(chosen_groups(samples, "auto", "job", most=most)) for most in (25, 1)]
    [2, 1]
    """
    tokens: dict[int, int] = {}
    for sample in samples:
        tokens[sample.group] = tokens.get(sample.group, 0) + sample.tokens
    if record == "all" or sum(tokens.values()) <= most:
        return frozenset(tokens)
    drawn = sorted(tokens, key=lambda group: hashlib.sha256(f"{job_id}:{group}".encode()).digest())
    total = np.cumsum([tokens[group] for group in drawn])
    return frozenset(drawn[: max(1, int(np.searchsorted(total, most, side="right")))])


def delete_old(steps: Path, newest: int, name: str) -> None:
    """Delete this file of step `newest` and of those before it; a step's other files are kept."""
    missing = 0
    for step in range(newest, -1, -1):
        try:
            (steps / f"{step:04d}" / name).unlink()
            missing = 0
        except FileNotFoundError:  # deleted before, or nothing was trained in it
            missing += 1
        if missing == MOST_GAP:
            return
