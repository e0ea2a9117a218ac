"""The record of each trained token of a step, beside the model's log: `steps/NNNN/tokens.safetensors`.

The trainer hands out its columns, one value for each loss entry; the job adds whose each is. The format is in
`art.wire.training`, its reader is `art.tracking.token_record`. A record that cannot be made is one warning:
the step goes on without it.

Letters: E = loss entries of the step, K = entries that are kept, S = trained samples.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from art.batch.batch_types import Batch, TrainedSample
from art.errors import ARTError, TrainingError
from art.process.files import write_whole
from art.server.settings import ControlSettings
from art.server.workers.trainer_worker import TrainedModel
from art.wire.jobs import TrainJobRequest
from art.wire.training import TOKEN_COLUMNS, TOKEN_FILE, RecordTokens, TokenFileHeader

_log = logging.getLogger(__name__)

AUTO_TOKENS = 200_000
"""Of a step, that `record_tokens="auto"` keeps."""
MOST_GAP = 256
"""With so many steps in a row without a record, there is none before them."""


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
        await asyncio.to_thread(delete_old_tokens, steps, step - settings.token_steps)
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
    kept = chosen_groups(samples, request.compute.record_tokens, request.job_id)
    content = encode_tokens(columns_E, samples, kept, job_id=request.job_id, step=step)
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
    kept = [sample for sample in samples if sample.group in groups]
    tokens_S = np.array([sample.tokens for sample in kept], np.int64)
    rollouts = {sample.rollout: sample.group for sample in kept}
    numbers = {name: number for number, name in enumerate(rollouts)}
    rollout_S = np.array([numbers[sample.rollout] for sample in kept], np.int64)
    keep_E = np.repeat([sample.group in groups for sample in samples], [one.tokens for one in samples])
    columns = {name: np.ascontiguousarray(columns_E[name][keep_E]) for name in TOKEN_COLUMNS}
    first_S = np.cumsum(tokens_S) - tokens_S
    columns["rollout"] = _narrow(np.repeat(rollout_S, tokens_S))
    columns["sample"] = _narrow(np.repeat(np.arange(len(kept)), tokens_S))
    columns["place"] = _narrow(np.arange(int(tokens_S.sum())) - np.repeat(first_S, tokens_S))
    header = TokenFileHeader(
        job_id=job_id,
        step=step,
        entries=len(keep_E),
        samples=[sample.sample_id for sample in kept],
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


def delete_old_tokens(steps: Path, newest: int) -> None:
    """Delete the records of tokens of step `newest` and of those before it; a step's other files are kept."""
    missing = 0
    for step in range(newest, -1, -1):
        try:
            (steps / f"{step:04d}" / TOKEN_FILE).unlink()
            missing = 0
        except FileNotFoundError:  # deleted before, or nothing was trained in it
            missing += 1
        if missing == MOST_GAP:
            return
