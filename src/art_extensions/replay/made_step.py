"""A recorded step is made again by the server's own job, in a folder of its own: the same rows, batches and
updates, the same save and commit. What is left out is the engine: nothing is served, and no canary is scored.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from art.batch.algorithms import check_algorithm
from art.batch.batch_types import LossEntries, TokenTree
from art.batch.encode import decode_batch
from art.rendering.chat_renderer import ChatRenderer
from art.rendering.registry import create_chat_renderer
from art.server.catalog import Catalog
from art.server.checkpoints.canary import Canary
from art.server.checkpoints.checkpoints import Checkpoints, JobNote
from art.server.checkpoints.registered_models import Registration
from art.server.checkpoints.score_difference import ScoreDifference
from art.server.jobs.job_table import JobRequest, TrainingJob
from art.server.jobs.step_job import StepJob
from art.server.jobs.training_jobs import make_step_job
from art.server.ledger.face import SampleLedger
from art.server.promotion.promote import Progress, Promotion, ServedModel, ignore_progress
from art.server.settings import ControlSettings, TeacherSettings
from art.server.workers.base_model import BaseModelWorkers
from art.server.workers.gang import TrainerRanks
from art.server.workers.trainer_worker import TrainedModel, TrainerClient
from art.training.tally import Progress as TokenProgress
from art.training.trainer import Trainer
from art.training.weights import CONFIG_FILE
from art.wire.jobs import TrainJobRequest, TrainResultInfo
from art.wire.training import TrainEvent, TrainRequest
from art_extensions.replay.kill_place import ReplayKiller
from art_extensions.replay.recorded_step import RecordedStep
from art_extensions.replay.recorded_tables import ReplayError
from art_extensions.replay.step_gradient import write_first_gradient

NO_DIFFERENCE = ScoreDifference(mean=0.0, p99=0.0, max=0.0)


def ignore_tokens(done: int, total: int) -> None:
    """Does nothing."""


class ReplayedCheckpoints(Checkpoints):
    """The checkpoints as the job saw them that made a step: earlier steps of the run, which are only read,
    and what is made again in another folder.
    """

    def __init__(self, recorded: Checkpoints, folder: Path, *, step: int) -> None:
        super().__init__(recorded.folder)
        self._step, self._made = step, Checkpoints(folder / "checkpoints")

    @property
    def records(self) -> Path:
        return self._made.records

    def steps(self) -> list[int]:
        return [*(one for one in super().steps() if one < self._step), *self._made.steps()]

    def path(self, step: int) -> Path:
        return super().path(step) if step < self._step else self._made.path(step)

    def fresh_folder(self, step: int) -> Path:
        assert step == self._step, "the run's own steps are only read"
        return self._made.fresh_folder(step)

    def commit(self, step: int, note: JobNote | None = None) -> Path:
        assert step == self._step, "the run's own steps are only read"
        return self._made.commit(step, note)

    def carry_forward(self, step: int) -> Path:
        """Raises ReplayError: a step that trains nothing is not compared with one that did."""
        raise ReplayError("the changed step would train nothing: no rollout has an advantage")


@dataclass(frozen=True, kw_only=True, slots=True)
class SentBatch:
    """A batch that a trainer was sent."""

    tree: TokenTree
    entries: LossEntries
    request: TrainRequest


class ReplayTrainer:
    """Answers a job as a client of the trainer does (`TrainerClient`), with a trainer of this process."""

    def __init__(
        self,
        recorded: RecordedStep,
        trainer: Trainer,
        killer: ReplayKiller,
        *,
        gradient: Path | None,
        progress: TokenProgress,
    ) -> None:
        self._recorded, self._trainer, self._killer = recorded, trainer, killer
        self._gradient, self._progress = gradient, progress
        self.sent: list[SentBatch] = []
        """The batches that moved the weights."""
        self.ranks = TrainerRanks(ranks=trainer.ranks.world)
        self.supervisor = SimpleNamespace(health={}, spec=SimpleNamespace(config={}))

    async def open(self, model: Registration, checkpoints: Checkpoints) -> TrainedModel:
        """Opens the model at the checkpoint before the step."""
        before = self._recorded.before
        step = self._trainer.open(model.key, model.lora, seed=model.seed, checkpoint=before)
        return TrainedModel(cast(TrainerClient, self), model.key, step)

    async def find_reference(self, folder: str | None) -> str | None:
        return folder

    async def train(self, body: bytes, report: Callable[[int, int], Awaitable[None]]) -> TrainEvent:
        """Trains a batch. Raises what `Trainer.train` raises."""
        tree, entries, request = decode_batch(body)
        self._killer.reach("before-gradient")
        if request.gradient != "step":
            metrics = self._trainer.train(tree, entries, request)
        else:
            with self._watch_gradient(request):
                metrics = self._trainer.train(tree, entries, request, self._forwarded)
            self.sent.append(SentBatch(tree=tree, entries=entries, request=request))
        return TrainEvent(type="result", step=self._trainer.steps[request.model], metrics=metrics)

    def _forwarded(self, done: int, total: int) -> None:
        self._killer.forwarded(done, total)
        self._progress(done, total)

    def _watch_gradient(self, request: TrainRequest) -> AbstractContextManager[None]:
        if self._gradient is None:
            return nullcontext()
        parameters = self._trainer.parameters(request.model)
        return write_first_gradient(parameters, self._gradient, max_grad_norm=request.optimizer.max_grad_norm)

    async def save(self, model: str, path: Path) -> None:
        """Writes the step into a hidden folder."""
        self._killer.reach("after-gradient")
        self._killer.watch_save(path.parent)
        self._trainer.save(model, path)


class ReplayedModel(ServedModel):
    """A model that a job makes a step of, and that nothing serves."""

    def __init__(
        self, recorded: RecordedStep, checkpoints: Checkpoints, trainer: ReplayTrainer, killer: ReplayKiller
    ) -> None:
        async def rest() -> None:
            """No engine shares the device."""

        super().__init__(
            recorded.model,
            workers=cast(BaseModelWorkers, SimpleNamespace(trainers=trainer, rest=rest)),
            catalog=Catalog(),
            checkpoints=checkpoints,
            settings=ControlSettings(token_steps=0, max_off_policy_steps=recorded.most_off_policy),
        )
        self._killer = killer

    def loaded(self) -> dict[int, str | None]:
        return dict.fromkeys(self.checkpoints.steps())

    def canary(self, step: int) -> Canary:
        return Canary(rows=[])

    async def promote(
        self, opened: TrainedModel, step: int, canary: Canary, note: JobNote, progress: Progress
    ) -> Promotion:
        """Saves and commits."""
        await opened.save(self.checkpoints.fresh_folder(step))
        self._killer.reach("before-commit")
        self.checkpoints.commit(step, note)
        self._killer.reach("before-promote")
        return Promotion(adapter="", agreement=NO_DIFFERENCE, committed_s=0.0, served_s=0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepMadeAgain:
    """A step that was made again."""

    checkpoint: Path
    result: TrainResultInfo
    sent: Sequence[SentBatch]


def make_step(
    recorded: RecordedStep,
    asked: JobRequest,
    trainer: Trainer,
    *,
    source: str,
    folder: Path,
    killer: ReplayKiller | None = None,
    gradient: Path | None = None,
    progress: TokenProgress = ignore_tokens,
) -> StepMadeAgain:
    """Makes the step of a request in a folder; where that has the step already, nothing is trained.

    source: the folder of the base model. gradient: the file for the step's gradient. progress: is called with
    the tokens of a batch that are forwarded, and with all of them.

    Raises ReplayError for a step that would train nothing, and what a job raises.
    """
    if isinstance(asked, TrainJobRequest):
        check_algorithm(asked.algorithm)
    killer = killer or ReplayKiller()
    checkpoints = ReplayedCheckpoints(recorded.checkpoints, folder, step=recorded.step)
    client = ReplayTrainer(recorded, trainer, killer, gradient=gradient, progress=progress)
    served = ReplayedModel(recorded, checkpoints, client, killer)
    result = asyncio.run(_run(lambda: _make_job(recorded, asked, served, source)))
    return StepMadeAgain(checkpoint=checkpoints.path(recorded.step), result=result, sent=client.sent)


async def _run(make: Callable[[], StepJob]) -> TrainResultInfo:
    return await make().run()


def _make_job(recorded: RecordedStep, asked: JobRequest, served: ServedModel, source: str) -> StepJob:
    model = recorded.model
    if isinstance(asked, TrainJobRequest):  # a plot is nothing of the step
        asked = asked.model_copy(update={"compute": asked.compute.model_copy(update={"plot": False})})
    return make_step_job(
        TrainingJob(job_id=recorded.note.job_id, project=model.project, name=model.name, request=asked),
        served,
        ignore_progress,
        ledger=cast(SampleLedger, recorded.samples),
        renderer=_renderer(model, source),
        max_length=_longest(recorded, source),
        teachers=TeacherSettings(),
    )


def _renderer(model: Registration, source: str) -> ChatRenderer:
    return create_chat_renderer(source, name=model.base_model).with_arguments(
        model.chat_template_kwargs,
        template=model.chat_template,
        special_tokens_in_text=model.special_tokens_in_text,
        tool_format=model.tool_format,
    )


def _longest(recorded: RecordedStep, source: str) -> int:
    """Tokens of the longest conversation: as recorded, or what model and base allow."""
    if recorded.computed is not None and recorded.computed.max_length is not None:
        return recorded.computed.max_length
    config: Mapping[str, Any] = json.loads((Path(source) / CONFIG_FILE).read_bytes())
    limits = (recorded.model.max_context, config.get("max_position_embeddings"))
    return min(one for one in (*limits, 2**31) if one is not None)
