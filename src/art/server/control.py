"""The control half of the server, put together: which models there are, and who does what with them.

models -> pairs -> stages -> arrivals, job runner -> jobs -> deletions
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path
from typing import Any

from art.errors import ARTError
from art.server.checkpoints.arrivals import Arrivals
from art.server.checkpoints.in_use import InUse
from art.server.control_settings import ControlSettings
from art.server.counts import ControlCounts
from art.server.data_layout import DataLayout
from art.server.jobs.jobs import Jobs
from art.server.jobs.runner import JobRunner
from art.server.jobs.store import JobStore
from art.server.jobs.teacher_settings import TeacherSettings
from art.server.ledger.ledger import Ledger
from art.server.models.base_models import adapter_folder, base_of_adapter, resolve_base
from art.server.models.catalog import Catalog
from art.server.models.deletions import Deletions
from art.server.models.models import Models, Registration
from art.server.models.stages import Stages
from art.server.tenants.tenancy import tenant_of
from art.server.workers.options import PairOptions
from art.server.workers.pairs import WorkerPairs
from art.wire.models import ModelInfo, RegisterRequest

_log = logging.getLogger(__name__)


class Control:
    """Owns the workers. `start` before use, `close` at the end."""

    def __init__(
        self,
        *,
        data_dir: Path,
        catalog: Catalog,
        ledger: Ledger,
        options: PairOptions,
        settings: ControlSettings | None = None,
        teachers: TeacherSettings | None = None,
    ) -> None:
        self.settings = settings or ControlSettings()
        self.layout = DataLayout(data_dir.resolve())
        self.catalog = catalog
        self.models = Models(self.layout)
        self.in_use = InUse()
        self._pairs = WorkerPairs(catalog, options=options, layout=self.layout, settings=self.settings)
        self._stages = Stages(self.models, pairs=self._pairs, catalog=catalog, settings=self.settings)
        self.arrivals = Arrivals(
            self.models,
            stage_of=self._stages.undisturbed,
            rows=self._stages.rows,
            wait=self.settings.call,
        )
        runner = JobRunner(
            self.models,
            stages=self._stages,
            catalog=catalog,
            ledger=ledger,
            teachers=teachers or TeacherSettings(),
            in_use=self.in_use,
        )
        self.jobs = Jobs(
            JobStore(self.layout.jobs_file),
            run=runner.run,
            trainer_of=lambda project, name: self.models.get(project, name).base_model,
            worker_failed=runner.worker_failed,
            settings=self.settings,
        )
        self.deletions = Deletions(
            self.models,
            stages=self._stages,
            catalog=catalog,
            arrivals=self.arrivals,
            jobs=self.jobs,
            in_use=self.in_use,
        )
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Go on with the jobs that an earlier server left unfinished."""
        self.catalog.load_missing = self._stages.load_missing
        for left in self.layout.removed_dirs():
            await asyncio.to_thread(shutil.rmtree, left)
        for job in await self.jobs.resume():
            _log.warning("job %s of %s is resumed", job.job_id, job.model)
        if self.settings.serve_registered:
            self._serving = asyncio.create_task(self._serve_registered())

    async def close(self) -> None:
        """End jobs and workers. Unfinished jobs go on at the next start."""
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.gather(self._serving, return_exceptions=True)
        await self.jobs.close()
        await self._stages.close()
        await self._pairs.close()

    async def register(self, request: RegisterRequest) -> ModelInfo:
        """Make a model known, start its workers, serve its newest step. Idempotent.

        Raises RequestError (400, 409), ConfigurationError, CheckpointError, CanaryError, WorkerError.
        """
        self.layout.model_dir(request.project, request.name)
        adapter = adapter_folder(request.base_model)
        base = resolve_base(request.base_model if adapter is None else base_of_adapter(adapter))
        async with self.arrivals.exclusive(request.project, request.name):
            if adapter is not None:
                await self.arrivals.begin(request.project, request.name, adapter)
            model = self.models.register(self.arrivals.shaped(request), base.name)
        stage = await self._stages.of(model)
        await stage.pair.start()  # again, where workers were given up
        self._stages.serve_as_registered(model)
        await self._tell_lost_steps(model)
        return self.describe(model)

    async def _tell_lost_steps(self, model: Registration) -> None:
        """Steps that a job made and whose folders are gone: whoever trains on makes them anew."""
        known = self.describe(model)
        made = 0 if model.removals else await self.jobs.newest_step(model.project, model.name)
        if made > known.step:
            _log.warning(
                "%s/%s goes on from step %d, but step %d was made and its folder in %s is gone: restore it "
                "from a backup before you train, or it is made anew",
                model.project,
                model.name,
                known.step,
                made,
                known.checkpoint_dir,
            )

    def describe(self, model: Registration) -> ModelInfo:
        """What is told of a model."""
        checkpoints = self.models.checkpoints(model)
        steps = checkpoints.steps()
        return ModelInfo(
            project=model.project,
            name=model.name,
            base_model=model.base_model,
            inference_name=self.catalog.inference_name(model.project, model.name, tenant_of(model.project)),
            step=max(steps, default=0),
            checkpoints=steps,
            checkpoint_dir=str(checkpoints.folder),
        )

    def health(self) -> dict[str, Any]:
        """The state of each worker: `up`, `restarting`, `failed` or `new`."""
        return self._pairs.health()

    async def counts(self) -> ControlCounts:
        """Jobs by state, each worker, requests that wait for one. Raises: JobStoreError, DiskError."""
        jobs = await self.jobs.counts()
        return ControlCounts(jobs=jobs, workers=self._pairs.counts(), held=self._pairs.held())

    async def _serve_registered(self) -> None:
        """Serve every model that the data folder knows; one that cannot be served keeps no other from it."""
        for model in self.models.all():
            try:
                await self._stages.of(model)
                _log.info("%s is served", model.key)
            except ARTError as error:
                _log.error("%s cannot be served: %s", model.key, error)
