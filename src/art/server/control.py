"""The control half of the server: which models there are, and who registers, trains and deletes them.

registered models -> workers -> served models -> checkpoint imports, job runner -> jobs -> deletions
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path
from typing import Any

from art.engine.base_models import resolve_base
from art.errors import NotFoundError, RequestError
from art.process.in_use import InUse
from art.server.added_gradients import AddedGradients
from art.server.catalog import Catalog
from art.server.checkpoints.registered_models import (
    RegisteredModels,
    Registration,
    adapter_folder,
    base_of_adapter,
)
from art.server.cluster_settings import WorkerPlacer
from art.server.counts import ControlCounts
from art.server.data_folder import DataLayout
from art.server.deletions import ModelDeletions
from art.server.jobs.job_store import JobStore
from art.server.jobs.job_table import JobTable
from art.server.jobs.sample_retention import SampleRetention
from art.server.jobs.training_jobs import JobRunner, TrainingJobs
from art.server.ledger.face import SampleLedger
from art.server.promotion.checkpoint_imports import CheckpointImports
from art.server.promotion.promote import MayCommit, ServedModels, always_commits
from art.server.settings import ControlSettings, TeacherSettings
from art.server.startup_serving import StartupServing, named_models
from art.server.tenancy import Tenant, tenant_of
from art.server.workers.base_model import ServerWorkers
from art.server.workers.supervisor import WorkerOptions
from art.wire.models import (
    DrainNodeReply,
    DrainNodeRequest,
    LoadBaseReply,
    LoadBaseRequest,
    ModelInfo,
    ModelSummary,
    RegisterRequest,
)
from art.wire.records import quantized_name, split_bits

_log = logging.getLogger(__name__)


class Control:
    """Owns the workers. `start` before use, `close` at the end."""

    def __init__(
        self,
        *,
        data_dir: Path,
        catalog: Catalog,
        ledger: SampleLedger,
        options: WorkerOptions,
        settings: ControlSettings | None = None,
        teachers: TeacherSettings | None = None,
        cluster: WorkerPlacer | None = None,
        job_table: JobTable | None = None,
        may_commit: MayCommit = always_commits,
    ) -> None:
        """job_table: None is SQLite in the data folder. Another one is shared with servers whose jobs this
        one takes over when they die. may_commit: asked before a step is committed.
        """
        self.settings = settings or ControlSettings()
        self.layout = DataLayout(data_dir.resolve())
        self.catalog = catalog
        self._cluster = cluster
        self._resumes_all = job_table is not None or self.settings.resume_jobs
        self.models = RegisteredModels(self.layout)
        self.in_use = InUse[Path]()
        self.workers = ServerWorkers(catalog, options=options, layout=self.layout, settings=self.settings)
        self._served = ServedModels(
            self.models,
            workers=self.workers,
            catalog=catalog,
            settings=self.settings,
            may_commit=may_commit,
        )
        self.imports = CheckpointImports(
            self.models,
            outside_training=self._served.outside_training,
            rows=self._served.rows,
            wait=self.settings.call,
        )
        runner = JobRunner(
            models=self.models,
            served_models=self._served,
            catalog=catalog,
            ledger=ledger,
            teachers=teachers or TeacherSettings(),
            in_use=self.in_use,
        )
        self.gradients = AddedGradients(models=self.models, served_models=self._served)
        self.jobs = self._queue(runner, job_table or JobStore(self.layout.jobs_file))
        self.deletions = ModelDeletions(
            models=self.models,
            served_models=self._served,
            catalog=catalog,
            imports=self.imports,
            jobs=self.jobs,
            in_use=self.in_use,
        )
        self.retention = SampleRetention(ledger, models=self.models, jobs=self.jobs, settings=self.settings)
        self.jobs.after_step.append(self.retention.after_step)
        self._startup = StartupServing(self._served, catalog.expected)

    def _queue(self, runner: JobRunner, table: JobTable) -> TrainingJobs:
        return TrainingJobs(
            table,
            run=runner.run,
            trainer_of=lambda project, name: self.models.get(project, name).base_model,
            worker_failed=runner.worker_failed,
            settings=self.settings,
            clock_of=self.catalog.clock,
        )

    async def start(self) -> None:
        """Holds the jobs that an earlier server left unfinished, or goes on with them, and serves what the
        settings name.

        Raises ConfigurationError for a name in the settings that is no model's.
        """
        bases = {base.name: base for base in map(resolve_base, self.settings.base_models)}
        models = named_models(self.settings, self.models)
        self.catalog.load_missing = self._served.load_missing
        for left in self.layout.removed_dirs():
            await asyncio.to_thread(shutil.rmtree, left)
        unfinished = await self.jobs.hold_unfinished()
        if self._resumes_all:
            self.jobs.resume_all()
        else:
            for job in unfinished:
                _log.warning(
                    "job %s of %s is unfinished: it waits for its program, or for `art resume %s`",
                    job.job_id,
                    job.model,
                    job.model,
                )
        self._startup.begin(list(bases.values()), models)

    async def close(self) -> None:
        """End jobs and workers. Unfinished jobs stay in the table."""
        await self._startup.close()
        await self.retention.close()
        await self.jobs.close()
        await self._served.close()
        await self.workers.close()

    async def register(self, request: RegisterRequest, *, resume: bool = False) -> ModelInfo:
        """Make a model known, start its workers, serve its newest step. Idempotent.

        resume: the program that trains it is back, so its unfinished jobs go on.
        Raises RequestError (400, 409), ConfigurationError, CheckpointError, CanaryError, WorkerError.
        """
        self.layout.model_dir(request.project, request.name)
        named, bits = split_bits(request.base_model)
        adapter = adapter_folder(named)
        base = resolve_base(quantized_name(named if adapter is None else base_of_adapter(adapter), bits))
        async with self.imports.exclusive(request.project, request.name):
            if adapter is not None:
                await self.imports.begin(request.project, request.name, adapter)
            self._check_quota(request)
            model = self.models.register(self.imports.shaped(request), base.name)
        was_served = model.key in self._served.opened
        served = await self._served.ensure_served(model)
        await served.workers.start()  # again, where workers were given up
        self._served.serve_as_registered(model)
        if resume:
            self.jobs.resume(model.key)
        await self._tell_lost_steps(model)
        return self.describe(model).model_copy(update={"phases": [] if was_served else served.phases})

    async def load_base(self, request: LoadBaseRequest) -> LoadBaseReply:
        """Starts the workers of a base model, which is served under its own name. Idempotent.

        Raises ConfigurationError, WorkerError, DeadlineError.
        """
        base = resolve_base(request.base_model)
        await self._served.ensure_base_served(base)
        return LoadBaseReply(base_model=base.name)

    def _check_quota(self, request: RegisterRequest) -> None:
        """Raises RequestError (403) where a tenant would have one model too many."""
        tenant = tenant_of(request.project)
        if tenant is None or self.models.find(request.project, request.name) is not None:
            return
        count = sum(tenant_of(one.project) == tenant for one in self.models.list_models())
        if count >= self.settings.tenant_models:
            raise RequestError(
                f"you have {count} models, the limit is {self.settings.tenant_models}: delete one "
                "(`await backend.delete_model(...)`)",
                status=403,
                code="too_many_models",
            )

    async def _tell_lost_steps(self, model: Registration) -> None:
        """Steps that a job made and whose folders are gone: whoever trains on makes them anew."""
        known = self.describe(model)
        made = 0 if model.removals else await self.jobs.store.newest_step(model.project, model.name)
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
        """Returns the description of a model."""
        shown = self.catalog.names.shown(model.project, model.name, tenant_of(model.project))
        info = self.models.describe(model, shown)
        return info.model_copy(update={"phases": self._served.phases.get(model.key, [])})

    async def summaries(self, tenant: Tenant) -> list[ModelSummary]:
        """Describes all models that the tenant may see."""
        known = [one for one in self.models.list_models() if tenant in (None, tenant_of(one.project))]
        infos = [self.describe(one) for one in known]
        return await asyncio.to_thread(lambda: [self.models.summarize(info) for info in infos])

    def health(self) -> dict[str, Any]:
        """Returns what `/health` shows the operator: the state of each worker (`up`, `restarting`, `failed`
        or `new`), what is not served, and how large the ledger was after the last step.
        """
        known = {"workers": self.workers.health(), "unserved": self._startup.unserved}
        if self._cluster is not None:
            known["cluster"] = self._cluster.health()
        return known | {"ledger": size} if (size := self.retention.described()) else known

    async def drain_node(self, request: DrainNodeRequest) -> DrainNodeReply:
        """Give a node no more workers, and move those that it has; or, with `undo`, use it again.

        Requests go on: each worker is ended when its successor serves. A trainer is moved between two steps.
        Raises NotFoundError (there is no cluster, or no such node), DiskError, WorkerError, DeadlineError.
        """
        if self._cluster is None:
            raise NotFoundError(
                "this server has no cluster: start it with --cluster", status=404, code="no_cluster"
            )
        node = self._cluster.find_node(request.node)
        await asyncio.to_thread(self._cluster.drained.change, node.id, drained=not request.undo)
        if request.undo:
            return DrainNodeReply(node=node.address, moved=[])
        return DrainNodeReply(node=node.address, moved=await self.workers.leave_node(node.address))

    async def counts(self) -> ControlCounts:
        """Jobs by state, each worker, requests that wait for one. Raises: JobStoreError, DiskError."""
        jobs = await self.jobs.store.counts()
        return ControlCounts(
            jobs=jobs, workers=self.workers.counts(), on_hold=self.workers.requests_on_hold()
        )
