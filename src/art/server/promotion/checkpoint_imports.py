"""Checkpoints that come from elsewhere: forks of other models of this server, and steps that were pulled.

A fork happens before a model is registered, or while it has nothing but its untouched step 0. Where the
model is served already, an arrival waits for the running job, is loaded and checked like any other step, and
is undone when it does not fit. Nothing is half there at any moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import filecmp
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

from art.errors import NotFoundError, RequestError
from art.server.checkpoints.checkpoints import (
    Checkpoints,
    check_shape,
    lock_within,
    read_shape,
    same_files,
    shape_for,
)
from art.server.checkpoints.registered_models import RegisteredModels, Registration
from art.server.promotion.promote import ServedModel
from art.wire.models import ADAPTER_FILE, AdoptReply, AdoptRequest, ForkReply, ForkRequest, RegisterRequest

_log = logging.getLogger(__name__)

ServedModelOf = Callable[[Registration], contextlib.AbstractAsyncContextManager[ServedModel | None]]
"""`async with outside_training(model) as served`: the model while no job trains it; None: not served."""
Rows = Callable[[Registration], Sequence[Sequence[int]]]


class CheckpointImports:
    """One for the server. `outside_training` keeps other users of the model out; a canary scores `rows`."""

    def __init__(
        self, models: RegisteredModels, *, outside_training: ServedModelOf, rows: Rows, wait: float
    ) -> None:
        self._models = models
        self._outside_training = outside_training
        self._rows = rows
        self._wait = wait
        self._locks: dict[tuple[str, str], asyncio.Lock] = {}

    @contextlib.asynccontextmanager
    async def exclusive(self, project: str, name: str) -> AsyncIterator[None]:
        """Holds the model, so that no other call forks, adopts into or registers it. Raises RequestError
        (409) after a while.
        """
        lock = self._locks.setdefault((project, name), asyncio.Lock())
        async with lock_within(lock, self._wait, f"{project}/{name}"):
            yield

    def shaped(self, request: RegisterRequest) -> RegisterRequest:
        """The request, its adapter's shape completed from the checkpoints that wait for a new model."""
        if self._models.find(request.project, request.name) is not None:
            return request
        checkpoints = self._models.checkpoints_of(request.project, request.name)
        newest = checkpoints.newest()
        if newest is None:
            return request
        folder = checkpoints.path(newest)
        shape = read_shape(folder)
        lora = shape_for(request.lora, shape, folder)
        if shape.plain:
            _log.warning("%s holds an adapter alone: step %d goes on with a fresh optimizer", folder, newest)
        return request.model_copy(update={"lora": lora})

    async def begin(self, project: str, name: str, adapter: Path) -> None:
        """Make a LoRA folder the step 0 of a model that has no step yet. The caller has it exclusively.

        Raises RequestError (409) when the model's step 0 is another one, CheckpointError.
        """
        target = self._models.checkpoints_of(project, name)
        read_shape(adapter)
        if not target.steps():
            await asyncio.to_thread(target.copy_adapter, adapter, 0)
            target.commit(0)
            _log.info("%s/%s begins with the LoRA %s", project, name, adapter)
            return
        ours = target.path(0) / ADAPTER_FILE
        if ours.is_file() and not filecmp.cmp(ours, adapter / ADAPTER_FILE, shallow=False):
            raise RequestError(
                f"model {project}/{name} began with other weights than those in {adapter}: use another "
                "name, or remove the model's folder",
                status=409,
                code="model_conflict",
                param="base_model",
            )

    async def fork(self, project: str, name: str, request: ForkRequest) -> ForkReply:
        """Copies another model's step to a model, under the same number.

        Raises NotFoundError (no such checkpoints or step), RequestError (409: it has steps of its own, or
        the checkpoint is of another shape), CheckpointError, CanaryError, WorkerError.
        """
        target = self._models.checkpoints_of(project, name)
        from_project = request.from_project or project
        source = self._models.checkpoints_of(from_project, request.from_name)
        step = choose_step(source.steps(), request, f"{from_project}/{request.from_name}")
        async with self.exclusive(project, name):
            if step and step == target.newest() and target.note(step) is None:
                same = await asyncio.to_thread(same_files, source.path(step), target.path(step))
                if same:  # asked twice: a reply was lost
                    self._models.note_origin(project, name, f"{from_project}/{request.from_name}@{step}")
                    return ForkReply(step=step, checkpoint_path=str(target.path(step)))
            _refuse_own_steps(target, f"{project}/{name}")
            take = target.copy_adapter if request.weights_only else target.link
            write = {step: lambda: take(source.path(step), step)}
            await self._arrive(project, name, write, set_aside=[step] if step in target.steps() else [])
            self._models.note_origin(project, name, f"{from_project}/{request.from_name}@{step}")
        _log.info("%s/%s is forked from %s/%s@%d", project, name, from_project, request.from_name, step)
        return ForkReply(step=step, checkpoint_path=str(target.path(step)))

    async def adopt(self, project: str, name: str, request: AdoptRequest) -> AdoptReply:
        """Commit steps that lie in the model's folder `.arriving`.

        Raises NotFoundError (a step is not there), RequestError (409: a committed step would be
        overwritten), CheckpointError, CanaryError, WorkerError.
        """
        target = self._models.checkpoints_of(project, name)
        arriving = target.folder.parent / ".arriving"
        async with self.exclusive(project, name):
            here = {step for step in request.steps if (arriving / f"{step:04d}").is_dir()}
            if lost := sorted(set(request.steps) - here - set(target.steps())):
                raise _missing(f"steps {lost} are not in {arriving}: pull again", "step_missing")
            if not here and not set(request.set_aside).intersection(target.steps()):
                return AdoptReply(adopted=sorted(request.steps))  # asked twice
            if taken := sorted(here.intersection(target.steps()) - set(request.set_aside)):
                raise RequestError(
                    f"model {project}/{name} has steps {taken} already; a committed step is "
                    "never overwritten",
                    status=409,
                    code="step_exists",
                )
            write = {step: _mover(arriving, target, step) for step in sorted(here)}
            aside = [step for step in target.steps() if step in request.set_aside]
            await self._arrive(project, name, write, set_aside=aside)
        return AdoptReply(adopted=sorted(request.steps))

    async def _arrive(
        self, project: str, name: str, write: dict[int, Callable[[], Path]], *, set_aside: Sequence[int]
    ) -> None:
        target, model = self._models.checkpoints_of(project, name), self._models.find(project, name)
        if model is None:
            with _undone_on_failure(target) as change:
                await asyncio.to_thread(change, write, set_aside)
            return
        async with self._outside_training(model) as served:
            old = {} if served is None else served.loaded()
            with _undone_on_failure(target) as change:
                await asyncio.to_thread(change, write, set_aside)
                for step in write:
                    check_shape(model.lora, read_shape(target.path(step)), target.path(step))
                if served is not None:
                    await self._serve(served, model)
            if served is not None:
                served.forget({step: adapter for step, adapter in old.items() if step in set_aside})

    async def _serve(self, served: ServedModel, model: Registration) -> None:
        """The newest step, read from its checkpoint."""
        served.workers.trainers.invalidate(model)
        try:
            await served.bring_up(self._rows(model))
        except BaseException:
            served.workers.trainers.invalidate(model)
            raise


def choose_step(steps: Sequence[int], request: ForkRequest, source: str) -> int:
    """The step that a fork begins with. Raises NotFoundError: `no_checkpoints` or `step_missing`."""
    if not steps:
        raise _missing(f"No checkpoints found for model {source}", "no_checkpoints")
    if request.step is not None:
        if request.step not in steps:
            raise _missing(
                f"No checkpoint of step {request.step} found. Available steps: {list(steps)}", "step_missing"
            )
        return request.step
    fit = [step for step in steps if request.not_after is None or step <= request.not_after]
    if not fit:
        raise _missing(
            f"No checkpoints found not after step {request.not_after}. Available steps: {list(steps)}",
            "step_missing",
        )
    return max(fit)


class _Change:
    """Steps set aside and committed so far, to be taken back."""

    def __init__(self, target: Checkpoints) -> None:
        self._target = target
        self._set_aside: list[tuple[int, Path]] = []
        self._added: list[int] = []

    def __call__(self, write: dict[int, Callable[[], Path]], set_aside: Sequence[int]) -> None:
        for step in set_aside:
            self._set_aside.append((step, self._target.reject(step)))
        for step, put in write.items():
            put()
            self._target.commit(step)
            self._added.append(step)

    def undo(self) -> None:
        for step in self._added:
            self._target.delete(step)
        for step, aside in self._set_aside:
            aside.rename(self._target.path(step))


@contextlib.contextmanager
def _undone_on_failure(target: Checkpoints) -> Iterator[_Change]:
    change = _Change(target)
    try:
        yield change
    except BaseException:
        change.undo()
        raise


def _mover(arriving: Path, target: Checkpoints, step: int) -> Callable[[], Path]:
    def move() -> Path:
        written = target.fresh_folder(step)
        (arriving / f"{step:04d}").rename(written)
        return written

    return move


def _refuse_own_steps(target: Checkpoints, model: str) -> None:
    own = target.steps()
    if own not in ([], [0]) or (own == [0] and target.note(0) is not None):
        raise RequestError(
            f"model {model} has steps of its own: {own}. A fork begins a model: give it another name, or "
            "remove the model's folder",
            status=409,
            code="model_has_checkpoints",
        )


def _missing(message: str, code: str) -> NotFoundError:
    return NotFoundError(message, status=404, code=code)
