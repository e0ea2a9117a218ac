"""One training job, from sample ids to the served step."""

from __future__ import annotations

import time
from collections.abc import Sequence

from art.algorithms import check_algorithm
from art.errors import ARTError, RequestError, TrainingError
from art.samples.batch import build_batch
from art.samples.encode import encode_batch
from art.samples.teacher import scored_paths, with_teacher
from art.samples.types import Batch
from art.server.canary import Canary, canary_rows
from art.server.checkpoints import JobNote
from art.server.job_store import Job
from art.server.ledger import Ledger
from art.server.ledger_schema import SampleRecord
from art.server.promote import Progress, Promoted, Stage
from art.server.reference import reference_folder
from art.server.teacher import Teacher
from art.server.teacher_settings import TeacherSettings
from art.server.train_rows import check_origin, group_rows
from art.server.trainer_client import OpenModel, named_error
from art.wire.jobs import TrainResultInfo
from art.wire.training import TrainEvent, TrainRequest

_PROGRESS_SECONDS = 0.2


class TrainJob:
    """Runs a job of one model. Running it again after a crash at any point gives the same step once."""

    def __init__(
        self, job: Job, *, stage: Stage, ledger: Ledger, progress: Progress, teachers: TeacherSettings
    ) -> None:
        self.job = job
        self.request = job.request
        self.stage = stage
        self.ledger = ledger
        self.progress = progress
        self.teachers = teachers

    async def run(self) -> TrainResultInfo:
        """Train one step and serve it. Raises subclasses of ARTError by name."""
        note = self.stage.checkpoints.made_by(self.job.job_id)
        if note is not None:
            return await self._complete(note)
        await self.progress("preparing")
        check_algorithm(self.request.algorithm)
        teacher = self._teacher()
        opened = await self._open()
        reference = reference_folder(self.request.algorithm, self.stage.checkpoints)
        records = await self._records(opened.step)
        batch = build_batch(group_rows(self.request, records), algorithm=self.request.algorithm)
        canary = await self._canary(opened, records)
        if batch.empty:
            return await self._carry_forward(opened.step, batch, canary)
        if teacher is not None:
            batch = await _taught(batch, teacher)
        metrics = await self._train(opened, batch, reference)
        return await self._finish(opened, batch, canary, metrics)

    async def _complete(self, note: JobNote) -> TrainResultInfo:
        """The step was committed before a crash: serve it, train nothing."""
        stage, step = self.stage, note.result.step
        served = stage.catalog.loaded_steps(stage.model.project, stage.model.name)
        if step == stage.checkpoints.newest() and step not in served:
            opened = await stage.pair.open(stage.model, stage.checkpoints)
            rows = canary_rows(row.prompt_ids for row in await self._first_records())
            scores = await opened.score(rows)
            await stage.serve(step, Canary(rows=rows), scores, progress=self.progress)
        return note.result

    async def _open(self) -> OpenModel:
        opened = await self.stage.pair.open(self.stage.model, self.stage.checkpoints)
        expected, step = self.request.expected_step, opened.step
        if expected is not None and expected != step:
            raise RequestError(
                f"model {self.job.model} is at step {step}, the job expects step {expected}; another "
                f"program trained it",
                status=409,
                code="step_conflict",
                param="expected_step",
            )
        return opened

    async def _records(self, step: int) -> dict[str, SampleRecord]:
        """Ledger rows of every sample that the request names, checked to be this model's own and recent."""
        trajectories = [trajectory for group in self.request.groups for trajectory in group.trajectories]
        ids = dict.fromkeys(sample for trajectory in trajectories for sample in trajectory.samples)
        records = {record.sample_id: record for record in await self.ledger.samples(list(ids))}
        oldest = step - self.stage.settings.max_off_policy_steps
        for trajectory in trajectories:
            for sample in trajectory.samples:
                check_origin(records[sample], trajectory.rollout, self.job.model, oldest)
        return records

    async def _first_records(self) -> Sequence[SampleRecord]:
        trajectories = (trajectory for group in self.request.groups for trajectory in group.trajectories)
        ids = [trajectory.samples[0] for trajectory in trajectories if trajectory.samples]
        return await self.ledger.samples(list(dict.fromkeys(ids))[:8])

    async def _canary(self, opened: OpenModel, records: dict[str, SampleRecord]) -> Canary:
        """Rows of the batch itself, scored under the step before while nobody waits for them."""
        stage = self.stage
        rows = canary_rows([*record.prompt_ids, *record.completion_ids] for record in records.values())
        if not rows:
            return Canary(rows=[[0, 0]])
        trainer = await opened.score(rows)
        adapter = stage.catalog.loaded_steps(stage.model.project, stage.model.name).get(opened.step)
        if adapter is None:
            return Canary(rows=rows)
        engine = await stage.pair.engine_scores(adapter, rows)
        return Canary(rows=rows, engine_before=engine, trainer_before=trainer)

    def _teacher(self) -> Teacher | None:
        spec = self.request.algorithm.teacher
        return Teacher(spec, self.teachers) if spec is not None and spec.kind == "server" else None

    async def _train(self, opened: OpenModel, batch: Batch, reference: str | None) -> dict[str, float]:
        """One gradient step in the trainer's memory. Returns its metrics."""
        step = opened.step
        request = TrainRequest(
            model=self.stage.model.key,
            step=step,
            algorithm=self.request.algorithm,
            optimizer=self.request.optimizer,
            normalizer=batch.normalizer,
            sampling=list(batch.sampling),
            reference=reference,
        )
        await self.progress("training")
        result = await self._follow(opened, encode_batch(batch, request))
        if result.step != step + 1:
            raise TrainingError(f"the trainer is at step {result.step} after training step {step + 1}")
        return result.metrics

    async def _follow(self, opened: OpenModel, body: bytes) -> TrainEvent:
        told = time.monotonic()
        async for event in opened.train(body):
            if event.type == "result":
                return event
            if event.type == "error":
                raise named_error(event.code, event.message)
            if time.monotonic() - told >= _PROGRESS_SECONDS:
                told = time.monotonic()
                await self.progress("training", done=event.done, total=event.total)
        raise TrainingError("the trainer ended its answer without a result")

    async def _finish(
        self, opened: OpenModel, batch: Batch, canary: Canary, metrics: dict[str, float]
    ) -> TrainResultInfo:
        step = opened.step + 1
        result = self._result(step, batch, {**metrics, "trained": 1.0})
        note = JobNote(job_id=self.job.job_id, result=result)
        promoted = await self.stage.promote(opened, step, canary, note, self.progress)
        return result.model_copy(update={"metrics": {**result.metrics, **promotion_metrics(promoted)}})

    async def _carry_forward(self, step: int, batch: Batch, canary: Canary) -> TrainResultInfo:
        """No token has an advantage: the step advances with the same weights, so that loops of steps end."""
        stage, result = self.stage, self._result(step + 1, batch, {"trained": 0.0})
        await self.progress("saving")
        stage.checkpoints.carry_forward(step)
        stage.checkpoints.commit(step + 1, JobNote(job_id=self.job.job_id, result=result))
        opened = await stage.pair.open(stage.model, stage.checkpoints)
        scores = await opened.score(canary.rows)
        await stage.serve(step + 1, Canary(rows=canary.rows), scores, progress=self.progress)
        return result

    def _result(self, step: int, batch: Batch, metrics: dict[str, float]) -> TrainResultInfo:
        return TrainResultInfo(
            step=step,
            metrics={**batch.metrics, **metrics},
            sheet=batch.sheet,
            checkpoint_path=str(self.stage.checkpoints.path(step)),
        )


async def _taught(batch: Batch, teacher: Teacher) -> Batch:
    """The batch with the logprobs of a teacher behind HTTP."""
    paths = scored_paths(batch.tree, batch.entries)
    rows = [batch.tree.tokens_T[path].tolist() for path in paths]
    return with_teacher(batch, paths, await teacher.logprobs(rows))


def promotion_metrics(promoted: Promoted) -> dict[str, float]:
    """What the canary measured, and how long the new step took from the gradient step to the alias."""
    return {
        "canary/logprob_difference_mean": promoted.agreement.mean,
        "canary/logprob_difference_max": promoted.agreement.max,
        "time/promote_commit_s": promoted.committed_s,
        "time/promote_s": promoted.served_s,
    }


def error_code(error: ARTError) -> str:
    """The machine-readable reason of a failed job."""
    return getattr(error, "code", None) or type(error).__name__
