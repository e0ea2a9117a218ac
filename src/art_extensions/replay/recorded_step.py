"""What a run recorded of one step, read from its data folder. Nothing in the folder changes.

Each record that a replay needs and that is not there is a `ReplayError` that names it.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from art.server.checkpoints.checkpoints import Checkpoints, JobNote
from art.server.checkpoints.registered_models import RegisteredModels, Registration
from art.server.data_folder import DataLayout
from art.server.jobs.job_table import JobRequest, read_request, samples_of_request
from art.server.jobs.step_files import COMPUTING, computing_versions
from art.server.ledger.schema import SampleRecord
from art.server.settings import ControlSettings
from art.server.tenancy import Tenant
from art.tracking.folders import find_model
from art.tracking.step_record import read_rollouts
from art.wire.jobs import SftJobRequest, TrainJobRequest
from art.wire.training import COMPUTED_FILE, REQUEST_FILE, ComputedStep
from art_extensions.replay.recorded_tables import RecordedTables, ReplayError, tables_of

UNREAD_FATES = frozenset({"stale", "damaged", "no_samples"})
"""The fates of rollouts of which the step read no token, so that their samples may be gone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedSamples:
    """The samples of a step, as its job asks a ledger for them."""

    tables: RecordedTables
    records: Mapping[str, SampleRecord]
    removed: frozenset[str] = frozenset()
    """Those that were gone when the step was made, of rollouts that were stale for it."""
    damaged: Mapping[str, str] = field(default_factory=dict)
    """Those that could not be read when it was made, and why."""
    unknown: Sequence[str] = ()
    """Those that conversations name and the ledger does not have: their messages are rendered."""

    async def readable(
        self, sample_ids: Sequence[str], *, tenant: Tenant = None
    ) -> tuple[dict[str, SampleRecord], dict[str, str], frozenset[str]]:
        """See `SampleLedger.readable`."""
        records = {name: self.records[name] for name in sample_ids if name in self.records}
        return records, dict(self.damaged), self.removed

    async def known(self, sample_ids: Sequence[str], *, tenant: Tenant) -> dict[str, SampleRecord]:
        """See `SampleLedger.known`."""
        found = (self.records[name] for name in sample_ids if name in self.records)
        return {one.sample_id: one for one in found if one.tenant == tenant}

    async def rows(self, query: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """See `SampleLedger.rows`. Raises ReplayError."""
        return await asyncio.to_thread(self.tables.rows, "samples", query, values)


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedStep:
    """A step that a job made, and all that it was made from."""

    model: Registration
    checkpoints: Checkpoints
    step: int
    note: JobNote
    request: JobRequest
    samples: RecordedSamples
    fates: dict[str, str]
    """Rollout -> fate, where the step recorded its rollouts."""
    computed: ComputedStep | None
    """None: a release made the step that did not record it."""

    @property
    def most_off_policy(self) -> int:
        """Returns the server's bound: a rollout with a sample of so many steps before was not stale yet."""
        if self.computed is None:
            return ControlSettings().max_off_policy_steps
        return max(0, self.step - 1 - self.computed.oldest)

    @property
    def before(self) -> Path:
        """The folder of the checkpoint that the step began with."""
        return self.checkpoints.path(self.step - 1)

    @property
    def checkpoint(self) -> Path:
        """The folder of the checkpoint that the step made."""
        return self.checkpoints.path(self.step)


def read_recorded(run: str, step: int, data_dir: Path, database: str | None = None) -> RecordedStep:
    """Reads all records of a step. database: the URL of the one that its server used.

    Raises ReplayError, and ConfigurationError for a name that is none of the folder's models.
    """
    layout = DataLayout(data_dir)
    tables = tables_of(layout, database)
    named = find_model(run, data_dir)
    model = RegisteredModels(layout).get(named.project, named.name)
    _refuse_while_trained(tables, model)
    checkpoints = Checkpoints(layout.checkpoints_dir(model.project, model.name))
    note = _note(checkpoints, step, model.key)
    computed = _computed(checkpoints, step)
    request = _request(checkpoints, step, note.job_id, tables)
    fates = {one.rollout: one.fate for one in read_rollouts(checkpoints.folder.parent, step)}
    return RecordedStep(
        model=model,
        checkpoints=checkpoints,
        step=step,
        note=note,
        request=request,
        samples=_samples(request, fates, tables),
        fates=fates,
        computed=computed,
    )


def _refuse_while_trained(tables: RecordedTables, model: Registration) -> None:
    """A job that a server left unfinished when it ended is going on nowhere."""
    query = (
        "SELECT job_id FROM jobs WHERE state IN ('queued', 'running') AND project = ? AND name = ? LIMIT 1"
    )
    rows = tables.rows("jobs", query, (model.project, model.name)) if tables.exists("jobs") else []
    if rows and tables.is_served():
        raise ReplayError(f"job {rows[0][0]} of {model.key} is going on: replay a step when it has ended")


def _note(checkpoints: Checkpoints, step: int, model: str) -> JobNote:
    if step < 1:
        raise ReplayError(f"step {step} of {model} was not trained: the model begins with step 0")
    known = checkpoints.steps()
    for wanted, what in ((step, "made"), (step - 1, "began with")):
        if wanted not in known:
            raise ReplayError(
                f"the checkpoint that step {step} of {model} {what} is not there: "
                f"{checkpoints.path(wanted)} was deleted, or never written. Steps with a checkpoint: {known}"
            )
    note = checkpoints.note(step)
    if note is None:
        raise ReplayError(
            f"{checkpoints.path(step)} has no job.json: no training job made step {step} of {model}. It was "
            "imported or forked, or a program added its gradients up"
        )
    if not note.result.metrics.get("trained", 1.0):
        raise ReplayError(f"step {step} of {model} trained nothing: its weights are those of step {step - 1}")
    return note


def _computed(checkpoints: Checkpoints, step: int) -> ComputedStep | None:
    path = checkpoints.records / f"{step:04d}" / COMPUTED_FILE
    try:
        found = ComputedStep.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise ReplayError(f"{path} cannot be read: {error}") from error
    made, here = found.versions.get(COMPUTING[0]), computing_versions().get(COMPUTING[0])
    if made != here:
        raise ReplayError(f"ART {made} made step {step} and this is ART {here}: replay it with ART {made}")
    return found


def _request(checkpoints: Checkpoints, step: int, job_id: str, tables: RecordedTables) -> JobRequest:
    kept = checkpoints.records / f"{step:04d}" / REQUEST_FILE
    if kept.exists():
        try:
            text = gzip.decompress(kept.read_bytes()).decode()
        except (OSError, EOFError, UnicodeDecodeError) as error:
            raise ReplayError(f"{kept} cannot be read: {error}") from error
    else:
        text = _text_of_job(tables, job_id)
    request = read_request(text)
    teacher = request.algorithm.teacher if isinstance(request, TrainJobRequest) else None
    if teacher is not None and teacher.kind == "server":
        raise ReplayError(f"job {job_id} asked a teacher behind HTTP, whose logprobs are not recorded")
    return request


def _text_of_job(tables: RecordedTables, job_id: str) -> str:
    jobs = tables.shown("jobs")
    if not tables.exists("jobs"):
        raise ReplayError(f"there is no {jobs}: the request of job {job_id} is missing")
    rows = tables.rows("jobs", "SELECT request FROM jobs WHERE job_id = ?", (job_id,))
    if not rows:
        raise ReplayError(f"{jobs} has no job {job_id}: its request is missing")
    text = str(rows[0][0])
    if not text or not {"groups", "conversations"} & json.loads(text).keys():
        raise ReplayError(
            f"{jobs} has the settings of job {job_id} and not its groups or conversations, which it keeps of "
            "requests of up to 1 MiB: start the server with --keep-replay N, or set `replay_steps`"
        )
    return text


def _samples(request: JobRequest, fates: dict[str, str], tables: RecordedTables) -> RecordedSamples:
    """The samples that the step read, and those that were gone for it already."""
    if isinstance(request, SftJobRequest):
        return _named_samples(request, tables)
    place = tables.shown("samples")
    if not tables.exists("samples"):
        raise ReplayError(f"there is no {place}: the samples are missing")
    rollouts = [one for group in (*request.groups, *request.discarded) for one in group.trajectories]
    found = tables.samples([sample for one in rollouts for sample in one.samples])
    removed, damaged = set[str](), dict[str, str]()
    for one in rollouts:
        lost = [sample for sample in one.samples if sample not in found]
        fate = fates.get(one.rollout)
        if lost and fate not in UNREAD_FATES:
            raise ReplayError(
                f"the ledger {place} has sample {lost[0]!r} of rollout {one.rollout!r} no more, or it is "
                "damaged. A server with `keep_samples_steps` removes samples of deleted checkpoints' steps"
            )
        if fate == "stale":
            removed.update(lost)
        else:
            damaged |= dict.fromkeys(lost, "it was damaged when the step was made")
    return RecordedSamples(tables=tables, records=found, removed=frozenset(removed), damaged=damaged)


def _named_samples(request: SftJobRequest, tables: RecordedTables) -> RecordedSamples:
    """The samples that messages of conversations say they are."""
    names = sorted(samples_of_request(request))
    if not names:
        return RecordedSamples(tables=tables, records={})
    if not tables.exists("samples"):
        raise ReplayError(
            f"there is no {tables.shown('samples')}: the samples are missing that conversations name"
        )
    found = tables.samples(names)
    return RecordedSamples(
        tables=tables, records=found, unknown=[name for name in names if name not in found]
    )
