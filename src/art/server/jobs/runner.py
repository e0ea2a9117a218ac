"""Running one attempt of a job: the stage is opened, the trainer held, the kind of job does the rest."""

from __future__ import annotations

import logging

from art.errors import ARTError, RequestError, WorkerError
from art.server.checkpoints.in_use import InUse
from art.server.checkpoints.promote import Progress, Stage
from art.server.jobs.reference import reference_folder
from art.server.jobs.sft import SftJob
from art.server.jobs.step import StepJob
from art.server.jobs.store import Job
from art.server.jobs.teacher_settings import TeacherSettings
from art.server.jobs.train import TrainJob
from art.server.ledger.ledger import Ledger
from art.server.models.catalog import Catalog
from art.server.models.models import Models
from art.server.models.stages import Stages
from art.wire.jobs import TrainResultInfo
from art.wire.sft import SftJobRequest

_log = logging.getLogger(__name__)


class JobRunner:
    """Runs what `Jobs` queues."""

    def __init__(
        self,
        models: Models,
        *,
        stages: Stages,
        catalog: Catalog,
        ledger: Ledger,
        teachers: TeacherSettings,
        in_use: InUse,
    ) -> None:
        self._models = models
        self._stages = stages
        self._catalog = catalog
        self._ledger = ledger
        self._teachers = teachers
        self._in_use = in_use

    async def run(self, job: Job, progress: Progress) -> TrainResultInfo:
        """Raises subclasses of ARTError by name. After a worker failed it may be run again."""
        stage = await self._stages.of(self._models.get(job.project, job.name))
        async with stage.pair.training:
            try:
                with self._in_use.reading(_reference_of(job, stage)):
                    return await self._step_job(job, stage, progress).run()
            except BaseException:
                # The trainer may hold a step that was never committed.
                stage.pair.invalidate(stage.model)
                raise
            finally:
                await stage.pair.wake()

    async def worker_failed(self, job: Job, error: WorkerError) -> None:
        """An attempt failed with its worker: wait for the restart."""
        stage = self._stages.opened(job.model)
        if stage is None:
            return
        try:
            await stage.pair.settle()
        except ARTError as failure:
            _log.error("workers of %s did not come back: %s", stage.pair.base.name, failure)

    def _step_job(self, job: Job, stage: Stage, progress: Progress) -> StepJob:
        served = self._catalog.served_as(job.project, job.name, stage.model.base_model)
        if isinstance(job.request, SftJobRequest):
            return SftJob(
                job,
                job.request,
                stage=stage,
                progress=progress,
                ledger=self._ledger,
                renderer=served.renderer,
                max_length=served.max_context,
            )
        return TrainJob(
            job,
            job.request,
            stage=stage,
            ledger=self._ledger,
            renderer=served.renderer,
            progress=progress,
            teachers=self._teachers,
        )


def _reference_of(job: Job, stage: Stage) -> str | None:
    """The folder of another policy that the job reads; one that is not there, the job itself will name."""
    if isinstance(job.request, SftJobRequest):
        return None
    try:
        return reference_folder(job.request.algorithm, stage.checkpoints)
    except RequestError:
        return None
