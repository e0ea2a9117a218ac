"""What every job that makes a step has in common: the loop from what the trainer holds to the served step."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from art.errors import ARTError, CheckpointError, RequestError
from art.rendering.chat_renderer import ChatRenderer
from art.server.checkpoints.canary import Canary, canary_rows
from art.server.checkpoints.checkpoints import JobNote
from art.server.jobs.job_table import TrainingJob
from art.server.jobs.step_files import computing_versions, keep_replay
from art.server.ledger.face import SampleLedger
from art.server.promotion.promote import Progress, Promotion, ServedModel
from art.server.workers.trainer_worker import TrainedModel
from art.wire.jobs import BalanceSheet, TrainResultInfo
from art.wire.training import ComputedStep, TrainingKind


@dataclass(eq=False, kw_only=True)
class StepJob(ABC):
    """Runs a job of one model. Running it again after a crash at any point gives the same step once."""

    kind: ClassVar[TrainingKind]
    """What the step learns from."""
    job: TrainingJob
    served: ServedModel
    progress: Progress
    ledger: SampleLedger
    renderer: ChatRenderer

    @abstractmethod
    async def run(self) -> TrainResultInfo:
        """Train one step and serve it; it begins with `committed`. Raises subclasses of ARTError by name."""

    @abstractmethod
    async def some_ids(self) -> Sequence[Sequence[int]]:
        """A few rows of what the job trains on: what a step is checked with after a restart."""

    def mean_reward(self) -> float | None:
        """Returns the mean reward of the job's rollouts; None where there is none."""
        return None

    def computed(self, step: int) -> ComputedStep:
        """Returns how the step is computed."""
        trainers = self.served.workers.trainers
        chosen = {name: trainers.supervisor.health.get(name) for name in ("device", "dtype")}
        return ComputedStep(
            versions=computing_versions(),
            trainer={**trainers.supervisor.spec.config, **{name: one for name, one in chosen.items() if one}},
            ranks=trainers.ranks.ranks,
            sharding=trainers.ranks.sharding,
        )

    async def open(self) -> TrainedModel:
        """The model in the trainer, at its newest step. Raises RequestError when the job expects another,
        CheckpointError when all are gone: the model would begin anew.
        """
        checkpoints = self.served.checkpoints
        if checkpoints.newest() is None:
            raise CheckpointError(
                f"{checkpoints.folder} has no checkpoint any more: it was moved or removed while the server "
                "ran. Put it back, or start the server again on the folder where it is"
            )
        opened = await self.served.workers.trainers.open(self.served.model, checkpoints)
        expected, step = self.job.request.expected_step, opened.step
        if expected is not None and expected != step:
            raise RequestError(
                f"model {self.job.model} is at step {step}, the job expects step {expected}; another "
                f"program trained it",
                status=409,
                code="step_conflict",
                param="expected_step",
            )
        return opened

    async def canary(self, opened: TrainedModel, rows: Sequence[list[int]]) -> Canary:
        """Rows to check the new step with, and their scores under the step before: those that this one was
        checked with, or the job's own.
        """
        served = self.served
        if (known := served.canary(opened.step)) is not None:
            return known
        if not rows:
            return Canary(rows=[[0, 0]])
        adapter = served.loaded().get(opened.step)
        if adapter is None:
            return Canary(rows=rows)
        scoring = opened.score(rows), served.workers.engine.score_each(adapter, rows)
        with served.clock.part("canary"):
            trainer, engine = await asyncio.gather(*scoring)
        return Canary(rows=rows, engine_before=engine, trainer_before=trainer)

    async def report_progress(self, done: int, total: int) -> None:
        """Pass the trainer's progress on: tokens of a batch."""
        await self.progress("training", done=done, total=total)

    async def finish(
        self, opened: TrainedModel, canary: Canary, metrics: Mapping[str, float], sheet: BalanceSheet
    ) -> TrainResultInfo:
        """Make what the trainer holds the next step, and serve it."""
        step, newest = opened.step + 1, self.served.settings.replay_steps
        records, asked = self.served.checkpoints.records, self.job.request
        await asyncio.to_thread(keep_replay, records, step, self.computed(step), asked, newest=newest)
        result = self._result(step, {**metrics, "trained": 1.0}, sheet)
        promoted = await self.served.promote(opened, step, canary, self._note(result), self.progress)
        return await self._measured(result, promotion_metrics(promoted))

    async def carry_forward(
        self, step: int, metrics: Mapping[str, float], sheet: BalanceSheet
    ) -> TrainResultInfo:
        """Advances the step with the same weights when there is nothing to train, so that loops of
        steps end.
        """
        served, result = self.served, self._result(step + 1, {**metrics, "trained": 0.0}, sheet)
        await self.progress("saving")
        with served.clock.part("save"):
            served.checkpoints.carry_forward(step)
            served.checkpoints.commit(step + 1, self._note(result))
        if step in served.loaded():
            await served.serve_unmoved(step + 1, progress=self.progress)
        else:
            await self._serve_checked(step + 1)
        return await self._measured(result)

    async def committed(self) -> TrainResultInfo | None:
        """The result where the step was committed before a crash: it is served, nothing is trained. Else
        None, and the job is being prepared.
        """
        note = self.served.checkpoints.made_by(self.job.job_id)
        if note is None:
            await self.progress("preparing")
            return None
        served, step = self.served, note.result.step
        if step == served.checkpoints.newest() and step not in served.loaded():
            await self._serve_checked(step)
        return note.result

    async def _serve_checked(self, step: int) -> None:
        """Serve the newest checkpoint, of whose weights before nothing is known."""
        served = self.served
        opened = await served.workers.trainers.open(served.model, served.checkpoints)
        rows = canary_rows(await self.some_ids()) or [[0, 0]]
        scores = await opened.score(rows)
        await served.serve(step, Canary(rows=rows), scores, progress=self.progress)

    async def _measured(
        self, result: TrainResultInfo, metrics: Mapping[str, float] = MappingProxyType({})
    ) -> TrainResultInfo:
        """Returns the result with these metrics, with where the seconds since the step before went, and with
        what the machine did in them.
        """
        taken = {**self.served.clock.take(), **await asyncio.to_thread(self.served.usage.take)}
        return result.model_copy(update={"metrics": {**result.metrics, **metrics, **taken}})

    def _note(self, result: TrainResultInfo) -> JobNote:
        return JobNote(job_id=self.job.job_id, result=result, reward=self.mean_reward(), kind=self.kind)

    def _result(self, step: int, metrics: Mapping[str, float], sheet: BalanceSheet) -> TrainResultInfo:
        return TrainResultInfo(
            step=step,
            metrics=dict(metrics),
            sheet=sheet,
            checkpoint_path=str(self.served.checkpoints.path(step)),
        )


def promotion_metrics(promoted: Promotion) -> dict[str, float]:
    """Returns the canary's measurements, and the time of the new step from the gradient step to the alias."""
    return {
        "canary/logprob_difference_mean": promoted.agreement.mean,
        "canary/logprob_difference_max": promoted.agreement.max,
        "time/promote_commit_s": promoted.committed_s,
        "time/promote_s": promoted.served_s,
    }


def job_error_code(error: ARTError) -> str:
    """The machine-readable reason of a failed job."""
    return getattr(error, "code", None) or type(error).__name__
