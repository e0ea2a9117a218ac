"""The control half of the server: models, their workers and their training jobs, behind a handful of
verbs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from art.engine.protocol import Engine
from art.errors import ARTError, NotFoundError, RequestError, WorkerError
from art.rendering.chat import ChatRenderer
from art.server.arrivals import Arrivals
from art.server.base_models import BaseModel, adapter_folder, base_of_adapter, resolve_base
from art.server.catalog import Catalog
from art.server.control_settings import ControlSettings
from art.server.data_layout import DataLayout
from art.server.held import held
from art.server.in_use import InUse
from art.server.job_store import Job, JobStore
from art.server.jobs import Jobs
from art.server.ledger import Ledger
from art.server.models import Models, Registration
from art.server.promote import Progress, Stage
from art.server.reference import reference_folder
from art.server.served import Serving
from art.server.sft_job import SftJob
from art.server.step_job import StepJob
from art.server.teacher_settings import TeacherSettings
from art.server.tenancy import tenant_of
from art.server.train_job import TrainJob
from art.server.worker_pair import PairOptions, WorkerPair
from art.wire.jobs import TrainResultInfo
from art.wire.models import DeleteCheckpointsReply, ModelInfo, RegisterRequest, UnloadStepsReply
from art.wire.sft import SftJobRequest

_log = logging.getLogger(__name__)

_GREETING = ({"role": "user", "content": "Hello. Say yes, no or maybe."},)
"""Fixed text: engine and trainer must agree on its ids before a model is served."""


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
        self._teachers = teachers or TeacherSettings()
        self.layout = DataLayout(data_dir.resolve())
        self.catalog = catalog
        self.ledger = ledger
        self._options = options
        self.models = Models(self.layout)
        self.jobs = Jobs(
            JobStore(self.layout.jobs_file),
            run=self._run_job,
            trainer_of=lambda project, name: self.models.get(project, name).base_model,
            worker_failed=self._worker_failed,
            settings=self.settings,
        )
        self._pairs: dict[str, WorkerPair] = {}
        self._stages: dict[str, Stage] = {}
        self._removed: list[Stage] = []
        """Of deleted models: each may still wait for its last requests."""
        self._opening: dict[str, asyncio.Lock] = {}
        self._serving: asyncio.Task[None] | None = None
        self._in_use = InUse()
        self.arrivals = Arrivals(
            self.models,
            stage_of=self._undisturbed,
            rows=lambda model: [self._greeting(model.base_model)],
            wait=self.settings.call,
        )

    async def start(self) -> None:
        """Go on with the jobs that an earlier server left unfinished."""
        self.catalog.load_missing = self._load_missing
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
        await asyncio.gather(*(stage.close() for stage in [*self._stages.values(), *self._removed]))
        await asyncio.gather(*(pair.close() for pair in self._pairs.values()))

    # -- models --

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
        stage = await self._stage(model)
        await stage.pair.start()  # again, where workers were given up
        self._serve_as_registered(model)
        return self.describe(model)

    def _serve_as_registered(self, model: Registration) -> None:
        """Raises RequestError for a chat format that cannot be told what the registration says."""
        plain = self.catalog.base_of(model.base_model).renderer
        renderer = plain.told(model.chat_template_kwargs, template=model.chat_template)
        serving = Serving(renderer=renderer, max_context=model.max_context)
        self.catalog.serve_as(model.project, model.name, serving)

    def describe(self, model: Registration) -> ModelInfo:
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

    async def delete_checkpoints(
        self, project: str, name: str, keep: Sequence[int]
    ) -> DeleteCheckpointsReply:
        """Remove every checkpoint but those to keep, the newest, and what running jobs read.

        Raises NotFoundError.
        """
        model = self.models.get(project, name)
        checkpoints = self.models.checkpoints(model)
        kept = {*keep, checkpoints.newest()}
        doomed = [
            step
            for step in checkpoints.steps()
            if step not in kept and checkpoints.path(step) not in self._in_use
        ]
        loaded = self.catalog.loaded_steps(project, name)
        for step in doomed:
            if step in loaded and model.key in self._stages:
                self._stages[model.key].retire(step)
            await asyncio.to_thread(checkpoints.delete, step)
        return DeleteCheckpointsReply(deleted=doomed)

    def unload_steps(self, project: str, name: str, keep: Sequence[int]) -> UnloadStepsReply:
        """Unload every step but those to keep and the newest, each when its last request has ended.

        Raises NotFoundError.
        """
        model = self.models.get(project, name)
        newest, loaded = self.models.checkpoints(model).newest(), self.catalog.loaded_steps(project, name)
        gone = [step for step in sorted(loaded) if step not in keep and step != newest]
        for step in gone:
            self._stages[model.key].retire(step)
        return UnloadStepsReply(unloaded=gone)

    async def delete(self, project: str, name: str) -> None:
        """Remove a model: its name, its adapters and its checkpoints. Requests that use it come to their end.

        Raises NotFoundError, RequestError (409) while a job of it is queued or running.
        """
        model = self.models.get(project, name)
        opening = self._opening.setdefault(model.base_model, asyncio.Lock())
        async with self.arrivals.exclusive(project, name), opening:
            self.models.get(project, name)  # two may have asked
            if self.jobs.busy(model.key):
                raise RequestError(
                    f"model {model.key} has an unfinished training job; delete it when that has ended",
                    status=409,
                    code="model_busy",
                )
            # Nothing is awaited between this question and the end of the model.
            doomed = self.models.forget(model)
            stage = self._stages.pop(model.key, None)
            if stage is not None:
                stage.remove()
                self._removed.append(stage)
        if doomed is not None:
            await asyncio.to_thread(shutil.rmtree, doomed)

    def health(self) -> dict[str, Any]:
        """The state of each worker: `up`, `restarting`, `failed` or `new`."""
        return {
            pair.base.name: {
                supervisor.spec.name.partition("-")[0]: {
                    "state": supervisor.state,
                    "restarts": supervisor.restarts,
                }
                for supervisor in (pair.engines, pair.trainers)
            }
            for pair in self._pairs.values()
        }

    async def _stage(self, model: Registration) -> Stage:
        """The model's stage, its workers up and its newest step served."""
        lock = self._opening.setdefault(model.base_model, asyncio.Lock())
        async with lock:
            stage = self._stages.get(model.key)
            if stage is not None:
                return stage
            self.models.get(model.project, model.name)  # it may have been deleted meanwhile
            pair = await self._pair(resolve_base(model.base_model))
            stage = Stage(
                model,
                pair=pair,
                catalog=self.catalog,
                checkpoints=self.models.checkpoints(model),
                settings=self.settings,
            )
            stage.checkpoints.sweep()
            self._serve_as_registered(model)
            async with pair.training:
                await stage.bring_up([self._greeting(model.base_model)])
            self._stages[model.key] = stage
            return stage

    @contextlib.asynccontextmanager
    async def _undisturbed(self, model: Registration) -> AsyncIterator[Stage | None]:
        """The model's stage while no job trains it; None while it is not served, nor becomes so."""
        opening = self._opening.setdefault(model.base_model, asyncio.Lock())
        async with held(opening, self.settings.call, model.key):
            stage = self._stages.get(model.key)
            if stage is None:
                yield None
                return
        async with held(stage.pair.training, self.settings.call, model.key):
            yield stage

    async def _serve_registered(self) -> None:
        """Serve every model that the data folder knows; one that cannot be served keeps no other from it."""
        for model in self.models.all():
            try:
                await self._stage(model)
                _log.info("%s is served", model.key)
            except ARTError as error:
                _log.error("%s cannot be served: %s", model.key, error)

    def _greeting(self, base_model: str) -> list[int]:
        return self.catalog.base_of(base_model).renderer.render(_GREETING, None)

    async def _pair(self, base: BaseModel) -> WorkerPair:
        """The workers of a base model, started on first use."""
        pair = self._pairs.get(base.name)
        if pair is None:

            def replaced(engine: Engine, adapters: Sequence[str]) -> None:
                self.catalog.replace_engine(base.name, engine, adapters=adapters)

            pair = WorkerPair(
                base, options=self._options, layout=self.layout, settings=self.settings, replaced=replaced
            )
        renderer = await asyncio.to_thread(self._renderer, base) if base.name not in self._pairs else None
        await pair.start()
        if renderer is not None:
            engine = await pair.engine()
            info = await engine.info()
            self.catalog.add_base(
                base.name, engine, renderer, max_context=info.max_context, aliases=base.aliases
            )
            self._pairs[base.name] = pair
        return pair

    @staticmethod
    def _renderer(base: BaseModel) -> ChatRenderer:
        from art.rendering.registry import create_chat_renderer

        return create_chat_renderer(base.source, name=base.name)

    async def _load_missing(self, project: str, name: str, step: int) -> str:
        """Load an older step, asked for by name. Raises NotFoundError when its checkpoint is gone."""
        stage = await self._stage(self.models.get(project, name))
        if step not in stage.checkpoints.steps():
            raise NotFoundError(
                f"model {name!r} has no step {step}; its checkpoints: {stage.checkpoints.steps()}",
                status=404,
                code="model_not_found",
            )
        return await stage.load(step)

    # -- jobs --

    async def _run_job(self, job: Job, progress: Progress) -> TrainResultInfo:
        stage = await self._stage(self.models.get(job.project, job.name))
        async with stage.pair.training:
            try:
                with self._in_use.reading(_reference_of(job, stage)):
                    return await self._step_job(job, stage, progress).run()
            except BaseException:
                # The trainer may hold a step that was never committed.
                stage.pair.invalidate(stage.model)
                raise

    def _step_job(self, job: Job, stage: Stage, progress: Progress) -> StepJob:
        served = self.catalog.served_as(job.project, job.name, stage.model.base_model)
        if isinstance(job.request, SftJobRequest):
            return SftJob(
                job,
                job.request,
                stage=stage,
                progress=progress,
                ledger=self.ledger,
                renderer=served.renderer,
                max_length=served.max_context,
            )
        return TrainJob(
            job,
            job.request,
            stage=stage,
            ledger=self.ledger,
            renderer=served.renderer,
            progress=progress,
            teachers=self._teachers,
        )

    async def _worker_failed(self, job: Job, error: WorkerError) -> None:
        """A job's attempt failed with its worker: wait for the restart."""
        stage = self._stages.get(job.model)
        if stage is None:
            return
        try:
            await stage.pair.settle()
        except ARTError as failure:
            _log.error("workers of %s did not come back: %s", stage.pair.base.name, failure)


def _reference_of(job: Job, stage: Stage) -> str | None:
    """The folder of another policy that the job reads; one that is not there, the job itself will name."""
    if isinstance(job.request, SftJobRequest):
        return None
    try:
        return reference_folder(job.request.algorithm, stage.checkpoints)
    except RequestError:
        return None
