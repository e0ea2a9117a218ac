"""What `art.wire.gradients` describes: gradients batch by batch, and steps of what was added up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from art.batch.encode import decode_batch, encode_arrays
from art.errors import GradientsLostError, NotFoundError, RequestError, TokenMismatchError, TrainingError
from art.server.checkpoints.canary import Canary
from art.server.checkpoints.checkpoints import JobNote
from art.server.checkpoints.registered_models import RegisteredModels
from art.server.promotion.promote import ServedModel, ServedModels
from art.server.tenancy import tenant_of
from art.server.workers.trainer_worker import TrainedModel
from art.wire.gradients import (
    GRADIENTS_LOST,
    MadeStep,
    MakeStepRequest,
    Released,
    ServedStep,
    ServeStepRequest,
)
from art.wire.jobs import BalanceSheet, TrainResultInfo
from art.wire.training import StepRequest


@dataclass(frozen=True, kw_only=True)
class AddedGradients:
    """One for the server."""

    models: RegisteredModels
    served_models: ServedModels

    async def add(self, project: str, name: str, body: bytes) -> bytes:
        """Adds a batch's gradient to those that the trainer holds, or only scores the batch.

        Raises RequestError (400: it is no such batch; 409: `gradients_lost`, or the batch is refused),
        NotFoundError, WorkerError.
        """
        served = await self._served(project, name)
        body = await asyncio.to_thread(_of_model, body, served.model.key)
        async with self._shared_turn(served) as opened:
            with served.clock.part("gradient"):
                event = await opened.trainer.train(body, _unheard)
            columns = await opened.trainer.tokens(
                opened.model, opened.step, timeout=served.settings.token_record
            )
        if columns is None:
            raise RequestError("the trainer kept no record of the batch: send it again", status=409)
        return await asyncio.to_thread(_with_metrics, columns, event.metrics)

    async def step(self, project: str, name: str, asked: MakeStepRequest) -> MadeStep:
        """Moves the weights by what is held, and commits the step. It is not served.

        Raises RequestError (409: `gradients_lost`, or the sum is not finite), NotFoundError, CheckpointError,
        WorkerError.
        """
        served = await self._served(project, name)
        note = served.checkpoints.note(asked.expected_step + 1)
        if note is not None and note.job_id == asked.job_id:
            return _made(note.result)
        async with self._shared_turn(served) as opened:
            try:
                return await _make_step(served, opened, asked)
            except BaseException:
                # The trainer may hold a step that was never committed.
                served.workers.trainers.invalidate(served.model)
                raise

    async def serve(self, project: str, name: str, asked: ServeStepRequest) -> ServedStep:
        """Loads a committed step into the engines. The newest becomes what the model's name answers with.

        Raises NotFoundError (no such step), CanaryError, CheckpointError, WorkerError.
        """
        served = await self._served(project, name)
        steps = served.checkpoints.steps()
        if asked.step not in steps:
            raise NotFoundError(
                f"model {project}/{name} has no step {asked.step}; its steps: {steps}",
                status=404,
                code="step_missing",
            )
        if asked.step not in served.loaded():
            async with self._turn(served) as opened:
                if asked.step != opened.step:
                    await served.load(asked.step)
                else:
                    rows = await asyncio.to_thread(self.served_models.rows, served.model)
                    scores = await opened.score(rows)
                    await served.serve(asked.step, Canary(rows=rows), scores, set_aside=False)
        shown = served.catalog.names.shown(project, name, tenant_of(project))
        return ServedStep(step=asked.step, model=f"{shown}@{asked.step}")

    async def release(self, project: str, name: str) -> Released:
        """Has the trainer forget the model. Its committed steps stay, and it is opened again when needed.

        Raises NotFoundError, WorkerError.
        """
        model = self.models.get(project, name)
        served = self.served_models.opened.get(model.key)
        if served is not None:
            async with served.its_turn():
                await (await served.workers.trainers.client()).close(model.key)
                served.workers.trainers.invalidate(model)
        return Released(project=project, name=name)

    async def _served(self, project: str, name: str) -> ServedModel:
        return await self.served_models.ensure_served(self.models.get(project, name))

    @asynccontextmanager
    async def _shared_turn(self, served: ServedModel) -> AsyncIterator[TrainedModel]:
        """The model in the trainer, which others use too inside the block."""
        with _as_refusals():
            async with served.shared_turn():
                yield await served.workers.trainers.open(served.model, served.checkpoints)

    @asynccontextmanager
    async def _turn(self, served: ServedModel) -> AsyncIterator[TrainedModel]:
        """The model in the trainer, which is this model's inside the block."""
        with _as_refusals():
            async with served.its_turn():
                opened = await served.workers.trainers.open(served.model, served.checkpoints)
                async with served.workers.resting():
                    yield opened


@contextmanager
def _as_refusals() -> Iterator[None]:
    """Refuses the request where the trainer refuses what it asks for."""
    try:
        yield
    except GradientsLostError as error:
        raise RequestError(str(error), status=409, code=GRADIENTS_LOST) from error
    except (TrainingError, TokenMismatchError) as error:
        raise RequestError(str(error), status=409, code="batch_refused") from error


async def _make_step(served: ServedModel, opened: TrainedModel, asked: MakeStepRequest) -> MadeStep:
    if asked.expected_step != opened.step:
        raise GradientsLostError(
            f"model {served.model.key} is at step {opened.step}, not at {asked.expected_step}"
        )
    with served.clock.part("gradient"):
        reply = await opened.trainer.step(
            StepRequest(
                model=opened.model,
                step=opened.step,
                batches=asked.batches,
                optimizer=asked.optimizer,
                rate=asked.rate,
            )
        )
    result = TrainResultInfo(
        step=reply.step,
        metrics={"loss/grad_norm": reply.grad_norm, "loss/learning_rate": asked.rate},
        sheet=BalanceSheet(),
        checkpoint_path=str(served.checkpoints.path(reply.step)),
    )
    note = JobNote(job_id=asked.job_id, result=result)
    await served.commit(opened, reply.step, note)
    return _made(result)


def _made(result: TrainResultInfo) -> MadeStep:
    return MadeStep(step=result.step, metrics=result.metrics, checkpoint_path=result.checkpoint_path)


def _of_model(body: bytes, model: str) -> bytes:
    """The checked batch, for the trainer's name of the model. Raises RequestError (400)."""
    try:
        tree, entries, request = decode_batch(body)
    except TokenMismatchError as error:
        raise RequestError(str(error), status=400, code="invalid_batch") from error
    if request.gradient == "step":
        problem = 'a batch that moves the weights is a job: say "add" or "none" for `gradient`'
    elif request.reference is not None:
        problem = "a batch may name no folder as its reference"
    else:
        return encode_arrays(tree, entries, request.model_copy(update={"model": model}))
    raise RequestError(problem, status=400, code="invalid_batch", param="request")


def _with_metrics(columns: bytes, metrics: dict[str, float]) -> bytes:
    return bytes(save_arrays(load_arrays(columns), metadata={"metrics": json.dumps(metrics)}))


async def _unheard(done: int, total: int) -> None:
    """Progress that nobody follows."""
