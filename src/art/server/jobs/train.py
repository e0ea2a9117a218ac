"""One training job, from sample ids to the served step."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from art.algorithms import check_algorithm
from art.errors import TrainingError
from art.rendering.chat import ChatRenderer
from art.samples.batch import build_batch
from art.samples.encode import encode_batch
from art.samples.sheet import masked
from art.samples.teacher import scored_paths, with_teacher
from art.samples.types import Batch
from art.server.checkpoints.canary import canary_rows
from art.server.checkpoints.promote import Progress, Stage
from art.server.jobs.plot import plot_batch, plot_needs
from art.server.jobs.rate import rate_factor
from art.server.jobs.reference import reference_folder
from art.server.jobs.step import StepJob
from art.server.jobs.store import Job
from art.server.jobs.teacher import Teacher
from art.server.jobs.teacher_settings import TeacherSettings
from art.server.jobs.train_rows import (
    check_origin,
    group_rows,
    judge_figures,
    policy_ages,
    refuse_untrainable,
)
from art.server.ledger.ledger import Ledger
from art.server.ledger.schema import SampleRecord
from art.server.tenants.tenancy import tenant_of
from art.server.workers.trainer_client import OpenModel
from art.wire.jobs import TrainJobRequest, TrainResultInfo
from art.wire.training import TrainRequest

UPDATES = "data/step_num_gradient_steps"


class TrainJob(StepJob):
    """Trains one step on groups of rollouts."""

    def __init__(
        self,
        job: Job,
        request: TrainJobRequest,
        *,
        stage: Stage,
        ledger: Ledger,
        renderer: ChatRenderer,
        progress: Progress,
        teachers: TeacherSettings,
    ) -> None:
        super().__init__(job, stage=stage, progress=progress)
        self.request = request
        self.ledger = ledger
        self.renderer = renderer
        self.teachers = teachers

    async def make_step(self) -> TrainResultInfo:
        check_algorithm(self.request.algorithm)
        teacher = self._teacher()
        opened = await self.open()
        reference = reference_folder(self.request.algorithm, self.stage.checkpoints)
        records = await self._records()
        oldest = opened.step - self._most_steps_off_policy()
        rows = await asyncio.to_thread(group_rows, self.request, records, self.renderer, oldest=oldest)
        plot_needs(self.request.compute)
        batch = await asyncio.to_thread(  # seconds for a large batch, in which requests are to be answered
            build_batch,
            rows,
            algorithm=self.request.algorithm,
            max_length=self.request.compute.max_length,
        )
        refuse_untrainable(rows, batch.sheet)
        samples = (row for group in rows for rollout in group.rollouts for row in rollout.samples)
        seen = ([*row.prompt_ids, *row.completion_ids] for row in samples)
        canary = await self.canary(opened, canary_rows(seen))
        judged = judge_figures(self.request.groups)
        if batch.empty:
            return await self.carry_forward(opened.step, canary, {**judged, **batch.metrics}, batch.sheet)
        if teacher is not None:
            batch = await _taught(batch, teacher)
        factor = rate_factor(self.request.rate, rows, batch)
        metrics = await self._train(opened, batch, reference, factor)
        if self.request.compute.plot:
            await asyncio.to_thread(plot_batch, batch, self.stage.checkpoints.folder.parent, opened.step + 1)
        metrics = {**judged, **batch.metrics, **policy_ages(rows, opened.step), **metrics}
        if not metrics[UPDATES]:
            return await self.carry_forward(opened.step, canary, metrics, masked(batch.sheet))
        return await self.finish(opened, canary, metrics, batch.sheet)

    async def some_ids(self) -> Sequence[Sequence[int]]:
        trajectories = (trajectory for group in self.request.groups for trajectory in group.trajectories)
        ids = [trajectory.samples[0] for trajectory in trajectories if trajectory.samples]
        some = list(dict.fromkeys(ids))[:8]
        records, _ = await self.ledger.readable(some, tenant=tenant_of(self.job.project))
        return [records[sample].prompt_ids for sample in some if sample in records]

    def _most_steps_off_policy(self) -> int:
        """The request's bound, or the server's where that is narrower."""
        asked, allowed = self.request.max_steps_off_policy, self.stage.settings.max_off_policy_steps
        return allowed if asked is None else min(asked, allowed)

    async def _records(self) -> dict[str, SampleRecord]:
        """Ledger rows of every sample that the request names and that is not damaged, checked to be this
        model's own.
        """
        groups = [*self.request.groups, *self.request.discarded]
        trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        ids = dict.fromkeys(sample for trajectory in trajectories for sample in trajectory.samples)
        records, damaged = await self.ledger.readable(list(ids), tenant=tenant_of(self.job.project))
        for trajectory in trajectories:
            for sample in (name for name in trajectory.samples if name not in damaged):
                check_origin(
                    records[sample],
                    trajectory.rollout,
                    self.job.model,
                    removals=self.stage.model.removals,
                )
        return records

    def _teacher(self) -> Teacher | None:
        spec = self.request.algorithm.teacher
        if spec is None or spec.kind != "server":
            return None
        return Teacher(spec, self.teachers, listed_only=tenant_of(self.job.project) is not None)

    async def _train(
        self, opened: OpenModel, batch: Batch, reference: str | None, factor: float
    ) -> dict[str, float]:
        """One gradient step in the trainer's memory, or none where masks dropped everything. Returns its
        metrics."""
        step, algorithm = opened.step, self.request.algorithm
        updates = algorithm.updates.of_batch(batch.sheet.fates["trained"].rollouts)
        request = TrainRequest(
            model=self.stage.model.key,
            step=step,
            algorithm=algorithm.model_copy(update={"updates": updates}),
            optimizer=self.request.optimizer,
            normalizer=batch.normalizer,
            sampling=list(batch.sampling),
            rewards=batch.rewards,
            reference=reference,
            rate_factor=factor,
            compute=self.request.compute,
        )
        await self.progress("training")
        result = await self.follow(opened, await asyncio.to_thread(encode_batch, batch, request))
        if result.step != step + 1 and result.metrics.get(UPDATES):
            raise TrainingError(f"the trainer is at step {result.step} after training step {step + 1}")
        return result.metrics


async def _taught(batch: Batch, teacher: Teacher) -> Batch:
    """The batch with the logprobs of a teacher behind HTTP."""
    paths = scored_paths(batch.tree, batch.entries)
    rows = [batch.tree.tokens_T[path].tolist() for path in paths]
    return with_teacher(batch, paths, await teacher.logprobs(rows))
