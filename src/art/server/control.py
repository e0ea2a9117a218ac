"""The control half of the server: which models there are, and who registers, trains and deletes them.

registered models -> workers -> served models -> checkpoint imports, job runner -> jobs -> deletions

Nothing that is being read is deleted: a model with an unfinished job, the newest checkpoint and those that
running jobs read stay.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any

from art.engine.base_models import BaseModel, resolve_base
from art.errors import ARTError, ConfigurationError, NotFoundError, RequestError, did_you_mean
from art.process.in_use import InUse
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
from art.server.jobs.job_store import JobStore
from art.server.jobs.job_table import JobTable
from art.server.jobs.sample_retention import SampleRetention
from art.server.jobs.training_jobs import JobRunner, TrainingJobs
from art.server.ledger.face import SampleLedger
from art.server.promotion.checkpoint_imports import CheckpointImports
from art.server.promotion.promote import MayCommit, ServedModels, always_commits
from art.server.settings import ControlSettings, TeacherSettings
from art.server.tenancy import Tenant, tenant_of
from art.server.workers.base_model import ServerWorkers
from art.server.workers.supervisor import WorkerOptions
from art.wire.models import (
    DeleteCheckpointsReply,
    DrainNodeReply,
    DrainNodeRequest,
    ModelInfo,
    ModelSummary,
    RegisterRequest,
    UnloadStepsReply,
)
from art.wire.records import quantized_name, split_bits


class ModelDeletions:
    """One for the server. `imports` keep others off a model, `jobs` tell whether it is trained."""

    def __init__(
        self,
        models: RegisteredModels,
        *,
        served_models: ServedModels,
        catalog: Catalog,
        imports: CheckpointImports,
        jobs: TrainingJobs,
        in_use: InUse[Path],
    ) -> None:
        self._models = models
        self._served = served_models
        self._catalog = catalog
        self._imports = imports
        self._jobs = jobs
        self._in_use = in_use

    async def delete_checkpoints(
        self, project: str, name: str, keep: Sequence[int]
    ) -> DeleteCheckpointsReply:
        """Remove every checkpoint but those to keep, the newest, and what running jobs read.

        Raises NotFoundError.
        """
        model = self._models.get(project, name)
        checkpoints = self._models.checkpoints(model)
        kept = {*keep, checkpoints.newest()}
        doomed = [
            step
            for step in checkpoints.steps()
            if step not in kept and checkpoints.path(step).resolve() not in self._in_use
        ]
        loaded = self._catalog.loaded_steps(project, name)
        for step in doomed:
            served = self._served.opened.get(model.key)
            if step in loaded and served is not None:
                served.retire(step)
            await asyncio.to_thread(checkpoints.delete, step)
        return DeleteCheckpointsReply(deleted=doomed)

    def unload_steps(self, project: str, name: str, keep: Sequence[int]) -> UnloadStepsReply:
        """Unload every step but those to keep and the newest, each when its last request has ended.

        Raises NotFoundError.
        """
        model = self._models.get(project, name)
        newest, loaded = self._models.checkpoints(model).newest(), self._catalog.loaded_steps(project, name)
        served = self._served.opened.get(model.key)
        if served is None:
            return UnloadStepsReply(unloaded=[])
        gone = [step for step in sorted(loaded) if step not in keep and step != newest]
        for step in gone:
            served.retire(step)
        return UnloadStepsReply(unloaded=gone)

    async def delete_model(self, project: str, name: str) -> None:
        """Remove a model: its name, its adapters and its checkpoints. Requests that use it come to their end.

        Raises NotFoundError, RequestError (409) while a job of it is queued or running.
        """
        model = self._models.get(project, name)
        async with self._imports.exclusive(project, name), self._served.opening(model):
            self._models.get(project, name)  # two may have asked
            if self._jobs.busy(model.key):
                raise RequestError(
                    f"model {model.key} has an unfinished training job; delete it when that has ended",
                    status=409,
                    code="model_busy",
                )
            # Nothing is awaited between this question and the end of the model.
            doomed = self._models.forget(model)
            self._served.remove(model)
        if doomed is not None:
            await asyncio.to_thread(shutil.rmtree, doomed)


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
        self._workers = ServerWorkers(catalog, options=options, layout=self.layout, settings=self.settings)
        self._served = ServedModels(
            self.models,
            workers=self._workers,
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
            self.models,
            served_models=self._served,
            catalog=catalog,
            ledger=ledger,
            teachers=teachers or TeacherSettings(),
            in_use=self.in_use,
        )
        self.jobs = self._queue(runner, job_table or JobStore(self.layout.jobs_file))
        self.deletions = ModelDeletions(
            self.models,
            served_models=self._served,
            catalog=catalog,
            imports=self.imports,
            jobs=self.jobs,
            in_use=self.in_use,
        )
        self.retention = SampleRetention(ledger, models=self.models, jobs=self.jobs, settings=self.settings)
        self.jobs.after_step.append(self.retention.after_step)
        self._serving: asyncio.Task[None] | None = None
        self.unserved: dict[str, str] = {}
        """Why each model or base that was to be served from the start is not, by its name."""

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
        bases, models = self._named_bases(), self._named_models()
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
        for base in bases:
            self.catalog.expected.add_base(base.name, *base.aliases)
        for model in models:
            self.catalog.expected.add(model.project, model.name)
        if bases or models:
            self._serving = asyncio.create_task(self._serve(bases, models))

    async def close(self) -> None:
        """End jobs and workers. Unfinished jobs stay in the table."""
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.gather(self._serving, return_exceptions=True)
        await self.retention.close()
        await self.jobs.close()
        await self._served.close()
        await self._workers.close()

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
        known = {"workers": self._workers.health(), "unserved": self.unserved}
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
        return DrainNodeReply(node=node.address, moved=await self._workers.leave_node(node.address))

    def running_engines(self) -> dict[str, tuple[int, list[tuple[int, str, str]]]]:
        """Returns for each base model the number of its replicas, and URL and key of those that answer."""
        return self._workers.running_engines()

    async def counts(self) -> ControlCounts:
        """Jobs by state, each worker, requests that wait for one. Raises: JobStoreError, DiskError."""
        jobs = await self.jobs.store.counts()
        return ControlCounts(
            jobs=jobs, workers=self._workers.counts(), on_hold=self._workers.requests_on_hold()
        )

    def _named_bases(self) -> list[BaseModel]:
        named = map(resolve_base, self.settings.base_models)
        return list({base.name: base for base in named}.values())

    def _named_models(self) -> list[Registration]:
        known = {model.key: model for model in self.models.list_models()}
        if not self.settings.models:
            return list(known.values()) if self.settings.serve_registered else []
        if unknown := [name for name in self.settings.models if name not in known]:
            raise ConfigurationError(
                f"{unknown[0]!r} is no model of {self.layout.data_dir}: "
                + (did_you_mean(unknown[0], known) or f"it has {', '.join(known) or 'none'}")
            )
        return [known[name] for name in dict.fromkeys(self.settings.models)]

    async def _serve(self, bases: Sequence[BaseModel], models: Sequence[Registration]) -> None:
        """One that cannot be served keeps no other from it."""
        expected = self.catalog.expected
        for base in bases:
            await self._serve_one(base.name, self._served.ensure_base_served(base))
            expected.end_base(base.name, *base.aliases)
        for model in models:
            await self._serve_one(model.key, self._served.ensure_served(model))
            expected.end(model.project, model.name)

    async def _serve_one(self, name: str, serving: Awaitable[object]) -> None:
        try:
            await serving
            _log.info("%s is served", name)
        except ARTError as error:
            self.unserved[name] = str(error)
            _log.error("%s cannot be served: %s", name, error)
