"""One training job, from sample ids to the served step."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from art.batch.algorithms import check_algorithm
from art.batch.balance_sheet import masked
from art.batch.batch_types import Batch, GroupRow
from art.batch.build import build_batch, scored_paths, with_teacher
from art.batch.encode import encode_batch
from art.errors import RequestError, TrainingError
from art.extensions import PLOT, load_extension
from art.server.checkpoints.canary import canary_rows
from art.server.checkpoints.reference_adapter import reference_folder
from art.server.jobs.http_teacher import HttpTeacher
from art.server.jobs.learning_rate import rate_factor
from art.server.jobs.step_files import keep_tokens, rollout_records, write_rollouts
from art.server.jobs.step_job import StepJob
from art.server.jobs.train_rows import (
    check_origin,
    group_rows,
    judge_figures,
    one_seed_groups,
    policy_ages,
    refuse_untrainable,
)
from art.server.ledger.schema import SampleRecord, read_images
from art.server.settings import TeacherSettings
from art.server.tenancy import tenant_of
from art.wire.jobs import TrainJobRequest, TrainResultInfo
from art.wire.samples import image_runs
from art.wire.training import ComputedStep, TrainRequest

UPDATES = "data/step_num_gradient_steps"


@dataclass(eq=False, kw_only=True)
class TrainJob(StepJob):
    """Trains one step on groups of rollouts."""

    kind = "rl"
    request: TrainJobRequest
    teachers: TeacherSettings

    def mean_reward(self) -> float | None:
        rollouts = (one for group in self.request.groups for one in group.trajectories)
        rewards = [one.reward for one in rollouts if one.reward is not None]
        return fmean(rewards) if rewards else None

    async def run(self) -> TrainResultInfo:
        if (before := await self.committed()) is not None:
            return before
        check_algorithm(self.request.algorithm)
        teacher = self._teacher()
        opened = await self.open()
        folder = reference_folder(self.request.algorithm, self.served.checkpoints)
        records, removed = await self._records()
        oldest = opened.step - self._most_steps_off_policy()
        rows = await asyncio.to_thread(
            group_rows, self.request, records, self.renderer, oldest=oldest, removed=removed
        )
        if self.request.compute.plot:
            load_extension(PLOT, "batch").check_plots()
        batch = await asyncio.to_thread(  # seconds for a large batch, in which requests are to be answered
            build_batch,
            rows,
            algorithm=self.request.algorithm,
            max_length=self.request.compute.max_length,
        )
        refuse_untrainable(rows, batch.sheet)
        batch = await self._with_images(batch)
        figures = {
            **judge_figures(self.request.groups),
            **one_seed_groups([*self.request.groups, *self.request.discarded], records),
        }
        if batch.empty:
            await self._keep_rollouts(opened.step + 1, rows, batch)
            return await self.carry_forward(opened.step, {**figures, **batch.metrics}, batch.sheet)
        samples = (row for group in rows for rollout in group.rollouts for row in rollout.samples)
        seen = ([*row.prompt_ids, *row.completion_ids] for row in samples)
        canary = await self.canary(opened, canary_rows(seen))
        if teacher is not None:
            batch = await _taught(batch, teacher)
        reference = await opened.trainer.find_reference(folder)
        request = train_request(self.request, rows, batch, self.served.model.key, opened.step, reference)
        await self.progress("training")
        body = await asyncio.to_thread(encode_batch, batch, request)
        await self.served.workers.rest()
        with self.served.clock.part("gradient"):
            trained = await opened.trainer.train(body, self.report_progress)
        if trained.step != opened.step + 1 and trained.metrics.get(UPDATES):
            raise TrainingError(
                f"the trainer is at step {trained.step} after training step {opened.step + 1}"
            )
        if self.request.compute.plot:
            plot_batch = load_extension(PLOT, "batch").plot_batch
            await asyncio.to_thread(plot_batch, batch, self.served.checkpoints.folder.parent, opened.step + 1)
        if request.records_tokens:
            steps, settings = self.served.checkpoints.records, self.served.settings
            await keep_tokens(opened, batch, self.request, steps=steps, settings=settings)
        await self._keep_rollouts(opened.step + 1, rows, batch, masked=not trained.metrics[UPDATES])
        metrics = {**figures, **batch.metrics, **policy_ages(rows, opened.step), **trained.metrics}
        if not metrics[UPDATES]:
            return await self.carry_forward(opened.step, metrics, masked(batch.sheet))
        return await self.finish(opened, canary, metrics, batch.sheet)

    async def _keep_rollouts(
        self, step: int, rows: Sequence[GroupRow], batch: Batch, *, masked: bool = False
    ) -> None:
        steps = self.served.checkpoints.records
        records = rollout_records(self.request, rows, batch, masked=masked)
        await asyncio.to_thread(write_rollouts, steps, step, records)

    def computed(self, step: int) -> ComputedStep:
        oldest = step - 1 - self._most_steps_off_policy()
        return super().computed(step).model_copy(update={"oldest": oldest})

    async def _with_images(self, batch: Batch) -> Batch:
        """The batch with the pictures that its negative ids name. Raises LostImageError."""
        tokens_T = batch.tree.tokens_T
        names = {run.name for run in image_runs(tokens_T.tolist())} if (tokens_T < 0).any() else set()
        if not names:
            return batch
        return replace(batch, tree=replace(batch.tree, images=await read_images(self.ledger.rows, names)))

    async def some_ids(self) -> Sequence[Sequence[int]]:
        trajectories = (trajectory for group in self.request.groups for trajectory in group.trajectories)
        ids = [trajectory.samples[0] for trajectory in trajectories if trajectory.samples]
        some = list(dict.fromkeys(ids))[:8]
        records, *_ = await self.ledger.readable(some, tenant=tenant_of(self.job.project))
        return [records[sample].prompt_ids for sample in some if sample in records]

    def _most_steps_off_policy(self) -> int:
        """The request's bound, or the server's where that is narrower."""
        asked, allowed = self.request.max_steps_off_policy, self.served.settings.max_off_policy_steps
        return allowed if asked is None else min(asked, allowed)

    async def _records(self) -> tuple[dict[str, SampleRecord], frozenset[str]]:
        """Ledger rows of every sample that the request names and that is not damaged, checked to be this
        model's own; and the samples that were too old to be kept.
        """
        groups = [*self.request.groups, *self.request.discarded]
        trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        ids = dict.fromkeys(sample for trajectory in trajectories for sample in trajectory.samples)
        tenant = tenant_of(self.job.project)
        records, _, removed = await self.ledger.readable(list(ids), tenant=tenant)
        removals = self.served.model.removals
        for trajectory in trajectories:
            for sample in trajectory.samples:
                if sample in records:
                    check_origin(records[sample], trajectory.rollout, self.job.model, removals=removals)
        return records, removed

    def _teacher(self) -> HttpTeacher | None:
        spec = self.request.algorithm.teacher
        if spec is None or spec.kind != "server":
            return None
        return HttpTeacher(spec, self.teachers, listed_only=tenant_of(self.job.project) is not None)


def train_request(
    asked: TrainJobRequest,
    rows: Sequence[GroupRow],
    batch: Batch,
    model: str,
    step: int,
    reference: str | None,
) -> TrainRequest:
    """One gradient step in the trainer's memory, or none where masks drop everything."""
    updates = asked.algorithm.updates.of_batch(batch.sheet.fates["trained"].rollouts)
    return TrainRequest(
        model=model,
        step=step,
        algorithm=asked.algorithm.model_copy(update={"updates": updates}),
        optimizer=asked.optimizer,
        normalizer=batch.normalizer,
        sampling=list(batch.sampling),
        rewards=batch.rewards,
        reference=reference,
        rate_factor=rate_factor(asked.rate, rows, batch),
        compute=asked.compute,
    )


async def _taught(batch: Batch, teacher: HttpTeacher) -> Batch:
    """The batch with the logprobs of a teacher behind HTTP."""
    if batch.tree.images:
        raise RequestError(
            "a teacher behind HTTP is shown ids alone, and this batch has images: choose another algorithm, "
            "or a teacher that is one of the model's steps",
            status=400,
            code="unsupported_content",
            param="algorithm.teacher",
        )
    paths = scored_paths(batch.tree, batch.entries)
    rows = [batch.tree.tokens_T[path].tolist() for path in paths]
    return with_teacher(batch, paths, await teacher.logprobs(rows))
