"""The loop closes here: what the trainer holds becomes what is sampled.

    save -> commit -> load under an immutable name -> canary -> move the alias -> drop old adapters

Until `commit` nothing has happened; from there on the step exists, and a restart goes on from it. A step
whose canary fails is set aside: the alias stays where it was. A model is opened on first use
(`ServedModels`), and kept until it is deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from art.engine.base_models import BaseModel, resolve_base
from art.errors import ARTError, CanaryError, NotFoundError
from art.rendering import GREETING
from art.server.catalog import Catalog, Serving
from art.server.checkpoints.canary import Canary, CanaryLimits, canary_limits, check_finite, next_canary
from art.server.checkpoints.checkpoints import Checkpoints, JobNote, lock_within
from art.server.checkpoints.registered_models import RegisteredModels, Registration
from art.server.checkpoints.score_difference import ScoreDifference, Scores
from art.server.settings import ControlSettings
from art.server.system_usage import SystemUsage
from art.server.tenancy import tenant_of
from art.server.workers.base_model import BaseModelWorkers, ServerWorkers, Unload
from art.server.workers.trainer_worker import TrainedModel

_log = logging.getLogger(__name__)


Progress = Callable[..., Awaitable[None]]
"""`await progress(phase, done=..., total=...)`"""


MayCommit = Callable[[], Awaitable[None]]
"""Raises where this server may commit no step any more, because another one took over."""


async def always_commits() -> None:
    """Refuses nothing: a server that is alone with its data folder may commit."""


async def ignore_progress(phase: str, *, done: int = 0, total: int = 0) -> None:
    """Progress that nobody follows."""


@dataclass(frozen=True, kw_only=True)
class Promotion:
    """The course of a promotion. Times in seconds from its start."""

    adapter: str
    agreement: ScoreDifference
    committed_s: float
    served_s: float


class ServedModel:
    """One model with everything that makes a step of it the served one."""

    def __init__(
        self,
        model: Registration,
        *,
        workers: BaseModelWorkers,
        catalog: Catalog,
        checkpoints: Checkpoints,
        settings: ControlSettings,
        may_commit: MayCommit = always_commits,
    ) -> None:
        self.model = model
        self._may_commit = may_commit
        self.workers = workers
        self.catalog = catalog
        self.checkpoints = checkpoints
        self.settings = settings
        self.phases: list[str] = []
        """What was done to serve it, in words."""
        self.clock, self.usage = catalog.clock(model.project, model.name), SystemUsage()
        self._in_order = asyncio.Lock()
        self._limits: CanaryLimits | None = None
        self._canary: tuple[str, Canary] | None = None
        """The newest adapter that a job made, and the rows that it was checked with, with its scores."""
        self._dropping: set[asyncio.Task[None]] = set()

    async def bring_up(self, rows: Sequence[Sequence[int]]) -> int:
        """Serve the newest checkpoint, or a fresh adapter as step 0. Returns the step.

        Engine and trainer must agree on the rows. Raises CanaryError (nothing is set aside: the likely
        cause is the configuration), CheckpointError, WorkerError.
        """
        opened, canary = await self.workers.trainers.open(self.model, self.checkpoints), Canary(rows=rows)
        if self.checkpoints.newest() is None:
            scores = await self.save(opened, opened.step, canary, None)
        else:
            scores = await opened.score(rows)
        await self.serve(opened.step, canary, scores, set_aside=False)
        return opened.step

    @contextlib.asynccontextmanager
    async def its_turn(self) -> AsyncIterator[None]:
        """The trainer is this model's inside the block."""
        with self.clock.part("queue"):
            await self.workers.training.acquire()
        try:
            yield
        finally:
            self.workers.training.release()

    @contextlib.asynccontextmanager
    async def shared_turn(self) -> AsyncIterator[None]:
        """The trainer is this model's inside the block, and that of other models whose calls move or add to
        nothing of this one. The model's own calls come one after the other.
        """
        async with self._in_order, contextlib.AsyncExitStack() as turn:
            with self.clock.part("queue"):
                await turn.enter_async_context(self.workers.shared_turn.joined())
            yield

    async def promote(
        self, opened: TrainedModel, step: int, canary: Canary, note: JobNote, progress: Progress
    ) -> Promotion:
        """Save and commit what the trainer holds as `step`, then serve it.

        Raises CanaryError (the checkpoint was set aside, the step before is still served), CheckpointError,
        WorkerError.
        """
        started = time.perf_counter()
        await progress("saving")
        scores = await self.save(opened, step, canary, note)
        committed_s = time.perf_counter() - started
        adapter, agreement = await self.serve(step, canary, scores, progress=progress)
        served_s = time.perf_counter() - started
        _log.info(
            "%s is served: committed after %.0f ms, served after %.0f ms",
            adapter,
            committed_s * 1e3,
            served_s * 1e3,
        )
        return Promotion(adapter=adapter, agreement=agreement, committed_s=committed_s, served_s=served_s)

    async def save(self, opened: TrainedModel, step: int, canary: Canary, note: JobNote | None) -> Scores:
        """Write and commit the checkpoint. Returns the trainer's scores of the canary's rows."""
        await self._write(opened, step)
        with self.clock.part("canary"):
            commit = asyncio.to_thread(self.checkpoints.commit, step, note)
            scores, _ = await asyncio.gather(opened.score(canary.rows), commit)
        opened.step = step
        return scores

    async def commit(self, opened: TrainedModel, step: int, note: JobNote) -> None:
        """Write and commit the checkpoint of a step that is not served yet: it is checked when it is."""
        await self._write(opened, step)
        await asyncio.to_thread(self.checkpoints.commit, step, note)
        opened.step = step

    async def _write(self, opened: TrainedModel, step: int) -> None:
        with self.clock.part("save"):
            await opened.save(self.checkpoints.fresh_folder(step))
            await self._may_commit()

    async def serve(
        self,
        step: int,
        canary: Canary,
        trainer: Scores,
        *,
        set_aside: bool = True,
        progress: Progress = ignore_progress,
    ) -> tuple[str, ScoreDifference]:
        """Load a committed step, check it, move the alias. Raises CanaryError after setting the step
        aside.
        """
        adapter = self.adapter_name(step)
        try:
            check_finite(adapter, trainer)
        except CanaryError as error:
            if not set_aside:
                raise
            raise self._set_aside(step, error) from error
        await self.workers.wake()
        limits = await self.limits()
        # From now on: a replica that starts again before the canary has ended must reproduce them, too.
        self.workers.engines.checked(adapter, canary.rows, trainer, limits)
        await progress("loading")
        with self.clock.part("load"):
            await self.load(step)
        await progress("checking")
        with self.clock.part("canary"):
            scored = await self.workers.engine.score_each(adapter, canary.rows)
        try:
            agreement = canary.check(adapter, scored, trainer, limits)
        except CanaryError as error:
            if not set_aside:
                raise
            raise await self._reject(step, adapter, error) from error
        if set_aside:
            following = next_canary(canary, scored, trainer)
            self._canary = None if following is None else (adapter, following)
        self._publish(step, adapter)
        return adapter, agreement

    async def serve_unmoved(self, step: int, *, progress: Progress = ignore_progress) -> None:
        """Load a committed step whose weights are those of the step before, which is served, and move the
        alias. No canary: nothing moved that the engine could have missed.

        A replica that starts again is held to the scores of the step before.
        """
        before, adapter = self.loaded()[step - 1], self.adapter_name(step)
        await self.workers.wake()
        if before is not None:
            self.workers.engines.checked_alike(adapter, before)
        await progress("loading")
        with self.clock.part("load"):
            await self.load(step)
        if self._canary is not None and self._canary[0] == before:
            self._canary = adapter, self._canary[1]
        self._publish(step, adapter)

    def canary(self, step: int) -> Canary | None:
        """The rows that this step was checked with when it was served, with its scores; None: it is another
        step that is known, or none.
        """
        adapter = self.loaded().get(step)
        if self._canary is None or self._canary[0] != adapter:
            return None
        return self._canary[1]

    def _publish(self, step: int, adapter: str) -> None:
        self.catalog.publish(self.model.project, self.model.name, self.model.base_model, step, adapter)
        self._drop_old()

    async def load(self, step: int) -> str:
        """Load a committed step into the engine. Returns the adapter's name, which belongs to these weights
        for ever.
        """
        adapter = self.adapter_name(step)
        await self.workers.engines.load(adapter, self.checkpoints.path(step))
        return adapter

    def adapter_name(self, step: int) -> str:
        """`project/name@step`. A name is used for one set of weights: a step whose first checkpoints were set
        aside, or whose model follows a removed one, has a longer one: `@step#rejections.removals`.
        """
        rejections, removals = self.checkpoints.rejections(step), self.model.removals
        tag = f"#{rejections}.{removals}" if removals else f"#{rejections}" if rejections else ""
        return f"{self.model.key}@{step}{tag}"

    async def limits(self) -> CanaryLimits:
        """Returns how far engine and trainer may be apart, by the precision of both."""
        if self._limits is None:
            self._limits = canary_limits(await self.workers.dtypes())
        return self._limits

    def retire(self, step: int) -> None:
        """Closes a step to new requests, and unloads it when its last one has ended."""
        adapter = self.catalog.retire(self.model.project, self.model.name, step)
        if adapter is not None:
            self._unload_when_unused(adapter)

    def loaded(self) -> dict[int, str | None]:
        """Loaded steps and their adapters."""
        return self.catalog.loaded_steps(self.model.project, self.model.name)

    def forget(self, replaced: Mapping[int, str | None]) -> None:
        """Steps that gave way to others, with the adapters that they had."""
        now = self.loaded()
        for step, adapter in replaced.items():
            if now.get(step) == adapter:
                self.retire(step)
            elif adapter is not None:
                self._unload_when_unused(adapter)

    def remove(self) -> None:
        """Serve the model no longer; each adapter is unloaded when its last request has ended."""
        self.workers.trainers.invalidate(self.model)
        for adapter in self.catalog.remove(self.model.project, self.model.name):
            self._unload_when_unused(adapter)

    def _unload_when_unused(self, adapter: str) -> None:
        task = asyncio.create_task(self._unload_later(adapter, self.workers.engines.unloader(adapter)))
        self._dropping.add(task)
        task.add_done_callback(self._dropping.discard)

    async def close(self) -> None:
        """Stop waiting for old adapters' last requests."""
        for task in self._dropping:
            task.cancel()
        await asyncio.gather(*self._dropping, return_exceptions=True)

    async def _reject(self, step: int, adapter: str, error: CanaryError) -> CanaryError:
        await self.workers.engines.unloader(adapter)()
        return self._set_aside(step, error)

    def _set_aside(self, step: int, error: CanaryError) -> CanaryError:
        self.workers.trainers.invalidate(self.model)
        aside = self.checkpoints.reject(step)
        return CanaryError(f"{error} The rejected checkpoint is kept as {aside}.")

    def _drop_old(self) -> None:
        """Retire all but the newest few steps; each is unloaded when its last request has ended."""
        steps = sorted(self.loaded())
        for step in steps[: -self.settings.keep_loaded]:
            self.retire(step)

    async def _unload_later(self, adapter: str, unload: Unload) -> None:
        try:
            await self.catalog.wait_until_unused(adapter, timeout=self.settings.drain)
            await unload()
        except (ARTError, TimeoutError) as error:
            _log.warning("old adapter %s stays loaded: %s", adapter, error)


class ServedModels:
    """All models that are served."""

    def __init__(
        self,
        models: RegisteredModels,
        *,
        workers: ServerWorkers,
        catalog: Catalog,
        settings: ControlSettings,
        may_commit: MayCommit = always_commits,
    ) -> None:
        self._models, self._may_commit = models, may_commit
        self._workers = workers
        self._catalog = catalog
        self._settings = settings
        self.opened: dict[str, ServedModel] = {}
        """The models that are served, by `project/name`."""
        self._removed: list[ServedModel] = []
        """The deleted models; each may still wait for its last requests."""
        self._opening: dict[str, asyncio.Lock] = {}
        self.phases: dict[str, list[str]] = {}
        """The phases begun so far of each model that is being started, in words, by `project/name`."""

    async def ensure_base_served(self, base: BaseModel) -> None:
        """Starts the workers of a base model, which is served under its own name from then on.

        Raises ConfigurationError, WorkerError, DeadlineError.
        """
        async with self._opening.setdefault(base.name, asyncio.Lock()):
            await self._workers.ensure_started(base, list[str]().append)

    async def ensure_served(self, model: Registration) -> ServedModel:
        """The model with its workers up and its newest step loaded.

        Raises NotFoundError, ConfigurationError, CheckpointError, CanaryError, ParityError, WorkerError.
        """
        async with self.opening(model):
            served = self.opened.get(model.key)
            if served is not None:
                return served
            self._models.get(model.project, model.name)  # it may have been deleted meanwhile
            self.phases[model.key] = phases = list[str]()
            try:
                served = await self._open(model, phases.append)
            finally:
                del self.phases[model.key]
            served.phases = phases
            self.opened[model.key] = served
            return served

    async def _open(self, model: Registration, begin_phase: Callable[[str], None]) -> ServedModel:
        base = resolve_base(model.base_model)
        workers = await self._workers.ensure_started(base, begin_phase)
        served = ServedModel(
            model,
            workers=workers,
            catalog=self._catalog,
            checkpoints=self._models.checkpoints(model),
            settings=self._settings,
            may_commit=self._may_commit,
        )
        served.checkpoints.sweep()
        self.serve_as_registered(model)
        async with workers.training:
            rows = await asyncio.to_thread(self.rows, model)
            await workers.require_parity(model.lora, rows[0], begin_phase)
            begin_phase(f"serving step {served.checkpoints.newest() or 0}")
            await served.bring_up(rows)
        await asyncio.to_thread(served.usage.take)
        served.clock.take()  # the first step begins now
        return served

    def opening(self, model: Registration) -> asyncio.Lock:
        """Holds a lock that keeps all models on the same base from being opened."""
        return self._opening.setdefault(model.base_model, asyncio.Lock())

    @contextlib.asynccontextmanager
    async def outside_training(self, model: Registration) -> AsyncIterator[ServedModel | None]:
        """The model while no job trains it; None while it is not served, nor becomes so."""
        async with lock_within(self.opening(model), self._settings.call, model.key):
            served = self.opened.get(model.key)
            if served is None:
                yield None
                return
        async with lock_within(served.workers.training, self._settings.call, model.key):
            yield served

    def serve_as_registered(self, model: Registration) -> None:
        """Raises RequestError for a chat format that cannot be told what the registration says."""
        plain = self._catalog.base_of(model.base_model).renderer
        renderer = plain.with_arguments(
            model.chat_template_kwargs,
            template=model.chat_template,
            special_tokens_in_text=model.special_tokens_in_text,
            tool_format=model.tool_format,
        )
        if tenant_of(model.project) is not None:
            renderer = renderer.confined()
        serving = Serving(renderer=renderer, max_context=model.max_context)
        self._catalog.serve_as(model.project, model.name, serving)

    def rows(self, model: Registration) -> list[list[int]]:
        """Returns the rows on which engine and trainer must agree before the model is served."""
        renderer = self._catalog.base_of(model.base_model).renderer
        if tenant_of(model.project) is not None:
            renderer = renderer.confined()
        return [renderer.render([dict(one) for one in GREETING], None)]

    async def load_missing(self, project: str, name: str, step: int) -> str:
        """Load an older step, asked for by name. Raises NotFoundError when its checkpoint is gone."""
        served = await self.ensure_served(self._models.get(project, name))
        if step not in served.checkpoints.steps():
            raise NotFoundError(
                f"model {name!r} has no step {step}; its checkpoints: {served.checkpoints.steps()}",
                status=404,
                code="model_not_found",
            )
        return await served.load(step)

    def remove(self, model: Registration) -> None:
        """Serve the model no longer. Requests that use it come to their end."""
        served = self.opened.pop(model.key, None)
        if served is not None:
            served.remove()
            self._removed.append(served)

    async def close(self) -> None:
        """Stop waiting for the last requests of what was removed."""
        await asyncio.gather(*(served.close() for served in [*self.opened.values(), *self._removed]))
